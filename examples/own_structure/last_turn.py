"""A rollout structure of one's own: half of a group goes on from the last turns of the half that failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lit_agentrl.episode import Episode
from lit_agentrl.facts import BRANCHES, FORK, PLAYED
from lit_agentrl.rollout.branching import Branch, Branching, Draw
from lit_agentrl.rollout.structures.refill import Refill


@dataclass(frozen=True)
class AtTheEnd:
    """The rule: plain data, which travels to whoever plays."""

    def group(self, members: Sequence[int], draw: Draw, vocabulary: int) -> Group:
        return Group(list(members))


@dataclass
class Group:
    """One group as it grows; what it answers depends on its episodes alone, not on who was quicker."""

    members: list[int]
    over: dict[int, Episode] = field(default_factory=dict)

    @property
    def half(self) -> int:
        return (len(self.members) + 1) // 2

    def first(self) -> Sequence[Branch]:
        return [Branch(member) for member in self.members[: self.half]]

    def after(self, episode: Episode, *, is_over: bool) -> Sequence[Branch]:
        if is_over:
            self.over[episode.member] = episode
        if not is_over or len(self.over) != self.half:
            return ()
        failed = [self.over[m] for m in self.members[: self.half] if not self.over[m].success]
        return [self._begun(member, failed, k) for k, member in enumerate(self.members[self.half :])]

    def _begun(self, member: int, failed: list[Episode], number: int) -> Branch:
        """From the last reply of one that failed; from the opening where none did, or it has one reply."""
        if not failed:
            return Branch(member)
        parent = failed[number % len(failed)]
        last = sum(len(turn.reply_tokens) > 0 for turn in parent.turns) - 1
        return Branch(member, parent.member, last) if last > 0 else Branch(member)


class LastTurn(Refill):
    """A second chance at the last reply of what failed."""

    requires = frozenset({FORK, PLAYED})  # the engine copies what it holds of the parent
    provides = Refill.provides | {BRANCHES}

    def branching(self, members: int) -> Branching:
        return AtTheEnd()
