"""A structure that branches episodes where an observation made the policy less certain."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lit_agentrl.checks import require, require_number, require_one_of, require_whole
from lit_agentrl.episode import Episode
from lit_agentrl.facts import BRANCHES, ENTROPIES, FORK, PLAYED
from lit_agentrl.rollout.branching import Branch, Branching, Draw
from lit_agentrl.rollout.structures.refill import Refill


@dataclass(frozen=True)
class AtEntropy:
    """The branching rule of `EntropyBranch`, with its options."""

    initial: int
    base: float
    slope: float
    tokens: int
    copies: int
    threshold: float | None
    entropy: str

    def group(self, members: Sequence[int], draw: Draw, vocabulary: int) -> _Group:
        return _Group(self, members, draw, math.log(max(vocabulary, 2)))

    def compute_entropy(self, replies: npt.NDArray[np.float64]) -> float:
        """Return the mean or summed entropy of the first tokens of a reply, in nats."""
        first_tokens = replies[: self.tokens]
        return float(first_tokens.mean() if self.entropy == "mean" else first_tokens.sum())

    def should_branch(self, change: float, draw: float) -> bool:
        """Return whether an episode branches at this change of entropy.

        Args:
            change: change of entropy, as a fraction of the maximum entropy.
            draw: uniform random number in [0, 1).
        """
        chance = self.base + self.slope * change
        return draw < min(max(chance, 0.0), 1.0) if self.threshold is None else chance > self.threshold


class _Group:
    """The branches of one group.

    The group decides turn by turn which episodes branch.  It decides a turn once every running episode has written its
    reply, so the branches do not depend on which episode was faster.
    """

    def __init__(self, rule: AtEntropy, members: Sequence[int], draw: Draw, log_vocabulary: float) -> None:
        self._rule, self._draw, self._log_vocabulary = rule, draw, log_vocabulary
        self._waiting = deque(members)
        self._entropies: dict[int, list[float]] = {}  # entropy of the first tokens of each reply, by member
        self._first_turns: dict[int, int] = {}  # first turn that each member played itself
        self._ended: set[int] = set()
        self._turn = 1  # the next turn to decide

    def first(self) -> Sequence[Branch]:
        can_branch = bool(self._rule.base or self._rule.slope)
        number = min(self._rule.initial, len(self._waiting)) if can_branch else len(self._waiting)
        return [self._start(Branch(self._waiting.popleft())) for _ in range(number)]

    def after(self, episode: Episode, *, is_over: bool) -> Sequence[Branch]:
        entropies = self._entropies[episode.member]
        replies = [turn.reply_entropies for turn in episode.turns if len(turn.reply_tokens)]
        entropies += map(self._rule.compute_entropy, replies[len(entropies) :])
        if is_over:
            self._ended.add(episode.member)
        branches: list[Branch] = []
        while self._waiting and self._is_written():
            branches += self._list_branches()
            self._turn += 1
        if not branches and len(self._ended) == len(self._entropies):
            branches += [self._start(Branch(self._waiting.popleft())) for _ in range(len(self._waiting))]
        return branches

    def _is_written(self) -> bool:
        """Return whether all running episodes, and at least one episode, have written the turn."""
        has_written = {member: len(entropies) > self._turn for member, entropies in self._entropies.items()}
        return any(has_written.values()) and all(
            has_written[member] or member in self._ended for member in has_written
        )

    def _list_branches(self) -> list[Branch]:
        """Return the branches of the current turn, ordered by parent."""
        branches = []
        for member, entropies in sorted(self._entropies.items()):
            # the episode is too short, or branched at this turn itself
            if len(entropies) <= self._turn or self._first_turns[member] == self._turn:
                continue
            change = (entropies[self._turn] - entropies[0]) / self._log_vocabulary
            if not self._rule.should_branch(change, self._draw(member, self._turn)):
                continue
            for _ in range(min(self._rule.copies, len(self._waiting))):
                branches.append(
                    self._start(Branch(self._waiting.popleft(), member, self._turn), entropies[: self._turn])
                )
        return branches

    def _start(self, branch: Branch, entropies: Sequence[float] = ()) -> Branch:
        self._entropies[branch.member], self._first_turns[branch.member] = list(entropies), branch.turn
        return branch


class EntropyBranch(Refill):
    """A structure that branches episodes where the entropy of replies rises: ARPO, arXiv 2507.19849.

    The probability of branching before reply k, counted from 0, is ``P_k = base + slope (H_k - H_0) / log V``.  ``H_k``
    is the entropy of the first ``tokens`` tokens of reply k, in nats, and V the size of the vocabulary.  An episode
    that branches continues, and ``copies`` more episodes of its group continue from the same observation.
    ``rollout.members`` is the total number of episodes: when all running ones have ended, the remaining ones start from
    the opening.  Groups are refilled as by `Refill`.

    Args:
        initial: number of episodes per group that start at the opening; None: half of the group.
        base, slope: constants of the probability, which is clamped to [0, 1].
        tokens: number of first tokens, see above; a shorter reply uses all of its tokens.
        copies: see above; fewer if the group has fewer episodes left.
        threshold: a number: branch if P is larger; None: branch with probability P.
        entropy: ``mean`` or ``sum`` over these tokens.
        max_waves: see `Refill`.

    Raises:
        ValueError: a value is out of range.
    """

    requires = frozenset({FORK, ENTROPIES, PLAYED})
    provides = Refill.provides | {BRANCHES}

    def __init__(
        self,
        initial: int | None = None,
        base: float = 0.5,
        slope: float = 0.2,
        tokens: int = 20,
        copies: int = 1,
        threshold: float | None = None,
        entropy: str = "mean",
        max_waves: int | None = None,
    ) -> None:
        if initial is not None:
            require_whole("initial", initial, 1, alternative=", or null for half of rollout.members")
        require_number("base", base, "a finite number")
        require_number("slope", slope, "a finite number")
        require_whole("tokens", tokens, 1)
        require_whole("copies", copies, 1)
        if threshold is not None:
            require_number("threshold", threshold, "a finite number, or null to draw")
        require_one_of("entropy", entropy, ("mean", "sum"))
        super().__init__(max_waves)
        self._initial = initial
        self._rule = AtEntropy(initial or 1, base, slope, tokens, copies, threshold, entropy)

    def branching(self, members: int) -> Branching:
        initial = max(1, members // 2) if self._initial is None else self._initial
        require(
            initial <= members, "initial", initial, f"at most rollout.members={members}, the budget of leaves"
        )
        return replace(self._rule, initial=initial)
