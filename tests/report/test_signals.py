"""What replies tell of a collapse, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from lit_agentrl.episode import EndReason, Episode, Segment, Turn
from lit_agentrl.report.signals import of_replies


def episode(group: int, member: int, *replies: list[int], end: EndReason = EndReason.SUCCESS) -> Episode:
    """The first two tokens of a reply are its thought."""
    turns = []
    for tokens in replies:
        segments: Any = [Segment.THINK if number < 2 else Segment.ANSWER for number in range(len(tokens))]
        entropies: Any = [0.5 if number < 2 else 0.1 for number in range(len(tokens))]
        turns.append(
            Turn("", [1], [0], reply_tokens=tokens, reply_segments=segments, reply_entropies=entropies)
        )  # type: ignore[arg-type]
    return Episode(
        iteration=0, group=group, member=member, task=0, task_name="x", instance_seed=0, turns=turns, end=end
    )


def test_replies_that_are_all_alike() -> None:
    found = of_replies([episode(group, member, [1, 2, 3]) for group in range(2) for member in range(2)])
    assert found == pytest.approx({
        "collapse/entropy_think": 0.5, "collapse/entropy_answer": 0.1, "collapse/distinct_within": 0.5,
        "collapse/similarity_within": 1.0, "collapse/similarity_across": 1.0, "collapse/template_share": 1.0,
    })  # fmt: skip


def test_one_phrase_for_each_prompt_is_alike_within_and_not_across() -> None:
    found = of_replies(
        [episode(group, member, [group, 10 + group, 20 + group]) for group in range(4) for member in range(2)]
    )
    assert found["collapse/similarity_within"] == 1 and found["collapse/similarity_across"] == 0
    assert found["collapse/template_share"] == 0.25


def test_shares_are_of_distinct_pairs() -> None:
    found = of_replies([episode(0, 0, [1, 2, 3, 4]), episode(0, 1, [1, 2, 3, 5])])
    assert found["collapse/similarity_within"] == pytest.approx(2 / 4)
    assert found["collapse/distinct_within"] == pytest.approx(4 / 6)
    assert "collapse/similarity_across" not in found


def test_the_order_of_play_and_failures_change_nothing() -> None:
    played = [
        episode(group, member, [group, member, 3], [4, member]) for group in range(3) for member in range(3)
    ]
    lost = episode(3, 0, [9, 9, 9], end=EndReason.ERROR)
    assert of_replies(played[::-1]) == of_replies([*played, lost])
    assert of_replies([lost]) == {}
