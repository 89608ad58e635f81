"""An episode on a terminal: what was seen, written and earned, within 80 columns, whatever the texts hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_agentrl.episode import EndReason, Episode, FinishReason, Turn
from lit_agentrl.evaluate.episode_view import render_episode, render_turn
from lit_agentrl.report.table import as_text
from lit_agentrl.text.dialects.answer import ANSWER

BOARD = "# # # #\n# P X O\n# # # #"


def turn(
    observation: str = BOARD, reply: str = "<think>push</think><answer>Right</answer>", **more: object
) -> Turn:
    return Turn(observation, [1], [0], reply_text=reply, reply_tokens=[2], **more)  # type: ignore[arg-type]


def episode(*turns: Turn, **more: object) -> Episode:
    return Episode(0, 3, 0, 0, "sokoban", 7, turns=list(turns), **more)  # type: ignore[arg-type]


def test_a_narrow_board_stands_beside_the_reply() -> None:
    shown = as_text(render_turn(turn(actions=["Right"], reward=1.9, is_valid=True), ANSWER))
    assert shown.splitlines() == [
        "# # # #   thinks  <think>push</think>",
        "# P X O   answers <answer>Right</answer>",
        "# # # #   plays   Right",
        "          earns   +1.9",
    ]


def test_a_wide_observation_stands_above_it() -> None:
    page = "A shop sells: " + ", ".join(f"item {i}" for i in range(20))
    shown = as_text(render_turn(turn(page), ANSWER)).splitlines()
    assert " ".join(shown[:-5]) == page and max(map(len, shown)) <= 80
    assert shown[-5] == "" and shown[-4].startswith("thinks  <think>")


def test_all_that_the_policy_reads_stands_above_the_reply() -> None:
    read = "<|system|>" + " rules" * 30 + "\n<|user|>\n# P X O <|assistant|>"
    shown = as_text(render_turn(turn(), ANSWER, lambda tokens: read if tokens == [1] else "")).splitlines()
    assert " ".join(shown[:-4]).split() == read.split() and max(map(len, shown)) <= 80
    assert shown[-4:-2] == ["thinks  <think>push</think>", "answers <answer>Right</answer>"]


def test_what_went_wrong_is_said() -> None:
    bad = turn(
        reply="no", finish=FinishReason.LENGTH, problem="no_answer", num_surplus_actions=2, shaped_reward=0.5
    )
    shown = as_text(
        render_episode(episode(bad, end=EndReason.ACTION_LIMIT, error="Boom: x"), ANSWER, "best weights")
    )
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert lines[:3] == [
        "sokoban: not solved in 1 turn, return +0, ended by action limit", "best weights", "error: Boom: x",
    ]  # fmt: skip
    for part in (
        "writes no",
        "cut off by length",
        "problem no answer",
        "nothing (and 2 beyond the limit)",
        "+0.5 for",
    ):
        assert part in " ".join(lines), part
    solved = as_text(render_episode(episode(turn(), turn(), success=True, end=EndReason.SUCCESS), ANSWER))
    assert solved.startswith("sokoban: solved in 2 turns") and "turn 2 ─" in solved


@pytest.mark.slow
@given(st.text(), st.text(), st.text())
def test_texts_are_data(seen: str, written: str, name: str) -> None:
    shown = as_text(render_episode(episode(turn(seen, written, actions=[name])), ANSWER, name))
    assert "\x1b" not in shown


@pytest.mark.parametrize("text", ["[bold]x[/bold]", "[/]", "\x1b[2J", "x" * 500, "界" * 100])
def test_markup_and_control_characters_change_nothing(text: str) -> None:
    shown = as_text(render_episode(episode(turn(text, text, actions=[text])), ANSWER))
    assert "\x1b" not in shown and max(map(len, shown.splitlines())) <= 80
    assert text[:3].replace("\x1b", "\\x1b") in shown
