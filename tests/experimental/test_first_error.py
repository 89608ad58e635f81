"""The first wrong turn: found by bisection as by trying every turn, and paired with a right one."""

from __future__ import annotations

import itertools
import random
from functools import partial
from typing import Any

import pytest
import torch

from lit_agentrl.episode import EndReason, Episode, Turn
from lit_agentrl.experimental.first_error.pairs import first_error
from lit_agentrl.experimental.first_error.search import FirstError
from lit_agentrl.rl.binding import bind
from lit_agentrl.rollout.branching import Branch
from lit_agentrl.rollout.pack import pack
from tests.rollout.test_branching import group, play


def over(member: int, replies: str, *, solved: bool, failed: bool = False) -> Episode:
    """An episode whose replies are single letters; the state is what was written so far."""
    turns = []
    for number, letter in enumerate(replies):
        state = 1 + int.from_bytes(replies[:number].encode())
        written = Turn(
            "", [5], [1], state_key=state, starts_row=not number, reply_tokens=[ord(letter), 3],  # type: ignore[arg-type]
            reply_segments=[5, 5], reply_logps=[-1.0] * 2, reply_entropies=[1.0] * 2,  # type: ignore[arg-type]
        )  # fmt: skip
        turns.append(written)
    turns[-1].reward = float(solved)
    end = EndReason.ERROR if failed else EndReason.SUCCESS if solved else EndReason.FAILURE
    return Episode(0, 0, member, 0, "", 0, end=end, success=solved, turns=turns)


def search(structure: FirstError, members: int, tell: Any) -> list[Branch]:
    """All that begin; ``tell(branch)`` is how each goes."""
    growth, order = group(structure, members), random.Random(0)
    found, waiting = [], list(growth.first())
    while waiting:
        found += waiting
        order.shuffle(waiting)  # who is quicker does not matter
        waiting = list(itertools.chain(*[growth.after(tell(each), is_over=True) for each in waiting]))
    assert sorted(branch.member for branch in found) == list(range(members))
    return found


@pytest.mark.parametrize("turns", [1, 2, 3, 8, 13])
def test_bisection_finds_what_trying_every_turn_finds(turns: int) -> None:
    for error in range(turns):
        right = {turn: turn <= error for turn in range(turns)}  # whether the game can be solved before it

        def tell(branch: Branch, right: dict[int, bool] = right) -> Episode:
            is_right = branch.parent is not None and right[branch.turn] and branch.member % 2 == 0
            return over(branch.member, "x" * turns, solved=is_right)  # of two tries one solves it

        found = search(FirstError(initial=1, tries=2), 1 + 2 * 6, tell)
        tested = {branch.turn: right[branch.turn] for branch in found if branch.parent == 0}
        slow = next(turn for turn in range(turns) if not right.get(turn + 1, False))
        low = max([turn for turn, is_right in tested.items() if is_right], default=0)
        high = min([turn for turn, is_right in tested.items() if not is_right], default=turns)
        assert (low, high) == (slow, slow + 1) and len(tested) <= max(turns - 1, 0).bit_length()
    if turns == 8:  # the search of the docstring
        found = search(
            FirstError(initial=1, tries=1), 5, lambda b: over(b.member, "x" * 8, solved=0 < b.turn <= 5)
        )
        assert found == [Branch(0), Branch(1, 0, 4), Branch(2, 0, 6), Branch(3, 0, 5), Branch(4)]


def test_failed_ones_are_searched_in_turn_and_the_rest_begins_at_the_opening() -> None:
    """Members 0 and 3 fail, 1 solves its game, 2 breaks; of 9 members the last has no two tries."""

    def tell(branch: Branch) -> Episode:
        failed, solved = branch.member in (2, 4, 5), branch.member in (1, 6)
        return over(branch.member, "xxx", solved=solved, failed=failed)

    found = search(FirstError(initial=4), 9, tell)
    assert found[4:6] == [Branch(4, 0, 1), Branch(5, 0, 1)]  # both break: that search is given up
    assert found[6:] == [Branch(6, 3, 1), Branch(7, 3, 1), Branch(8)]


