"""Tree search over turns: which state is expanded next, and what the tree says of its turns."""

from __future__ import annotations

import itertools
import math
import pickle
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from lit_agentrl.batch import StepBatch
from lit_agentrl.episode import EndReason, Episode, Turn
from lit_agentrl.experimental.mcts import Mcts, Node, Search
from lit_agentrl.rollout.branching import Branch
from lit_agentrl.rollout.pack import pack
from lit_agentrl.rollout.structures.base import Progress
from lit_agentrl.rollout.structures.hook import Training
from lit_agentrl.update.scoring import list_turn_values as critic_values
from tests.rollout.test_branching import PLAYED, group, play, told

SEARCH = Mcts()
FOUND = cache(lambda: play(SEARCH, members=6))


def over(member: int, score: float, turns: int, *branches: tuple[int, int], failed: bool = False) -> Episode:
    """An episode of so many replies; what it took over is not written here."""
    written = [Turn("", np.zeros(1), np.zeros(1), reply_tokens=np.full(2, member)) for _ in range(turns)]
    written[-1].reward = score
    end = EndReason.ERROR if failed else EndReason.FAILURE
    return Episode(0, 0, member, 0, "", 0, end=end, turns=written, branches=list(branches))


@pytest.mark.parametrize(("constant", "fourth"), [(1.0, Branch(3, 0, 2)), (5.0, Branch(3, 1, 1))])
def test_a_search_by_hand(constant: float, fourth: Branch) -> None:
    """Scores 4, 0, 2.

    Before member 3: a (member 0) has Q = (3 - 0) / 4 and N = 2, b (member 1) Q = 0 and N = 1, of 3: with c = 1
    0.75 + 0.741 > 1.048, with c = 5 0.75 + 3.706 < 5.241.
    """
    growth = group(Mcts(constant=constant), 6)
    assert growth.first() == [Branch(0, tree=0)]
    assert growth.after(over(0, 4.0, 3), is_over=False) == ()
    assert growth.after(over(0, 4.0, 3), is_over=True) == [Branch(1, tree=0)]
    # both children of the opening are there: the first is worth more, and has one reply after it
    assert growth.after(over(1, 0.0, 2), is_over=True) == [Branch(2, 0, 1)]
    assert growth.after(over(2, 2.0, 3, (0, 1)), is_over=True) == [fourth]


def test_the_bound_is_that_of_uct() -> None:
    rule = Search(2.0, 2, None, 1, "return")
    node = Node(1, 0, visits=3, scores=[1.0, 2.0, 6.0])
    assert rule.compute_bound(node, 8, low=1.0, high=9.0) == pytest.approx(
        2 / 8 + 2 * math.sqrt(math.log(8) / 3)
    )
    assert rule.compute_bound(node, 8, low=3.0, high=3.0) == pytest.approx(2 * math.sqrt(math.log(8) / 3))


def search(structure: Mcts, members: int, tell: Any) -> list[Branch]:
    """All that begin; ``tell(branch)`` is how each goes."""
    growth = group(structure, members)
    found, waiting = [], list(growth.first())
    while waiting:
        found += waiting
        waiting = list(itertools.chain(*[growth.after(tell(each), is_over=True) for each in waiting]))
    return found


def test_of_equal_ones_the_first_is_taken() -> None:
    lineage: dict[int, list[tuple[int, int]]] = {}

    def tell(branch: Branch) -> Episode:
        above = [] if branch.parent is None else [*lineage[branch.parent], (branch.parent, branch.turn)]
        lineage[branch.member] = [each for k, each in enumerate(above) if k == 0 or each[1] > above[k - 1][1]]
        return over(branch.member, 1.0, 3, *lineage[branch.member])

    # two below the opening, then below each of these in turn, the first of them first
    found = [(each.parent, each.turn) for each in search(Mcts(constant=0.0), 7, tell)]
    assert found[:5] == [(None, 0), (None, 0), (0, 1), (0, 2), (2, 2)] and found[5:] == [(1, 1), (1, 2)]


def test_where_nothing_can_be_expanded_episodes_begin_at_the_opening() -> None:
    found = search(Mcts(), 5, lambda branch: over(branch.member, 0.0, 1))
    assert found == [Branch(0, tree=0), *(Branch(member, tree=0) for member in range(1, 5))]
    shallow = search(Mcts(depth=1), 8, lambda branch: over(branch.member, 0.0, 4, *(
        [] if branch.parent is None else [(branch.parent, branch.turn)])))  # fmt: skip
    # each further episode from there can be expanded once
    assert [(each.parent, each.turn) for each in shallow] == [
        (None, 0), (None, 0), (0, 1), (1, 1), (None, 0), (4, 1), (None, 0), (6, 1),
    ]  # fmt: skip


def test_several_at_once_count_before_they_are_over_and_may_end_in_any_order() -> None:
    for order in ((0, 1), (1, 0)):
        growth = group(Mcts(together=2), 6)
        assert growth.first() == [Branch(0, tree=0), Branch(1, tree=0)]
        ends = {0: over(0, 4.0, 3), 1: over(1, 0.0, 2)}
        assert growth.after(ends[order[0]], is_over=True) == ()
        # the place below the first reply is taken at once: the next one is sampled further down
        assert growth.after(ends[order[1]], is_over=True) == [Branch(2, 0, 1), Branch(3, 0, 2)]


def test_one_that_fails_leaves_no_trace() -> None:
    growth = group(Mcts(), 4)
    growth.first()
    assert growth.after(over(0, 9.0, 3, failed=True), is_over=True) == [Branch(1, tree=0)]
    assert growth.after(over(1, 1.0, 3), is_over=True) == [Branch(2, tree=0)]
    assert growth.after(over(2, 0.0, 3), is_over=True) == [Branch(3, 1, 1)]


