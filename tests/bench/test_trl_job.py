"""Ours and TRL's trainer are given the same tokens to read: what can be told of that without TRL."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lit_agentrl.engines.base import TurnResult
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.envs.base import Task
from lit_agentrl.episode import Episode
from lit_agentrl.models.policy import load_nano
from lit_agentrl.rollout.episode import EpisodeInPlay
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.worlds.environments import Environments
from lit_agentrl.text.chat import ChatRenderer
from scripts.bench import trl_sides, trl_trainer
from scripts.bench.lockstep import Meter

REPLIES = (
    "<think>box</think><answer>Up || Left</answer>",
    "nothing at all",  # invalid on both sides
    "<answer>Down</answer> Up # # O",  # runs on after its answer, as replies of fixed length do
)


def test_both_sides_read_the_same_tokens() -> None:
    games, tokenizer = trl_sides.trl_games, load_nano().tokenizer
    chat, turns, budget = ChatRenderer(tokenizer), 4, 4 * trl_sides.trl_games.ACTIONS_PER_TURN
    env = partial(games.EndlessSokoban, filler=3, **games.SOLUTIONS)
    task = Task(games.NAME, env, max_turns=turns, max_actions=budget)
    prompt = games.ConstantPrompt(style="compact")
    rules = Rules(tasks=[task], prompt=prompt, chat=chat, engine=NativeEngine)
    ours, seats = EpisodeInPlay(Episode(0, 0, 0, 0, games.NAME, 7), rules), Environments(task, {})
    ours.begin(seats.reset(0, "train", 7, 0))

    tokenizer.chat_template = trl_trainer.CHAT_TEMPLATE
    theirs = trl_trainer.Environment(turns, 3)
    messages: list[dict[str, Any]] = [{"role": "user", "content": theirs.reset(seed="7")}]
    render = partial(tokenizer.apply_chat_template, return_dict=False, add_generation_prompt=True)
    assert render(messages) == ours.episode.turns[0].prefix_tokens.tolist()
    for reply in REPLIES:
        tokens = tokenizer(reply, add_special_tokens=False)["input_ids"]
        actions = ours.receive_reply(TurnResult(0, tokens, [0.0] * len(tokens), [0.0] * len(tokens)))
        ours.continue_play(seats.step(0, actions))
        # as trl does: what a dialogue of two messages and the tool's grows by, after its last end marker
        call = {"type": "function", "function": {"name": "reply", "arguments": {}}}
        dummy = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        before = render(dummy, add_generation_prompt=False)
        after = render([*dummy, {"role": "tool", "name": "reply", "content": theirs.reply(reply)}])
        assert after[: len(before)] == before and before[-1] == tokenizer.eos_token_id
        assert after[len(before) :] == ours.episode.turns[-1].prefix_tokens.tolist()
    assert ours.episode.total_reward == pytest.approx(theirs._game.points)


def test_every_reply_is_one_call_of_the_tool() -> None:
    tokenizer = load_nano().tokenizer
    tokenizer.response_template = trl_trainer.RESPONSE_TEMPLATE
    for reply in REPLIES:
        tokens = tokenizer(reply, add_special_tokens=False)["input_ids"]
        prefix = tokenizer("<|user|>turns<|end|><|assistant|>", add_special_tokens=False)["input_ids"]
        (call,) = tokenizer.parse_response(tokens, prefix=prefix)["tool_calls"]
        assert call["function"] == {"name": "reply", "arguments": {"text": tokenizer.decode(tokens)}}


def test_unequal_work_is_refused() -> None:
    same = {"turns": 4.0, "action_tokens": 64.0, "read_tokens": 100.0}
    trl_sides.check_equal({"ours": same, "a core each": same, "trl": dict(same)})
    with pytest.raises(ValueError, match="read_tokens differ: 100 on our side, 99 on trl's"):
        trl_sides.check_equal({"ours": same, "trl": {**same, "read_tokens": 99.0}})


@pytest.mark.slow
def test_our_side_is_a_run_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had stopped to build once, and nothing that runs without TRL had noticed."""

    class Ended(Exception):
        pass

    class Counting(Meter):
        def __init__(self) -> None:
            self._noted: dict[str, float] = {}
            self.found: list[dict[str, float]] = []

        def mark_boundary(self) -> None:
            self.found.append(self._noted)
            self._noted = {}
            if len(self.found) == 2:
                raise Ended

    monkeypatch.chdir(tmp_path)
    job, meter = trl_sides.Job("nano", "cpu", turns=2, prompts=2, members=2, reply_tokens=3), Counting()
    with pytest.raises(Ended):
        trl_sides.train_ours(meter, job, "float32", ["~callbacks.progress", "trainer.devices=1"])
    (_, row) = meter.found
    assert (row["turns"], row["action_tokens"]) == (8, 24)
    assert row["rollout"] > 0


def test_a_core_each_has_equal_shares() -> None:
    found = trl_sides.give_each_a_core(16, 2)
    assert found == ["worker=process", "worker.count=2", "worker.share=8", "update.lanes=2"]
    with pytest.raises(ValueError, match="--prompts=16 to --threads=3"):
        trl_sides.give_each_a_core(16, 3)


def test_a_random_policy_says_nothing_that_is_no_call() -> None:
    """TRL ended episodes whose replies had no text: ids beyond the embedded vocabulary."""
    tokenizer = trl_sides.trl_games.policy("tiny-random").tokenizer
    tokenizer.response_template = trl_trainer.RESPONSE_TEMPLATE
    reply = list(range(len(load_nano().tokenizer), 2_048, 100))
    prefix = tokenizer("<|user|>turns<|end|><|assistant|>", add_special_tokens=False)["input_ids"]
    (call,) = tokenizer.parse_response(reply, prefix=prefix)["tool_calls"]
    assert call["function"]["arguments"]["text"].split() == [f"<{each}>" for each in reply]
