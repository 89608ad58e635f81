"""Summaries: when one is asked for, what the next row shows, what the loss has, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lit_agentrl.batch import LEFT_OUT, StepBatch
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.checker import check_env
from lit_agentrl.episode import PLANNER, Segment
from lit_agentrl.experimental.summaries.summary import Summarised, Summary, count_open_row_tokens
from lit_agentrl.experimental.summaries.t_maze import TMaze
from lit_agentrl.rollout.evaluation import Evaluation
from lit_agentrl.text.chat import ChatRenderer
from tests.build.test_structure import built
from tests.conftest import nano_tokenizer
from tests.rollout.conftest import reply
from tests.rollout.test_collector import Player, collect_group

NOTES = "<think> wall </think> <answer> Right </answer>"


def make_player(script: Any, says: str = "") -> Player:
    player = Player(script)
    game = TMaze if not says else type("Says", (TMaze,), {"_observe": lambda self: says})
    object.__setattr__(player.rules, "tasks", [Task("t_maze", game, max_turns=8, max_actions=8)])
    object.__setattr__(player.rules, "context", Summarised(intro=None))
    return player


def play(structure: Summary, script: Any = None, says: str = "") -> tuple[StepBatch, dict[str, float]]:
    """Play a group of two by a script that gets the number of the reply; by default it goes ahead, then Left."""
    player = make_player(script or (lambda spec, k: NOTES if k in (2, 5) else reply("Up")), says)
    return collect_group(player, structure)


def test_the_next_row_begins_with_the_summary_and_forgets_the_rest() -> None:
    batch, row = play(Summary(tokens=40))
    episode = batch.episodes[0]
    written = [number for number, turn in enumerate(episode.turns) if turn.player == PLANNER]
    assert written[0] == 2 and written[1] == 5
    assert [number for number, turn in enumerate(episode.turns) if turn.starts_row] == [0, 3, 6, 9][
        : len(written) + 1
    ]
    assert all(episode.turns[number].actions == [] for number in written)
    asked, after = episode.turns[2], episode.turns[3]
    assert asked.message == "notes ?" and (asked.is_valid, asked.reward) == (True, 0.0)
    # the thought of the summary is left out; the current message follows
    chat = ChatRenderer(nano_tokenizer())
    expected = f"t_maze\n<answer> Right </answer>\n{after.message}"
    assert chat.render_opening([{"role": "user", "content": expected}]).tokens == after.prefix_tokens.tolist()
    assert set(after.prefix_segments.tolist()) <= {Segment.PROMPT, Segment.FORCED}
    assert count_open_row_tokens(episode.turns[:2]) >= 40 > count_open_row_tokens(episode.turns[:1])
    assert row["structure/summaries"] == len(written)
    assert row["structure/summary_tokens"] == len(asked.reply_tokens)
    rows = batch.trajectories
    assert rows is not None and len(rows.group_B) == 2 * (len(written) + 1)


def test_rows_hold_what_the_engine_read() -> None:
    batch, _ = play(Summary(tokens=40))
    rows, episode = batch.trajectories, batch.episodes[0]
    assert rows is not None
    first = [
        token
        for turn in episode.turns[:3]
        for token in (*turn.prefix_tokens.tolist(), *turn.reply_tokens.tolist())
    ]
    assert rows.tokens_BT[0, : len(first)].tolist() == first


def test_a_summary_uses_no_turn_of_the_budget_and_evaluations_have_them_too() -> None:
    played = Evaluation("val", SamplingParams(), plan=Summary(tokens=40).plan_evaluation)
    batch = StepBatch(0, [7], [0], [0])
    player = make_player(lambda spec, k: NOTES if k in (2, 5, 8) else reply("Up"))
    played.collect(batch, lambda wave, version: player(wave), 0)
    turns = batch.episodes[0].turns
    assert sum(turn.player != PLANNER for turn in turns) == 8 and turns[2].player == PLANNER


def test_the_loss_may_leave_summaries_out() -> None:
    batch, _ = play(Summary(tokens=40, train_summaries=False))
    rows, left_out_BT = batch.trajectories, batch.columns[LEFT_OUT]
    assert rows is not None
    assert torch.equal(left_out_BT, rows.is_action_BT & rows.is_plan_BT) and left_out_BT.any()
    batch, _ = play(Summary(tokens=40))
    assert LEFT_OUT not in batch.columns


def test_a_game_that_spells_the_request_is_answered_by_an_action() -> None:
    batch, _ = play(Summary(tokens=350), lambda spec, k: reply("Up"), says="notes ?")
    assert {turn.player for turn in batch.episodes[0].turns} == {""}


@pytest.mark.slow
def test_one_part_without_the_other_is_refused() -> None:
    with pytest.raises(ValueError, match="needs turns that write summaries.*set algo/structure=summary"):
        built("context=summary")
    with pytest.raises(
        ValueError, match="needs a context that goes on from a summary.*set .*context=summary"
    ):
        built("algo/structure=summary")
    assert isinstance(built("algo/structure=summary", "context=summary").structure, Summary)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Summary(tokens=0), "tokens=0"),
        (lambda: Summary(train_summaries=1), "train_summaries=1"),  # type: ignore[arg-type]
        (lambda: Summarised(intro=3), "intro=3"),  # type: ignore[arg-type]
        (lambda: TMaze(length=0), "length=0"),
    ],
)
def test_wrong_values_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_the_maze_is_a_game_whose_sign_decides() -> None:
    check_env(lambda split: TMaze(split=split))
    env = TMaze(length=3)
    observation, _ = env.reset(seed=1)
    plan = env.optimal_actions(horizon=9)
    assert plan is not None and plan[:3] == ["Up"] * 3 and observation == f"go {plan[3]}"
    seen = [env.step(action)[0] for action in plan[:3]]
    assert seen[2] == "Left or Right ?" and not set(seen[:2]) & {"Left", "Right"}
    assert env.step("Up")[1:3] == (0.0, False)  # nothing happens at the end
    wrong = TMaze(length=3)
    wrong.reset(seed=1)
    for _ in range(3):
        wrong.step("Up")
    other = {"Left": "Right", "Right": "Left"}[plan[3]]
    assert wrong.step(other)[1:3] == (0.0, True) and env.step(plan[3])[1:3] == (1.0, True)