def test_success_may_be_the_score() -> None:
    solved = over(0, -1.0, 2)
    solved.success = True
    assert [Search(1.0, 2, None, 1, kind).get_score(solved) for kind in ("return", "success")] == [-1.0, 1.0]


VALUES = {0: [9.0, 2.0, 6.0], 1: [9.0, 3.0], 2: [9.0, 2.0, -8.0, 1.0]}  # V of each state, by member


def test_values_of_states_by_hand() -> None:
    """z = 5, of which 1 point for the first reply and 4 for the last."""
    episode = over(0, 4.0, 3)
    episode.turns[0].reward = 1.0
    half = Search(1.0, 2, None, 1, "return", 0.5, lambda each: VALUES[each.member])
    assert half.evaluate_path(episode, 3) == [(5 + 0 + 9) / 2, (5 + 1 + 2) / 2, (5 + 1 + 6) / 2, 5.0]
    assert replace(half, critic_share=1.0).evaluate_path(episode, 3) == [9.0, 3.0, 7.0, 5.0]
    assert replace(half, critic_share=0.0, values=None).evaluate_path(episode, 3) == [5.0] * 4


def test_a_search_whose_values_are_a_critics() -> None:
    """Scores 4 and 0 speak for the reply of member 0, values 2 and 3 for that of member 1; as in the search above."""
    structure = Mcts(constant=1.0, critic_share=1.0)
    structure.setup(Training(lambda episode: VALUES[episode.member]))
    rule = structure.branching(6)
    assert rule is not None
    growth: Any = rule.group(list(range(6)), lambda *address: 0.0, 64)
    growth.first()
    growth.after(over(0, 4.0, 3), is_over=True)
    assert growth.after(over(1, 0.0, 2), is_over=True) == [Branch(2, 1, 1)]
    growth.after(over(2, 7.0, 4, (1, 1)), is_over=True)
    # the state that is new with an episode counts above it, the others in their own place; an end has the score
    told, node = [], growth._root
    for child in (-1, -1, -1, -1):
        node = node.children[child]
        told.append(node.scores)
    assert growth._root.scores == [2.0, 3.0, -8.0] and told == [[3.0, -8.0], [-8.0], [1.0], [7.0]]
    assert [child.scores for child in growth._root.children] == [[2.0], [3.0, -8.0]]


def test_the_rule_of_a_search_without_a_critic_travels_to_another_process() -> None:
    structure = Mcts()
    rule = structure.branching(6)
    structure.setup(Training(lambda episode: []))
    assert pickle.loads(pickle.dumps(structure.branching(6))) == rule


@pytest.mark.slow
def test_values_are_those_before_the_first_token_of_each_turn() -> None:
    episode = max(FOUND(), key=lambda each: len(each.turns))
    rows = pack([episode]).to_dict()
    place_BT = torch.arange(rows["tokens_BT"].numel()).view_as(rows["tokens_BT"]).double()
    lengths = [len(tokens) for turn in episode.turns for tokens in (turn.prefix_tokens, turn.reply_tokens)]
    starts = [sum(lengths[: 2 * turn + 1]) for turn in range(len(episode.turns))]
    assert critic_values(lambda tensors: place_BT, rows) == starts and len(starts) > 1


@pytest.mark.slow
@pytest.mark.sweep
def test_without_expansion_episodes_are_the_independent_ones_to_the_bit() -> None:
    assert play(Mcts(depth=0)) == PLAYED(None)


def test_where_all_begin_at_the_opening_nobody_waits() -> None:
    assert Mcts(depth=0).branching(8) is None and Mcts(width=8).branching(8) is None
    assert Mcts(width=7).branching(8) is not None


@pytest.mark.slow
def test_a_recorded_group_is_searched_again_in_the_same_way() -> None:
    for number in range(2):
        played = [e for e in FOUND() if e.group == number]
        assert not any(e.failed for e in played) and {e.tree_member for e in played} == {0}
        found = search(SEARCH, 6, lambda branch: played[branch.member])  # noqa: B023
        assert [(each.parent, each.turn) for each in found] == [(e.parent, e.branch_turn) for e in played]
        assert any(e.branch_turn for e in played)
        assert sum(e.num_new for e in played) == sum(e.num_prefilled + e.num_shared for e in played)


@pytest.mark.slow
@pytest.mark.sweep
def test_what_is_searched_does_not_depend_on_room() -> None:
    assert told(play(SEARCH, members=6, slots=3)) == told(FOUND())


def test_what_is_measured() -> None:
    episodes = FOUND()
    progress = Progress(0, 1, 6, 7, episodes, episodes, False, lambda wave: StepBatch(0, [], [], []))
    (solved, groups), (turns, leaves) = SEARCH.learn(progress).values()
    assert (groups, leaves) == (2, 12) and solved == sum(e.success for e in episodes if e.member == 0)
    assert turns == sum(e.branch_turn for e in episodes) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"constant": -1.0}, r"^constant=-1\.0 must be"),
        ({"width": 1}, r"^width=1 must be a whole number >= 2.*algo/structure=independent"),
        ({"depth": -1}, r"^depth=-1 must be .*or null for any"),
        ({"together": 0}, r"^together=0 must be"),
        ({"score": "points"}, r"^score=points must be"),
        ({"critic_share": 1.5}, r"^critic_share=1\.5 must be in \[0, 1\]"),
        ({"critic_share": 0.5, "score": "success"}, r"^critic_share=0\.5 mixes rewards .* set score=return"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mcts(**options)
