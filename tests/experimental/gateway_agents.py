"""Agent programs for tests: small games that are played through the chat endpoint."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from typing import Any

from lit_agentrl.envs.base import TextEnv
from lit_agentrl.envs.games.bandit import Bandit
from lit_agentrl.envs.games.sokoban import Sokoban
from lit_agentrl.envs.pocket.game import PocketWorld
from lit_agentrl.experimental.gateway.client import Client
from lit_agentrl.text.dialects.answer import ANSWER
from lit_agentrl.text.prompts import Prompt


def guess(task: dict[str, Any], client: Client) -> dict[str, Any]:
    """One call; the reward is whether the reply names an arm."""
    messages = [{"role": "user", "content": "You 0 : P _ X"}]
    reply = client.ask(messages)
    return {"reward": float("Up" in reply["content"]), "success": "Up" in reply["content"]}


async def walk(task: dict[str, Any], client: Client) -> float:
    """Three calls in one dialogue; the reward counts the moves up."""
    messages = [{"role": "user", "content": "P _ X"}]
    points = 0.0
    for _ in range(3):
        reply = await client.ask_async(messages)
        points += len(re.findall("Up", reply["content"]))
        messages += [reply, {"role": "user", "content": "_ P X"}]
    return points


def play_bandit(task: dict[str, Any], client: Client) -> dict[str, Any]:
    """The bandit as a program: it writes the messages, reads the replies and scores them."""
    return _play(task, client, Bandit(split=task["split"]), "bandit", turns=1, actions=1, actions_per_turn=1)


def play_sokoban(task: dict[str, Any], client: Client) -> dict[str, Any]:
    """Sokoban as a program."""
    return _play(
        task, client, Sokoban(split=task["split"]), "sokoban", turns=5, actions=10, actions_per_turn=5
    )


def play_mortal_sokoban(task: dict[str, Any], client: Client) -> dict[str, Any]:
    """Sokoban as a program whose process is killed after the first reply of every eighth episode or so."""
    if is_killed(task):
        client.ask([{"role": "user", "content": "go"}])
        os.kill(os.getpid(), signal.SIGKILL)
    return play_sokoban(task, client)


def is_killed(task: dict[str, Any]) -> bool:
    """Whether the program of a task is killed; no evaluation loses an episode."""
    return bool(task["split"] == "train" and task["noise_seed"] % 8 == 3)


def play_pocket(task: dict[str, Any], client: Client) -> dict[str, Any]:
    """The phone as a program: it offers the apps as tools, and plays the calls that it receives."""
    game, prompt, turns = PocketWorld(levels=[0], split=task["split"]), Prompt(style="compact"), 6
    actions, total, success, is_over = turns, 0.0, False, False
    tools = [json.loads(tool.text) for tool in game.tools()]
    observation, _ = game.reset(seed=task["seed"], options={"noise_seed": task["noise_seed"]})
    messages: list[dict[str, Any]] = prompt.write_opening(
        name="pocket", rules=game.rules, actions=game.actions(), observation=observation, max_turns=turns,
        max_actions=actions, max_actions_per_turn=1,
    )  # fmt: skip
    while turns and actions and not is_over:
        answer = client.ask(messages, tools=tools)
        reward, calls = 0.0, answer.get("tool_calls", [])
        for call in calls:
            function = call["function"]
            action = {"name": function["name"], "arguments": json.loads(function["arguments"])}
            observation, points, is_over, _, info = game.step(json.dumps(action))
            reward, actions, success = reward + points, actions - 1, info["success"]
        reward += 0.0 if calls else -0.1
        turns, total = turns - 1, total + reward
        told = prompt.write_next(
            observation=observation, reward=reward, complaint="" if calls else "no call", turns_left=turns,
            actions_left=actions,
        )  # fmt: skip
        answered = {"role": "tool", "tool_call_id": calls[0]["id"]} if calls else {"role": "user"}
        messages += [answer, {**answered, "content": told}]
    return {"reward": total, "success": success}


def _play(
    task: dict[str, Any],
    client: Client,
    game: TextEnv,
    name: str,
    *,
    turns: int,
    actions: int,
    actions_per_turn: int,
) -> dict[str, Any]:
    prompt, total, success = Prompt(style="compact"), 0.0, False
    observation, _ = game.reset(seed=task["seed"], options={"noise_seed": task["noise_seed"]})
    messages: list[dict[str, Any]] = prompt.write_opening(
        name=name, rules=game.rules, actions=game.actions(), observation=observation, max_turns=turns,
        max_actions=actions, max_actions_per_turn=actions_per_turn,
    )  # fmt: skip
    is_over = False
    while turns and actions and not is_over:
        answer = client.ask(messages)
        reply = ANSWER.parse(answer["content"], game.actions(), think=True)
        reward, is_valid, complaint = 0.0, reply.is_valid, reply.complaint
        for action in reply.actions[: min(actions, actions_per_turn)]:
            observation, points, is_over, _, info = game.step(action)
            reward, actions, success = reward + points, actions - 1, info["success"]
            if is_over:
                break
        reward += 0.0 if is_valid else -0.1
        turns, total = turns - 1, total + reward
        messages += [
            answer,
            {
                "role": "user",
                "content": prompt.write_next(
                    observation=observation,
                    reward=reward,
                    complaint=complaint,
                    turns_left=turns,
                    actions_left=actions,
                ),
            },
        ]
    return {"reward": total, "success": success}


def wander(task: dict[str, Any], client: Client) -> float:
    """Two calls in a dialogue, one that continues the first again, and one on its own: three rows."""
    start = [{"role": "user", "content": "go"}]
    said = client.ask(start)
    client.ask([*start, said, {"role": "user", "content": "up"}])
    client.ask([*start, said, {"role": "user", "content": "down"}])
    client.ask([{"role": "user", "content": "P _"}], max_tokens=2)
    return 1.0


def fail_first(task: dict[str, Any], client: Client) -> float:
    """Raise in every second episode, by the noise of the task."""
    client.ask([{"role": "user", "content": "go"}])
    if task["noise_seed"] % 2:
        raise RuntimeError("no luck")
    return 1.0


async def ask_twice(task: dict[str, Any], client: Client) -> float:
    """Make two calls at once."""
    await asyncio.gather(*(client.ask_async([{"role": "user", "content": "go"}]) for _ in range(2)))
    return 1.0


def overflow(task: dict[str, Any], client: Client) -> float:
    """Ask for too much once, and go on with less."""
    messages = [{"role": "user", "content": "go"}]
    messages += [client.ask(messages), {"role": "user", "content": "up " * 400}]
    try:
        client.ask(messages)
    except ValueError as error:
        assert "context_length_exceeded" in str(error)
    messages[-1] = {"role": "user", "content": "up"}
    client.ask(messages)
    return 1.0


def insist(task: dict[str, Any], client: Client) -> float:
    """Ask for a temperature and for a long reply, twice."""
    for _ in range(2):
        client.ask([{"role": "user", "content": "go"}], temperature=0.25, max_tokens=999)
    return 1.0


def earn(task: dict[str, Any], client: Client) -> float:
    """Post rewards for the first call and, after two more, for the last."""
    messages = [{"role": "user", "content": "go"}]
    for number in range(3):
        messages += [client.ask(messages), {"role": "user", "content": "up"}]
        if number != 1:
            client.reward(0.25 if number == 0 else 4.0)
    client.reward(-1.0, "chatcmpl-3")
    return 8.0


def return_to_first(task: dict[str, Any], client: Client) -> float:
    """Begin a dialogue, hold another, and end the first."""
    messages = [{"role": "user", "content": "go"}]
    messages += [client.ask(messages), {"role": "user", "content": "up"}]
    client.ask([{"role": "user", "content": "P _"}])
    client.ask(messages)
    return 1.0
