"""Episodes that branch where the policy has become less certain after an observation."""

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
    """The rule of `Branch`, whose options these are."""

    initial: int
    base: float
    slope: float
    tokens: int
    copies: int
    threshold: float | None
    entropy: str

    def group(self, members: Sequence[int], draw: Draw, vocabulary: int) -> _Group:
        return _Group(self, members, draw, math.log(max(vocabulary, 2)))

    def entropy_of(self, replies: npt.NDArray[np.float64]) -> float:
        """Of the first tokens of a reply, in nats."""
        first = replies[: self.tokens]
        return float(first.mean() if self.entropy == "mean" else first.sum())

    def branches(self, change: float, draw: float) -> bool:
        """Whether an episode branches at a change of entropy, in parts of the largest there can be."""
        chance = self.base + self.slope * change
        return draw < min(max(chance, 0.0), 1.0) if self.threshold is None else chance > self.threshold


class _Group:
    """Turns are decided in order, each once all episodes that are under way have written it or are over.

    So what branches does not depend on which of them was quicker.
    """

    def __init__(self, rule: AtEntropy, members: Sequence[int], draw: Draw, log_vocabulary: float) -> None:
        self._rule, self._draw, self._log_vocabulary = rule, draw, log_vocabulary
        self._waiting = deque(members)
        self._entropies: dict[int, list[float]] = {}  # of the beginning of each reply, by member
        self._begins: dict[int, int] = {}  # first own turn
        self._over: set[int] = set()
        self._turn = 1  # the next to be decided

    def first(self) -> Sequence[Branch]:
        never = not (self._rule.base or self._rule.slope)  # so that nothing is to be waited for
        number = len(self._waiting) if never else min(self._rule.initial, len(self._waiting))
        return [self._begun(Branch(self._waiting.popleft())) for _ in range(number)]

    def after(self, episode: Episode, *, is_over: bool) -> Sequence[Branch]:
        known = self._entropies[episode.member]
        replies = [turn.reply_entropies for turn in episode.turns if len(turn.reply_tokens)]
        known += map(self._rule.entropy_of, replies[len(known) :])
        if is_over:
            self._over.add(episode.member)
        found: list[Branch] = []
        while self._waiting and self._is_written():
            found += self._branches()
            self._turn += 1
        if not found and len(self._over) == len(self._entropies):
            found += [self._begun(Branch(self._waiting.popleft())) for _ in range(len(self._waiting))]
        return found

    def _is_written(self) -> bool:
        """Whether all that are under way have a reply of the turn, of which there is one."""
        has = {member: len(known) > self._turn for member, known in self._entropies.items()}
        return any(has.values()) and all(has[member] or member in self._over for member in has)

    def _branches(self) -> list[Branch]:
        """Those of the turn, in the order of their parents."""
        found = []
        for member, known in sorted(self._entropies.items()):
            if (
                len(known) <= self._turn or self._begins[member] == self._turn
            ):  # one that has just left another
                continue
            change = (known[self._turn] - known[0]) / self._log_vocabulary
            if not self._rule.branches(change, self._draw(member, self._turn)):
                continue
            for _ in range(min(self._rule.copies, len(self._waiting))):
                found.append(
                    self._begun(Branch(self._waiting.popleft(), member, self._turn), known[: self._turn])
                )
        return found

    def _begun(self, branch: Branch, known: Sequence[float] = ()) -> Branch:
        self._entropies[branch.member], self._begins[branch.member] = list(known), branch.turn
        return branch


class EntropyBranch(Refill):
    """``P_k = base + slope (H_k - H_0) / log V`` is the chance to branch before reply k: ARPO, arXiv 2507.19849.

    ``H_k`` is the entropy of the first ``tokens`` of reply k, after the observation; 0 is the first reply.  An episode
    that branches goes on as it is, and ``copies`` further members of its group go on from the same observation.
    ``rollout.members`` is the budget of leaves: members that no branch has begun when all others are over begin at the
    opening.  Groups are refilled as by `Refill`.

    Args:
        initial: members that begin at the opening at once; None: half of them.
        base, slope: of the chance, which is cut to [0, 1].
        tokens: see above; of a shorter reply all.
        copies: see above, as far as there are members left.
        threshold: None draws with chance P; a number branches where P is larger, without chance.
        entropy: ``mean`` or ``sum`` over these tokens.
        max_waves: see `Refill`.

    Raises:
        ValueError: a value out of range.
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