def pairs_of(episodes: list[Episode], **options: Any) -> list[tuple[str, str, str]]:
    """What was written before each pair, its right and its wrong letter."""
    rows = pack(episodes).to_dict()

    pairs = bind(partial(first_error, **options), rows)
    place = pairs.units.place_A[pairs.units.start_N]
    flat, width = rows["tokens_BT"].flatten(), rows["tokens_BT"].shape[1]

    def read(unit: int) -> tuple[str, str]:
        row, column = divmod(int(place[unit]), width)
        before = rows["tokens_BT"][row, :column][rows["is_action_BT"][row, :column]].tolist()[::2]
        return "".join(map(chr, before)), chr(int(flat[place[unit]]))

    found = []
    for chosen, rejected in zip(pairs.chosen_P.tolist(), pairs.rejected_P.tolist(), strict=True):
        (before, right), (same, wrong) = read(chosen), read(rejected)
        assert before == same
        found.append((before, right, wrong))
    assert (pairs.gap_P == 1).all()
    return sorted(found)


def list_slowly(episodes: list[Episode], least: int) -> set[tuple[str, str, str]]:
    """By the texts of whole episodes, without units, numbers or state keys."""
    texts = ["".join(chr(turn.reply_tokens[0]) for turn in episode.turns) for episode in episodes]
    prefixes = {text[:k] for text in texts for k in range(1, len(text) + 1)}

    def is_right(prefix: str) -> bool:
        return any(e.success for e, text in zip(episodes, texts, strict=True) if text.startswith(prefix))

    def is_wrong(prefix: str) -> bool:
        held = sum(text.startswith(prefix) for text in texts)
        return not is_right(prefix) and (held >= least or prefix in texts)

    return {
        (one[:-1], one[-1], other[-1])
        for one in prefixes
        for other in prefixes
        if one[:-1] == other[:-1] and is_right(one) and is_wrong(other)
    }


def test_the_pair_of_the_docstring() -> None:
    told = [
        ("ax", True),
        ("ay", True),
        ("az", False),
        ("bx", False),
        ("by", False),
        ("bz", False),
        ("cx", False),
    ]
    episodes = [over(member, text, solved=solved) for member, (text, solved) in enumerate(told)]
    found = pairs_of(episodes, least=3)
    assert ("", "a", "b") in found and not [pair for pair in found if "c" in pair]
    assert found == [("", "a", "b"), ("a", "x", "z")]  # az ended there


def test_pairs_are_those_of_a_loop_over_texts() -> None:
    draw, total = random.Random(1), 0
    for least in (1, 2, 3):
        for _ in range(5):
            texts = ["".join(draw.choices("ab", k=draw.randint(1, 4))) for _ in range(9)]
            episodes = [over(m, text, solved=draw.random() < 0.3) for m, text in enumerate(texts)]
            expected = list_slowly(episodes, least)
            found = pairs_of(episodes, least=least, most=None)
            assert len(found) == len(set(found)) and set(found) == expected
            once = pairs_of(episodes, least=least)
            assert {pair[0] for pair in once} == {pair[0] for pair in expected}
            assert len({pair[0] for pair in once}) == len(once) and set(once) <= expected
            total += len(expected)
    assert total >= 10


def test_refusals() -> None:
    for options, said in (
        ({"initial": 0}, "initial=0 must be"),
        ({"tries": 0}, "tries=0 must be"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            FirstError(**options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="initial=9 must be at most rollout.members=8"):
        FirstError(initial=9).branching(8)
    with pytest.raises(ValueError, match="least=0 must be"):
        pairs_of([over(0, "a", solved=True)], least=0)


@pytest.mark.slow
@pytest.mark.sweep
def test_in_a_game_pairs_are_of_branches_at_one_state() -> None:
    episodes = play(FirstError(initial=4, tries=2), members=16)
    assert any(e.branches for e in episodes) and not any(e.failed for e in episodes)
    for each in (e for e in episodes if e.branches):
        parent = next(e for e in episodes if (e.group, e.member) == (each.group, each.parent))
        assert not parent.success and each.turns[: each.branch_turn] == parent.turns[: each.branch_turn]
    assert len(episodes) == 2 * 16
    rows = pack(episodes).to_dict()
    pairs = bind(first_error, rows)
    row = pairs.units.place_A[pairs.units.start_N] // rows["tokens_BT"].shape[1]
    assert torch.equal(rows["group_B"][row[pairs.chosen_P]], rows["group_B"][row[pairs.rejected_P]])
    assert not rows["success_B"][row[pairs.rejected_P]].any()
