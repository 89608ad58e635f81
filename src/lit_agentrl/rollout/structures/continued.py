"""Episodes with continuations from each of their turns, which estimate the probability of success."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lit_agentrl.episode import Episode
from lit_agentrl.rollout.branching import Branch, Draw


@dataclass(frozen=True)
class Continued:
    """The rule of blocks: one episode from the opening, and ``number`` continuations from its turns.

    The members of a group form blocks of ``1 + number``, in order.  Continuations start once the first episode is over,
    in order from its second turn, its third, …, its last, and again, so that they are evenly distributed.  If it has
    only one turn, they start at the opening and contribute nothing.

    Attributes:
        number: Continuations per first episode.
    """

    number: int

    def group(self, members: Sequence[int], draw: Draw, vocabulary: int) -> _Group:
        return _Group(self, members)

    def list_blocks(self, members: Sequence[int]) -> list[tuple[int, Sequence[int]]]:
        """Return each first member with the members that continue from it."""
        size = 1 + self.number
        return [(members[start], members[start + 1 : start + size]) for start in range(0, len(members), size)]


class _Group:
    def __init__(self, rule: Continued, members: Sequence[int]) -> None:
        self._waiting = dict(rule.list_blocks(members))

    def first(self) -> Sequence[Branch]:
        return [Branch(member) for member in self._waiting]

    def after(self, episode: Episode, *, is_over: bool) -> Sequence[Branch]:
        if not is_over or episode.member not in self._waiting:
            return ()
        others = self._waiting.pop(episode.member)
        count = sum(len(turn.reply_tokens) > 0 for turn in episode.turns)
        if episode.failed or count < 2:
            return [Branch(member) for member in others]
        places = range(1, count)
        return [
            Branch(member, episode.member, places[index % len(places)]) for index, member in enumerate(others)
        ]


def shares(episodes: Sequence[Episode], number: int) -> list[tuple[Episode, list[float]]]:
    """Return each first episode that did not fail, with a label per turn.

    A turn's label is the share of solved episodes among the continuations that start after the turn; the last turn's
    label is 1 if the episode itself was solved, else 0.  An episode is left out if all continuations of some turn
    failed or none exist.

    Args:
        episodes: Whole groups, in the order of their members.
        number: As in `Continued`.
    """
    labelled = []
    for first, *others in (
        episodes[start : start + 1 + number] for start in range(0, len(episodes), 1 + number)
    ):
        count = sum(len(turn.reply_tokens) > 0 for turn in first.turns)
        solved: list[list[bool]] = [[] for _ in range(1, count)]
        for other in others:
            if other.parent is not None and not other.failed:
                solved[other.branch_turn - 1].append(other.success)
        if not first.failed and count and all(solved):
            labels = [sum(successes) / len(successes) for successes in solved]
            labelled.append((first, [*labels, float(first.success)]))
    return labelled
