"""Branches at uncertain turns: where, how many, and what that costs."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from lit_agentrl import seeds
from lit_agentrl.experimental.branch import EntropyBranch
from lit_agentrl.rollout.branching import Branch
from lit_agentrl.rollout.structures.base import Structure
from tests.rollout.test_branching import PLAYED, check_branches, episode, group, play, told

OFTEN = EntropyBranch(initial=5, base=0.7, slope=5.0, tokens=4, copies=2)


@pytest.mark.slow
@pytest.mark.sweep
def test_a_branch_costs_its_own_tokens_and_is_an_episode_like_any_other() -> None:
    check_branches(PLAYED(OFTEN))


@pytest.mark.slow
@pytest.mark.sweep
def test_what_branches_does_not_depend_on_room() -> None:
    # most parents have left the engine, and are read again
    assert told(play(OFTEN, slots=3)) == told(PLAYED(OFTEN))


@pytest.mark.slow
@pytest.mark.parametrize("structure", [EntropyBranch(base=0.0, slope=0.0), EntropyBranch(initial=10)])
def test_without_branches_episodes_are_the_independent_ones_to_the_bit(structure: Structure) -> None:
    assert play(structure) == PLAYED(None)


def test_the_chance_to_branch_is_that_of_the_paper() -> None:
    """``0.5 + 0.2 (H_k - H_0) / log V`` by hand: log V = 2, changes of 1 and -3 nats."""
    asked: list[tuple[int, ...]] = []
    growth = group(EntropyBranch(initial=2), 8, lambda *at: asked.append(at) or 0.55, round(np.exp(2)))
    log_v = np.log(round(np.exp(2)))
    assert growth.first() == [Branch(0), Branch(1)]
    assert growth.after(episode(0, [1.0, 1.0 + log_v / 2]), is_over=False) == []  # the other has not written
    # 0.6 > 0.55, and 0.2 < 0.55
    assert growth.after(episode(1, [2.0, 2.0 - 1.5 * log_v]), is_over=False) == [Branch(2, 0, 1)]
    assert asked == [(0, 1), (1, 1)]
    # the branch has yet to write its own reply of that turn, at which it cannot branch again
    assert growth.after(episode(0, [1.0, 1.5, 9.0]), is_over=True) == []
    assert growth.after(episode(1, [2.0, 0.0]), is_over=True) == []
    assert growth.after(episode(2, [1.0, 9.0], (0, 1)), is_over=True) == [Branch(3, 0, 2)]
    # below the budget when all are over: the rest begins at the opening
    assert growth.after(episode(3, [1.0, 1.5, 1.0], (0, 2)), is_over=True) == [Branch(m) for m in range(4, 8)]


def test_a_threshold_decides_without_chance_and_copies_end_at_the_budget() -> None:
    growth = group(
        EntropyBranch(initial=1, base=0.0, slope=1.0, threshold=0.5, copies=5, entropy="sum"), 4, vocabulary=3
    )
    growth.first()
    assert growth.after(episode(0, [0.0, 0.1]), is_over=False) == []
    assert growth.after(episode(0, [0.0, 0.1, 0.5]), is_over=False) == [Branch(m, 0, 2) for m in (1, 2, 3)]


def test_branches_do_not_depend_on_who_is_quicker() -> None:
    """A game of chance in which each member's replies are given, told in many orders."""

    def run(order: random.Random) -> set[Branch]:
        growth = group(EntropyBranch(initial=3), 9, lambda *at: seeds.draw_uniform(1, "draw", *at), 4)
        found = set(under_way := list(growth.first()))
        lineage: dict[int, list[tuple[int, int]]] = {branch.member: [] for branch in under_way}
        written = {branch.member: branch.turn for branch in under_way}
        while under_way:
            branch = order.choice(under_way)
            written[branch.member] += 1
            is_over = written[branch.member] >= 2 + branch.member % 4
            heads = [seeds.draw_uniform(2, "head", branch.member, k) for k in range(written[branch.member])]
            if is_over:
                under_way.remove(branch)
            for new in growth.after(episode(branch.member, heads, *lineage[branch.member]), is_over=is_over):
                under_way.append(new)
                found.add(new)
                lineage[new.member] = [] if new.parent is None else [(new.parent, new.turn)]
                written[new.member] = new.turn
        return found

    first = run(random.Random(0))
    assert len(first) == 9 and any(branch.parent is not None for branch in first)
    assert all(run(random.Random(seed)) == first for seed in range(1, 20))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EntropyBranch(initial=9).branching(8), r"^initial=9 must be at most rollout\.members=8"),
        (lambda: EntropyBranch(entropy="max"), r"^entropy=max must be"),
        (lambda: EntropyBranch(base=float("nan")), r"^base=nan must be"),
    ],
)
def test_options_out_of_range(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
