"""Retry: what the policy hears after a try that failed, when an episode ends, and what it is then worth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lit_agentrl.batch import StepBatch
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.hosting import Hosting
from lit_agentrl.episode import EndReason, Episode, Turn
from lit_agentrl.experimental.retry import Retry, Tries
from lit_agentrl.rl.policy import filters
from lit_agentrl.rollout.collector import Collector
from lit_agentrl.rollout.settings import RolloutSettings
from lit_agentrl.rollout.structures.base import Structure
from lit_agentrl.rollout.structures.refill import Refill
from tests.build.test_structure import built
from tests.rollout.conftest import Count, reply
from tests.rollout.test_collector import WIN, Player

HALF, FALL, TALK = reply("Up", "Up"), reply("Up", "Down"), "<think> hm </think>"


def play(
    structure: Structure, script: Callable[..., Any], where: Any = "inline"
) -> tuple[StepBatch, dict[str, float], Player]:
    player = Player(script)
    task = Task("count", Count, max_turns=1, max_actions=3, max_actions_per_turn=3, hosting=Hosting(where))
    object.__setattr__(player.rules, "tasks", [task])
    settings = RolloutSettings(prompts=1, members=2, max_context_tokens=300, max_failed_share=1.0)
    made = Collector(
        player.rules, settings, structure=structure, select_groups=filters.keep_all,
        further_prompts=lambda iteration, wave: StepBatch(iteration, [], [], [], wave=wave),
    )  # fmt: skip
    batch = StepBatch(0, seed_P=[7], task_P=[0], group_P=[0])
    return batch, made.collect(batch, player, device=torch.device("cpu")), player


@pytest.mark.parametrize("where", ["inline", "thread"])
def test_each_try_begins_the_same_instance_anew(where: Any) -> None:
    tries = [HALF, FALL, TALK, WIN]  # not far enough, over, no answer, solved
    batch, row, _ = play(Retry(tries=5), lambda spec, k: tries[k] if spec.member else WIN, where)
    once, often = batch.episodes
    assert (len(once.turns), once.end, len(often.turns), often.end) == (1, 0, 4, EndReason.SUCCESS)
    assert [turn.message for turn in often.turns] == ["", *["Incorrect. Please think again."] * 3]
    assert [turn.observation for turn in often.turns] == ["P 0"] * 4  # whatever the try before it did
    assert [turn.reward for turn in often.turns] == [2.0, -4.0, -0.1, 13.0]
    assert "turns 5 actions 15" in often.opening[0]["content"]
    assert batch.trajectories is not None and batch.trajectories.num_rows == 2  # one row an episode
    assert (row["structure/tries"], row["structure/first_success"], row["rollout/success"]) == (2.5, 0.5, 1.0)


def test_the_last_try_ends_it() -> None:
    batch, _, _ = play(Retry(tries=2), lambda spec, k: FALL if spec.member else HALF)
    ends = [(len(episode.turns), episode.end) for episode in batch.episodes]
    assert ends == [(2, EndReason.TURN_LIMIT), (2, EndReason.FAILURE)]


def test_where_the_first_try_solves_it_only_the_budget_told_is_another() -> None:
    one, other = (
        play(structure, lambda spec, k: WIN)[0].trajectories for structure in (Refill(), Retry(tries=2))
    )
    assert one is not None and other is not None
    differs = (one.tokens_BT != other.tokens_BT).any(0)
    assert int(differs.sum()) == 2  # turns and actions
    assert torch.equal(one.reward_BT, other.reward_BT) and torch.equal(one.is_action_BT, other.is_action_BT)


def answered(*answers: str, success: bool) -> Episode:
    turns = [
        Turn("", [1], [0], reply_tokens=[2], is_valid=bool(answer), actions=[answer] if answer else [])
        for answer in answers
    ]
    return Episode(0, 0, 0, 0, "qa", 0, turns=turns, success=success)


@pytest.mark.parametrize(
    ("answers", "success", "points"),
    [
        (("a", "b", "a"), True, 0.5**2 - 0.5 * (1 - 2 / 3)),  # the specification's worked number
        (("a",), True, 1.0),
        (("a", "a", "a", "a", "a"), False, -0.4),
        (("", "a", ""), False, 0.0),  # of one valid answer none repeats another
        (("", ""), False, 0.0),
        (("", "a", "b"), True, 0.5),  # an invalid reply is no try
    ],
)
def test_points_of_tries(answers: tuple[str, ...], success: bool, points: float) -> None:
    episode = answered(*answers, success=success)
    [row] = Tries().apply([[0.0] * len(answers)], [episode], iteration=0)
    assert row[:-1] == [0.0] * (len(answers) - 1) and row[-1] == pytest.approx(points, abs=1e-12)


def test_invalid_replies_may_count_as_tries() -> None:
    [row] = Tries(counts="all").apply([[0.0] * 3], [answered("", "a", "b", success=True)], iteration=0)
    assert row[-1] == 0.25


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("env=sokoban",),
            r"algo\.structure=Retry: game sokoban: it has max_turns=5, .* set env\.max_turns=1",
        ),
        (
            ("context=window",),
            r"algo\.structure=Retry needs .* keeps all earlier turns.* given by context=Window; set context=full",
        ),
        (("algo.structure.tries=1",), "tries=1 must be a whole number >= 2"),
        (("algo.structure.feedback=' '",), "feedback=' ' must be a text that is not blank"),
        (("reward.tries.discount=0",), "discount=0 must be in"),
        (("reward.tries.repeats=-1",), "repeats=-1 must be finite and >= 0"),
    ],
)
def test_what_does_not_fit(options: tuple[str, ...], message: str) -> None:
    with pytest.raises(Exception, match=message):
        built("algo=ufo", *options)
