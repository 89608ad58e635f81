"""What replies tell of a collapse, worked out by hand."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from lit_agentrl.distributed import get_rank, get_world_size
from lit_agentrl.episode import EndReason, Episode, Segment, Turn
from lit_agentrl.monitor.rules import Rule
from lit_agentrl.monitor.signals import measure_replies
from tests.strategies.processes import on_ranks


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
    found = measure_replies([episode(group, member, [1, 2, 3]) for group in range(2) for member in range(2)])
    assert found == pytest.approx({
        "collapse/entropy_think": 0.5, "collapse/entropy_answer": 0.1, "collapse/distinct_within": 0.5,
        "collapse/similarity_within": 1.0, "collapse/similarity_across": 1.0, "collapse/template_share": 1.0,
    })  # fmt: skip


def test_one_phrase_for_each_prompt_is_alike_within_and_not_across() -> None:
    found = measure_replies(
        [episode(group, member, [group, 10 + group, 20 + group]) for group in range(4) for member in range(2)]
    )
    assert found["collapse/similarity_within"] == 1 and found["collapse/similarity_across"] == 0
    assert found["collapse/template_share"] == 0.25


def test_shares_are_of_distinct_pairs() -> None:
    found = measure_replies([episode(0, 0, [1, 2, 3, 4]), episode(0, 1, [1, 2, 3, 5])])
    assert found["collapse/similarity_within"] == pytest.approx(2 / 4)
    assert found["collapse/distinct_within"] == pytest.approx(4 / 6)
    assert "collapse/similarity_across" not in found


def test_the_order_of_play_and_failures_change_nothing() -> None:
    played = [
        episode(group, member, [group, member, 3], [4, member]) for group in range(3) for member in range(3)
    ]
    lost = episode(3, 0, [9, 9, 9], end=EndReason.ERROR)
    assert measure_replies(played[::-1]) == measure_replies([*played, lost])
    assert measure_replies([lost]) == {}


def watched() -> tuple[list[dict[str, float]], list[int]]:
    """Four iterations of replies that become alike, as this rank sees its groups of them; which had an alarm."""
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group(
            "gloo", rank=int(os.environ["LOCAL_RANK"]), world_size=int(os.environ["WORLD_SIZE"])
        )
    rule = Rule("collapse/distinct_within", below=0.95, reference="first", window=1, patience=2)
    rows: list[dict[str, float]] = []
    alarms: list[int] = []
    for iteration in range(4):
        kinds = (
            4 - iteration
        )  # of replies in the even groups; the odd ones, of the other rank, stay as they are
        played = [
            episode(group, member, [group, 7, 20 + (member % kinds if group % 2 == 0 else member)])
            for group in range(4)
            for member in range(4)
        ]
        rows.append(measure_replies([each for each in played if each.group % get_world_size() == get_rank()]))
        if rule.look("distinct", rows[-1]) is not None:
            alarms.append(iteration)
    return rows, alarms


@pytest.mark.slow
@pytest.mark.sweep
def test_ranks_that_see_other_groups_sound_the_same_alarm(tmp_path: Path) -> None:
    """A rank whose own replies are fine must stop or roll back with the others."""
    alone, alarms = watched()
    assert alarms == [2]
    for rows, found in on_ranks(watched, tmp_path):
        assert found == alarms
        for row, whole in zip(rows, alone, strict=True):  # `across` compares neighbours that a rank has
            assert {k: v for k, v in row.items() if "across" not in k} == pytest.approx(
                {k: v for k, v in whole.items() if "across" not in k}
            )
