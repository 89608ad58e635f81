"""A structure that finds the first wrong turn of failed episodes by continuations."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lit_agentrl.checks import require, require_whole
from lit_agentrl.episode import Episode
from lit_agentrl.facts import BRANCHES, FORK, PLAYED
from lit_agentrl.rollout.branching import Branch, Branching, Draw
from lit_agentrl.rollout.structures.refill import Refill


@dataclass(frozen=True)
class Bisection:
    """The branching rule of `FirstError`, with its options."""

    initial: int
    tries: int

    def group(self, members: Sequence[int], draw: Draw, vocabulary: int) -> _Group:
        return _Group(self, members)


@dataclass
class _Search:
    """The search in one failed episode.

    Attributes:
        member: number of the episode within its group.
        right: number of the latest turn before which the state is known to be right; the opening is assumed to be.
        wrong: number of the earliest turn before which the state is known to be wrong; at first the number of turns,
            because the episode failed.
    """

    member: int
    right: int
    wrong: int


class _Group:
    """The searches of one group, which run one after the other.

    A round begins when all episodes of the previous round have ended, so it does not depend on which was faster.
    """

    def __init__(self, rule: Bisection, members: Sequence[int]) -> None:
        self._rule = rule
        self._waiting = deque(members)
        self._searches: deque[_Search] = deque()
        self._round: dict[int, Episode | None] = {}  # episodes of this round; None: not ended yet
        self._tested: int | None = None  # turn before which the episodes of this round begin

    def first(self) -> Sequence[Branch]:
        return self._start(self._rule.initial, None, 0)

    def after(self, episode: Episode, *, is_over: bool) -> Sequence[Branch]:
        if not is_over:
            return ()
        self._round[episode.member] = episode
        ended = [each for each in self._round.values() if each is not None]
        if len(ended) < len(self._round):
            return ()
        if self._tested is None:
            for each in sorted(ended, key=lambda each: each.member):
                if not (each.success or each.failed):
                    turns = sum(len(turn.reply_tokens) > 0 for turn in each.turns)
                    self._searches.append(_Search(each.member, 0, turns))
        else:
            self._narrow([each for each in ended if not each.failed])
        return self._start_round()

    def _narrow(self, ended: Sequence[Episode]) -> None:
        """Move one end of the search to the tested turn; stop it without episodes."""
        search = self._searches[0]
        assert self._tested is not None
        if not ended:
            self._searches.popleft()
        elif any(episode.success for episode in ended):
            search.right = self._tested
        else:
            search.wrong = self._tested

    def _start_round(self) -> Sequence[Branch]:
        while self._searches and self._searches[0].wrong - self._searches[0].right <= 1:
            self._searches.popleft()
        if not self._searches or len(self._waiting) < self._rule.tries:
            self._searches.clear()
            return self._start(len(self._waiting), None, 0)
        search = self._searches[0]
        return self._start(self._rule.tries, search.member, (search.right + search.wrong) // 2)

    def _start(self, number: int, parent: int | None, turn: int) -> list[Branch]:
        branches = [Branch(self._waiting.popleft(), parent, turn) for _ in range(number)]
        self._round = {branch.member: None for branch in branches}
        self._tested = None if parent is None else turn
        return branches


class FirstError(Refill):
    """A structure that searches failed episodes for their first wrong turn: Step-DPO, arXiv 2406.18629.

    A state is right if one of ``tries`` continuations from it solves the game, and wrong if none does.  The first wrong
    turn of a failed episode is the first after which the state is wrong.  It is found by bisection, as in OmegaPRM
    (arXiv 2406.06592): for n turns, about ``log2 n`` states are tested.  A continuation of the last right state that
    solves the game begins with a right turn; `pairs.first_error` pairs it with the wrong turn.

    Departs: in the paper, a language model or people find the first wrong step, which is a step of one reply; here a
    step is a turn.

    A group plays ``initial`` episodes from the opening, searches the failed ones in order, and plays the remaining
    episodes of ``rollout.members`` from the opening.  Groups are refilled as by `Refill`.

    Example: a failed episode has 8 turns, counted from 0.  One continuation from before turn 4 succeeds, none from
    before turn 6, and one from before turn 5.  So turn 5 is the first wrong one, found with ``3 * tries`` episodes.

    Args:
        initial: number of episodes from the opening; None for half of the group.
        tries: number of continuations from a state.
        max_waves: see `Refill`.

    Raises:
        ValueError: a value is out of range.
    """

    requires = frozenset({FORK, PLAYED})
    provides = Refill.provides | {BRANCHES}

    def __init__(self, initial: int | None = None, tries: int = 2, max_waves: int | None = None) -> None:
        if initial is not None:
            require_whole("initial", initial, 1, alternative=", or null for half of rollout.members")
        require_whole("tries", tries, 1)
        super().__init__(max_waves)
        self._initial = initial
        self._rule = Bisection(initial or 1, tries)

    def branching(self, members: int) -> Branching:
        initial = max(1, members // 2) if self._initial is None else self._initial
        require(initial <= members, "initial", initial, f"at most rollout.members={members}")
        return replace(self._rule, initial=initial)
