"""GRPO-lambda: prefer short successes in groups with a high success rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from lit_agentrl.checks import require, require_number
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.base import RewardPart, Rewards, Stage, replace_by_outcome


@dataclass(kw_only=True)
class TopLambda(RewardPart):
    """Outcome rewards with a length penalty in the best groups: GRPO-lambda, arXiv 2505.18086.

    Groups are sorted by success rate; ties go to the smaller group id.  In the best ``max(1, floor(top_share * P))`` of
    P groups a success gets ``1 - alpha * sigmoid((T - mean) / std)``, where T is its number of sampled tokens, and mean
    and population std are over the group's successes (if std is 0, the fraction is 0).  In other groups it gets 1.  A
    failure gets 0.

    Args:
        top_share: share of the groups that count as best; lambda in the paper.
        alpha: maximum length penalty; 0.2 is our choice, the value of the paper could not be confirmed.
        keep_penalties: add the protocol penalties.
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

    def apply(self, rewards: Rewards, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        """Replace the rewards by the outcome at the last turn of each episode."""
        success_lengths: dict[int, list[int]] = {e.group: [] for e in episodes}
        for e in episodes:
            if e.success:
                success_lengths[e.group].append(e.num_action_tokens)
        best_groups = self._find_best_groups(episodes)
        values = [
            (
                self._compute_score(e.num_action_tokens, success_lengths[e.group])
                if e.group in best_groups
                else 1.0
            )
            * e.success
            for e in episodes
        ]
        return replace_by_outcome(episodes, values, keep_penalties=self.keep_penalties)

    def _find_best_groups(self, episodes: Sequence[Episode]) -> set[int]:
        outcomes: dict[int, list[bool]] = {}
        groups = self.gather_numbers([e.group for e in episodes])
        successes = self.gather_numbers([e.success for e in episodes])
        for group, success in zip(groups, successes, strict=True):
            outcomes.setdefault(int(group), []).append(bool(success))
        best = sorted(outcomes, key=lambda group: (-sum(outcomes[group]) / len(outcomes[group]), group))
        return set(best[: max(1, int(self.top_share * len(best) + 1e-9))])

    def _compute_score(self, tokens: int, success_lengths: Sequence[int]) -> float:
        if not success_lengths:
            return 1.0
        mean = math.fsum(success_lengths) / len(success_lengths)
        std = math.sqrt(math.fsum((n - mean) ** 2 for n in success_lengths) / len(success_lengths))
        z = (tokens - mean) / std if std > 0 else 0.0
        return 1 - self.alpha / (1 + math.exp(-z))
