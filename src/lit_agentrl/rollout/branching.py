"""Episodes of a group that continue from each other's turns: rules and starting order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from lit_agentrl.checks import blame
from lit_agentrl.episode import Episode

Draw = Callable[..., float]  # returns a number in [0, 1) for an address of whole numbers


@dataclass(frozen=True)
class Branch:
    """The start of one member of a group.

    Attributes:
        member: Number of the member.
        parent: Member whose first turns are copied; None starts at the opening.
        turn: Number of copied turns; the member writes the reply of this turn first.
        tree: Member whose number names the tree; None takes the parent's tree, or starts a new tree.
    """

    member: int
    parent: int | None = None
    turn: int = 0
    tree: int | None = None


class Growth(Protocol):
    """The state of one group, which decides when its members start.

    Results may depend only on the contents of the group's episodes, not on the order in which they finish.
    """

    def first(self) -> Sequence[Branch]:
        """Return the members that start at once."""

    def after(self, episode: Episode, *, is_over: bool) -> Sequence[Branch]:
        """Return the members that start after this reply or end; each member starts once."""


class Branching(Protocol):
    """The branching rule of a wave: plain data, sent to the process that plays."""

    def group(self, members: Sequence[int], draw: Draw, vocabulary: int) -> Growth:
        """Return the state of a group before anything is played.

        Args:
            members: All members to be played, in order; each must start at some time.
            draw: Returns a random number, keyed by run seed, iteration, wave, group and the given address.
            vocabulary: Number of tokens that the policy chooses among.
        """


class Admission:
    """A queue of the episodes of a wave that can start, with their parents.

    Args:
        addresses: Group and member of each episode of the wave, by index.
        branching: The rule; None starts all episodes at once.
        draw: Returns a random number for a group and an address.
        vocabulary: See `Branching`.
    """

    def __init__(
        self, addresses: Sequence[tuple[int, int]], branching: Branching | None, draw: Draw, vocabulary: int
    ) -> None:
        self._addresses = addresses
        self._index = {address: index for index, address in enumerate(addresses)}
        self._growths: dict[int, Growth] = {}
        self._waiting: dict[int, dict[int, int]] = {}  # by group: index of each unqueued member
        self._ready: deque[tuple[int, Branch]] = deque()
        self._num_left: dict[int, int] = {}  # by group: number of members that have not started
        self._opened: set[int] = set()  # groups of which a member has started
        if branching is None:
            self._ready.extend((index, Branch(member)) for index, (_, member) in enumerate(addresses))
            return
        for index, (group, member) in enumerate(addresses):
            self._waiting.setdefault(group, {})[member] = index
        self._num_left = {group: len(waiting) for group, waiting in self._waiting.items()}
        for group, waiting in self._waiting.items():
            with blame("algo.structure"):
                growth = branching.group(list(waiting), partial(draw, group), vocabulary)
                first = list(growth.first())
            self._growths[group] = growth
            self._ready.extend(self._take_waiting(group, first))

    @property
    def is_ready(self) -> bool:
        """True if an episode can start."""
        return bool(self._ready)

    @property
    def next_parent(self) -> int | None:
        """Index of the parent of the next episode."""
        return self._find_parent(*self._ready[0]) if self._ready else None

    @property
    def room(self) -> int:
        """Number of free slots required before the next episode starts a new group.

        It counts the episodes yet to start in all started groups and in the new one.  A group keeps its parents in
        their slots as long as other episodes may continue from them; without enough slots, parents of other groups are
        displaced, and their tokens must be read again.  The number is 0 if the group of the next episode has started,
        or if nothing branches.
        """
        if not self._ready or not self._num_left:
            return 0
        group, _ = self._addresses[self._ready[0][0]]
        if group in self._opened:
            return 0
        return self._num_left[group] + sum(self._num_left[other] for other in self._opened)

    def take_next(self) -> tuple[int, Branch, int | None]:
        """Return the index of the next episode, its start, and the index of its parent."""
        index, branch = self._ready.popleft()
        if self._num_left:
            group, _ = self._addresses[index]
            self._opened.add(group)
            self._num_left[group] -= 1
        return index, branch, self._find_parent(index, branch)

    def after(self, index: int, episode: Episode, *, is_over: bool) -> None:
        """Queue the episodes that can start after a reply or the end of an episode."""
        group, _ = self._addresses[index]
        if not self._waiting.get(group):
            return
        with blame("algo.structure"):
            branches = list(self._growths[group].after(episode, is_over=is_over))
        # queue them ahead of groups that have not started, since a complete group frees its slots
        self._ready.extendleft(reversed(self._take_waiting(group, branches)))

    def may_branch(self, index: int) -> bool:
        """Return whether another episode may still start from this one."""
        group, _ = self._addresses[index]
        if group not in self._growths:
            return False
        return bool(self._waiting[group]) or any(self._addresses[i][0] == group for i, _ in self._ready)

    def require_all_started(self) -> None:
        """Check that every member has started, after all episodes have ended.

        Raises:
            ValueError: A member has not started.
        """
        for group, waiting in self._waiting.items():
            if waiting:
                raise ValueError(f"algo.structure: member {min(waiting)} of group {group} was never started")

    def _find_parent(self, index: int, branch: Branch) -> int | None:
        if branch.parent is None:
            return None
        return self._index[self._addresses[index][0], branch.parent]

    def _take_waiting(self, group: int, branches: Iterable[Branch]) -> list[tuple[int, Branch]]:
        """Remove members from the waiting ones, and return them with their index."""
        waiting, taken = self._waiting[group], []
        for branch in branches:
            if branch.member not in waiting:
                raise ValueError(
                    f"algo.structure starts member {branch.member} of group {group} twice, or there is no such member"
                )
            if branch.parent is not None and (
                branch.parent in waiting or (group, branch.parent) not in self._index or branch.turn < 1
            ):
                raise ValueError(
                    f"algo.structure starts member {branch.member} of group {group} at turn {branch.turn} of member "
                    f"{branch.parent}; start the parent first, and count turns from 1"
                )
            taken.append((waiting.pop(branch.member), branch))
        return taken
