"""UFO: discount late successes and penalise repeated answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lit_agentrl.checks import require, require_number
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.base import RewardPart, Rewards, Stage, replace_by_outcome


@dataclass(kw_only=True)
class Tries(RewardPart):
    """``discount^k 1[solved at turn k] - repeats (1 - E / T)``: UFO, arXiv 2507.14295.

    k counts from 0.  T is the number of turns with a valid answer, E the number of distinct answers among them; without
    valid answers the second term is 0.

    Args:
        discount: gamma.
        repeats: lambda, the weight of the share of repeated answers.
        keep_penalties: add the protocol penalties.
    """

    stage: ClassVar[Stage] = Stage.TASK
    discount: float = 0.5
    repeats: float = 0.5
    keep_penalties: bool = True

    def __post_init__(self) -> None:
        require_number("discount", self.discount, "in (0, 1]", lambda value: 0 < value <= 1)
        require_number("repeats", self.repeats, "finite and >= 0", lambda value: value >= 0)
        require(isinstance(self.keep_penalties, bool), "keep_penalties", self.keep_penalties, "true or false")

    def apply(self, rewards: Rewards, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        """Replace the rewards by the value at the last turn of each episode."""
        return replace_by_outcome(
            episodes,
            [self._compute_score(episode) for episode in episodes],
            keep_penalties=self.keep_penalties,
        )

    def _compute_score(self, episode: Episode) -> float:
        answers = [tuple(turn.actions) for turn in episode.turns if turn.is_valid]
        repeated = 1 - len(set(answers)) / len(answers) if answers else 0.0
        return episode.success * self.discount ** (len(episode.turns) - 1) - self.repeats * repeated
