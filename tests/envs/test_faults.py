"""Faults fail actions by a keyed draw, and leave rewards, levels and states as they are."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from lit_agentrl.actions import ToolCall
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.checker import check_env
from lit_agentrl.envs.games.guess_number import GuessNumber
from lit_agentrl.envs.games.sokoban import Sokoban
from lit_agentrl.envs.levels import make_level_key, play_agents
from lit_agentrl.envs.pocket.game import PocketWorld
from lit_agentrl.rollout.worlds.environments import Environments

TASK = Task("sokoban", partial(Sokoban), max_turns=30, max_actions_per_turn=5, max_actions=150)
FAULTY: Any = replace(TASK, faults={"rate": 0.4})


def play(task: Task, noise_seed: int, number: int = 12) -> list[Any]:
    env = task.make("train")
    env.reset(seed=3, options={"noise_seed": noise_seed})
    return [env.step("Left") for _ in range(number)]


def test_a_fault_does_not_reach_the_world_and_is_counted() -> None:
    steps = play(FAULTY, 5)
    faults = [step[4]["counts"]["faults"] for step in steps]
    assert {*faults} == {0.0, 1.0} and faults != [s[4]["counts"]["faults"] for s in play(FAULTY, 6)]
    assert json.dumps(steps) == json.dumps(play(FAULTY, 5))
    reached = [step for step, fault in zip(steps, faults, strict=True) if not fault]
    for mine, theirs in zip(reached, play(TASK, 5, len(reached)), strict=True):
        assert mine[:4] == theirs[:4] and mine[4]["reward_parts"] == theirs[4]["reward_parts"]
    failed = steps[faults.index(1.0, faults.index(0.0))]
    before = steps[faults.index(1.0, faults.index(0.0)) - 1]
    assert failed[:4] == (f"Error: the request failed. Try again.\n{before[0]}", 0.0, False, False)


def test_the_share_of_faults_is_their_rate() -> None:
    steps = play(replace(FAULTY, faults={"rate": 0.4, "message": None}), 1, 2000)
    share = sum(step[4]["counts"]["faults"] for step in steps) / 2000
    assert abs(share - 0.4) < 4 * (0.4 * 0.6 / 2000) ** 0.5
    assert not any("Error" in step[0] for step in steps)


def test_a_failed_tool_shows_the_message_alone_and_best_play_goes_on() -> None:
    task: Any = Task("pocket", partial(PocketWorld), max_turns=60, max_actions_per_turn=1, max_actions=60)
    env = replace(task, faults={"rate": 0.5, "message": "503"}).make("train")
    env.reset(seed=0)
    shown, ended = [], False
    while not ended:
        observation, reward, ended, _, info = env.step((env.optimal_actions(horizon=60) or [""])[0])
        shown.append(observation)
    assert reward == 1.0 and info["success"] and "503" in shown and shown[-1] == "The task is solved."
    assert info["counts"] == {"failed_calls": 0, "give_ups": 0, "faults": 0}
    assert str(ToolCall("finish", {}))  # the same tools as without faults
    assert env.tools() == PocketWorld().tools()


def test_what_the_world_refuses_never_fails() -> None:
    env = FAULTY.make("train")
    env.reset(seed=1, options={"noise_seed": 2})
    infos = [env.step("Jump")[4] for _ in range(20)]
    assert not any(info["action_is_valid"] or info["counts"]["faults"] for info in infos)


def test_states_branches_and_copies_go_on_alike() -> None:
    env = FAULTY.make("train")
    env.reset(seed=1, options={"noise_seed": 2})
    env.step("Up")
    state, copied = json.loads(json.dumps(env.state_dict())), pickle.loads(pickle.dumps(env))
    later = [env.step("Right") for _ in range(8)]
    env.load_state_dict(state)
    assert [env.step("Right") for _ in range(8)] == later == [copied.step("Right") for _ in range(8)]
    env.load_state_dict(state)
    env.rekey(9)
    assert [env.step("Right")[4]["counts"] for _ in range(8)] != [step[4]["counts"] for step in later]


def test_the_contract_and_the_levels() -> None:
    check_env(lambda split: replace(FAULTY, faults={"rate": 0.2}).make(split), episodes=2)
    assert make_level_key(FAULTY, "val") != make_level_key(TASK, "val")
    assert make_level_key(replace(TASK, faults=None), "val") == make_level_key(TASK, "val")
    guess = Task("guess", partial(GuessNumber), max_turns=9, max_actions_per_turn=1, max_actions=9)
    broken: Any = replace(guess, faults={"rate": 0.9})
    plain, hindered = (play_agents(task, "val", range(20), 0)["oracle"] for task in (guess, broken))
    assert sum(success for success, _ in hindered) < sum(success for success, _ in plain)


def test_an_episode_counts_its_faults() -> None:
    environments = Environments(FAULTY, {})
    environments.reset(0, "train", 3, 5)
    answer = environments.step(0, ["Left"] * 5)
    expected = [step[4]["counts"] for step in play(FAULTY, 5, 5)]
    assert [step.counts for step in answer.steps] == expected


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ({"rate": 1.0}, r"faults.rate=1.0 must be a number from 0 to below 1"),
        ({"message": " "}, r"faults.message"),
        ({"share": 0.1}, r"faults=.* must be null, or a mapping of some of rate, message"),
        (0.1, r"faults=0.1 must be null, or a mapping"),
    ],
)
def test_wrong_options_are_named(faults: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TASK, faults=faults)
