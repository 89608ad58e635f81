"""Continuations of the turns of an episode: who goes on from where, and the labels that come of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from lit_agentrl.episode import EndReason, Episode, Turn
from lit_agentrl.rollout.branching import Branch
from lit_agentrl.rollout.structures.base import Structure
from lit_agentrl.rollout.structures.continued import Continued, shares
from tests.rollout.test_branching import play


def over(
    member: int, turns: int, *, success: bool = False, failed: bool = False, at: int | None = None
) -> Episode:
    """An episode of so many replies, which goes on from turn ``at`` of member 0."""
    written = [Turn("", np.zeros(1), np.zeros(1), reply_tokens=np.full(2, 7)) for _ in range(turns)]
    end = EndReason.ERROR if failed else EndReason.SUCCESS if success else EndReason.FAILURE
    branches = [] if at is None else [(0, at)]
    return Episode(0, 0, member, 0, "", 0, end=end, success=success, turns=written, branches=branches)


def test_they_are_spread_evenly_over_the_turns() -> None:
    growth = Continued(5).group(range(12), lambda *_: 0.0, 1)
    assert growth.first() == [Branch(0), Branch(6)]
    assert growth.after(over(0, 2), is_over=False) == ()
    assert growth.after(over(0, 3), is_over=True) == [
        Branch(1, 0, 1), Branch(2, 0, 2), Branch(3, 0, 1), Branch(4, 0, 2), Branch(5, 0, 1)
    ]  # fmt: skip
    assert growth.after(over(3, 3), is_over=True) == (), "nobody goes on from a continuation"
    alone = [Branch(member) for member in range(7, 12)]
    assert growth.after(over(6, 1), is_over=True) == alone, "from nowhere else, since each must begin"
    after = Continued(1).group(range(2), lambda *_: 0.0, 1).after(over(0, 4, failed=True), is_over=True)
    assert after == [Branch(1)], "nor from an episode whose game failed"


def test_labels_are_shares_of_what_is_solved() -> None:
    """After turn 1 one of two is solved, after turn 2 none of one that did not fail; the episode itself was solved."""
    first = over(0, 3, success=True)
    others = [
        over(1, 4, success=True, at=1),
        over(2, 3, at=2),
        over(3, 2, at=1),
        over(4, 3, failed=True, at=2),
    ]
    assert shares([first, *others], 4) == [(first, [0.5, 0.0, 1.0])]
    single = over(0, 1)
    assert shares([single, over(1, 3, success=True)], 1) == [(single, [0.0])], "of one turn: its own success"
    assert shares([first, over(1, 3, at=1)], 1) == [], "of its second turn nothing is known"
    assert shares([over(0, 3, failed=True), over(1, 3)], 1) == []


@dataclass
class Played(Structure):
    number: int

    def branching(self, members: int) -> Any:
        return Continued(self.number)


@pytest.mark.slow
@pytest.mark.sweep
def test_a_continuation_begins_in_the_state_and_after_the_tokens_of_its_turn() -> None:
    episodes = play(Played(6), members=7)
    goes_on = [e for e in episodes if e.parent is not None]
    assert goes_on and {e.member % 7 for e in goes_on} <= {*range(1, 7)}
    for each in goes_on:
        first = next(e for e in episodes if e.group == each.group and e.member == each.parent)
        for one, other in zip(each.turns[: each.branch_turn], first.turns, strict=False):
            assert one.reply_tokens.tolist() == other.reply_tokens.tolist()
        here, there = each.turns[each.branch_turn], first.turns[each.branch_turn]
        assert (here.state_key, here.observation) == (there.state_key, there.observation)
    for _, labels in shares(episodes, 6):
        assert all(0 <= label <= 1 for label in labels)
    assert [e.turns[0].reply_tokens.tolist() for e in episodes if not e.member] == [
        e.turns[0].reply_tokens.tolist() for e in play(None, members=1)
    ], "what is continued is played as without continuations"
