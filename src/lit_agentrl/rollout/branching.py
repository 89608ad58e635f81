"""Episodes of a group that go on from turns of each other: the rule that says so, and who begins next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from lit_agentrl.checks import blame
from lit_agentrl.episode import Episode

Draw = Callable[..., float]  # a number in [0, 1) for an address of whole numbers


@dataclass(frozen=True)
class Branch:
    """How a member of a group begins.

    Attributes:
        member: which one.
        parent: member whose first turns it takes over; None: it begins at the opening.
        turn: so many turns; the reply of this turn is the first that it writes.
        tree: member that names its tree; None: as the parent, or itself.
    """

    member: int
    parent: int | None = None
    turn: int = 0
    tree: int | None = None


class Growth(Protocol):
    """One group as it grows.  What it answers may depend on what its episodes hold alone, not on who came first."""

    def first(self) -> Sequence[Branch]:
        """The members that begin at once."""

    def after(self, episode: Episode, *, is_over: bool) -> Sequence[Branch]:
        """The members that begin now that an episode has one more reply, or is over; each begins once."""


class Branching(Protocol):
    """The rule of a wave: plain data, which travels to whoever plays."""

    def group(self, members: Sequence[int], draw: Draw, vocabulary: int) -> Growth:
        """A group before anything is played.

        Args:
            members: all that are to be played, in order; each must begin some time.
            draw: keyed by run seed, iteration, wave, group and the address that it is given.
            vocabulary: tokens that the policy chooses among.
        """


class Admission:
    """Which episodes of a wave begin next, and from where.

    Args:
        places: group and member of each episode of the wave, by index.
        branching: the rule; None: all begin at once.
        draw: of a group and an address.
        vocabulary: see `Branching`.
    """

    def __init__(
        self, places: Sequence[tuple[int, int]], branching: Branching | None, draw: Draw, vocabulary: int
    ) -> None:
        self._places = places
        self._index = {place: index for index, place in enumerate(places)}
        self._growths: dict[int, Growth] = {}
        self._waiting: dict[int, dict[int, int]] = {}  # index of each member that has not begun, by group
        self._ready: deque[tuple[int, Branch]] = deque()
        self._left: dict[int, int] = {}  # members of each group that were not asked for yet
        self._opened: set[int] = set()  # groups of which some were
        if branching is None:
            self._ready.extend((index, Branch(member)) for index, (_, member) in enumerate(places))
            return
        for index, (group, member) in enumerate(places):
            self._waiting.setdefault(group, {})[member] = index
        self._left = {group: len(waiting) for group, waiting in self._waiting.items()}
        for group, waiting in self._waiting.items():
            with blame("algo.structure"):
                growth = branching.group(list(waiting), partial(draw, group), vocabulary)
                first = list(growth.first())
            self._growths[group] = growth
            self._ready.extend(self._begun(group, first))

    @property
    def is_ready(self) -> bool:
        """Whether an episode may begin."""
        return bool(self._ready)

    @property
    def next_parent(self) -> int | None:
        """Index of the episode that the next one goes on from."""
        return self._parent(*self._ready[0]) if self._ready else None

    @property
    def room(self) -> int:
        """Episodes that are yet to begin in groups that have begun, and in that of the next one; 0: it has begun.

        A group keeps its parents as long as others may go on from them.  So one that begins where there is no room for
        all of it drives out parents of others, and what these held is read again.
        """
        if not self._ready or not self._left or (group := self._places[self._ready[0][0]][0]) in self._opened:
            return 0
        return self._left[group] + sum(self._left[each] for each in self._opened)

    def next(self) -> tuple[int, Branch, int | None]:
        """The next episode, how it begins, and the index of its parent."""
        index, branch = self._ready.popleft()
        if self._left:
            group, _ = self._places[index]
            self._opened.add(group)
            self._left[group] -= 1
        return index, branch, self._parent(index, branch)

    def after(self, index: int, episode: Episode, *, is_over: bool) -> None:
        """An episode has one more reply, or is over."""
        group, _ = self._places[index]
        if not self._waiting.get(group):
            return
        with blame("algo.structure"):
            found = list(self._growths[group].after(episode, is_over=is_over))
        # before groups that have not begun: a group that is complete frees room
        self._ready.extendleft(reversed(self._begun(group, found)))

    def may_branch(self, index: int) -> bool:
        """Whether another episode may yet begin from this one."""
        group, _ = self._places[index]
        if group not in self._growths:
            return False
        return bool(self._waiting[group]) or any(self._places[i][0] == group for i, _ in self._ready)

    def require_all(self) -> None:
        """Nothing is played any more: every member must have begun.

        Raises:
            ValueError: one has not.
        """
        if left := [(group, min(waiting)) for group, waiting in self._waiting.items() if waiting]:
            raise ValueError(f"algo.structure: member {left[0][1]} of group {left[0][0]} was never begun")

    def _parent(self, index: int, branch: Branch) -> int | None:
        if branch.parent is None:
            return None
        return self._index[self._places[index][0], branch.parent]

    def _begun(self, group: int, branches: Iterable[Branch]) -> list[tuple[int, Branch]]:
        waiting, begun = self._waiting[group], []
        for branch in branches:
            if branch.member not in waiting:
                raise ValueError(
                    f"algo.structure begins member {branch.member} of group {group} twice, or there is none"
                )
            if branch.parent is not None and (
                branch.parent in waiting or (group, branch.parent) not in self._index or branch.turn < 1
            ):
                raise ValueError(
                    f"algo.structure begins member {branch.member} of group {group} at turn {branch.turn} of member "
                    f"{branch.parent}, which it cannot: that one must have begun, and turns are counted from 1"
                )
            begun.append((waiting.pop(branch.member), branch))
        return begun
