"""GRPO-lambda: successes of well-solved groups are worth more the shorter they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from lit_agentrl.checks import require, require_number
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.base import Points, RewardPart, Stage, outcome


@dataclass(kw_only=True)
class TopLambda(RewardPart):
    """GRPO-lambda, arXiv 2505.18086: outcome rewards, shaped by length where most members succeed.

    Groups are sorted by their share of successes.  In the ``max(1, floor(top_share * P))`` best of P groups a
    success earns ``1 - alpha * sigmoid((T - mean) / std)``, T its sampled tokens, mean and population std over
    the group's successes (std 0: the fraction is 0).  Elsewhere it earns 1.  A failure earns 0.  Of equally good
    groups the one with the smaller id comes first.

    Args:
        top_share: lambda.
        alpha: the most that length can cost; 0.2 is our choice, the paper's value could not be confirmed.
        keep_penalties: leave the protocol penalties beside these points.
    """

    stage: ClassVar[Stage] = Stage.TASK
    sees: ClassVar[Literal["own", "all"]] = "all"
    top_share: float = 0.2
    alpha: float = 0.2
    keep_penalties: bool = True

    def __post_init__(self) -> None:
        require_number("top_share", self.top_share, "in (0, 1]", lambda value: 0 < value <= 1)
        require_number("alpha", self.alpha, "in (0, 1]", lambda value: 0 < value <= 1)
        require(isinstance(self.keep_penalties, bool), "keep_penalties", self.keep_penalties, "true or false")

    def apply(self, points: Points, episodes: Sequence[Episode], *, iteration: int) -> Points:
        """At the last turn of each episode."""
        solved: dict[int, list[int]] = {e.group: [] for e in episodes}  # tokens of a group's successes
        for e in episodes:
            if e.success:
                solved[e.group].append(e.num_action_tokens)
        shaped = self._best_groups(episodes)
        values = [
            (self._of(e.num_action_tokens, solved[e.group]) if e.group in shaped else 1.0) * e.success
            for e in episodes
        ]
        return outcome(episodes, values, keep_penalties=self.keep_penalties)

    def _best_groups(self, episodes: Sequence[Episode]) -> set[int]:
        outcomes: dict[int, list[bool]] = {}
        groups = self.everyones_numbers([e.group for e in episodes])
        successes = self.everyones_numbers([e.success for e in episodes])
        for group, success in zip(groups, successes, strict=True):
            outcomes.setdefault(int(group), []).append(bool(success))
        best = sorted(outcomes, key=lambda group: (-sum(outcomes[group]) / len(outcomes[group]), group))
        return set(best[: max(1, int(self.top_share * len(best) + 1e-9))])

    def _of(self, tokens: int, lengths: Sequence[int]) -> float:
        if not lengths:
            return 1.0
        mean = math.fsum(lengths) / len(lengths)
        std = math.sqrt(math.fsum((n - mean) ** 2 for n in lengths) / len(lengths))
        z = (tokens - mean) / std if std > 0 else 0.0
        return 1 - self.alpha / (1 + math.exp(-z))
