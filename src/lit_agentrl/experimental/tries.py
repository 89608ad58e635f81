"""UFO: a success is worth less the later it comes, and answers that were given before cost points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lit_agentrl.checks import require, require_number
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.base import Points, RewardPart, Stage, outcome


@dataclass(kw_only=True)
class Tries(RewardPart):
    """UFO, arXiv 2507.14295: ``discount^k 1[solved by turn k] - repeats (1 - E / T)``, k from 0.

    T are the turns with a valid answer, E the distinct ones among these answers; without any the cost is 0.

    Args:
        discount: gamma.
        repeats: lambda, the cost of an episode all of whose answers are alike, but for the first.
        keep_penalties: leave the protocol penalties beside these points.
    """

    stage: ClassVar[Stage] = Stage.TASK
    discount: float = 0.5
    repeats: float = 0.5
    keep_penalties: bool = True

    def __post_init__(self) -> None:
        require_number("discount", self.discount, "in (0, 1]", lambda value: 0 < value <= 1)
        require_number("repeats", self.repeats, "finite and >= 0", lambda value: value >= 0)
        require(isinstance(self.keep_penalties, bool), "keep_penalties", self.keep_penalties, "true or false")

    def apply(self, points: Points, episodes: Sequence[Episode], *, iteration: int) -> Points:
        """At the last turn of each episode."""
        return outcome(
            episodes, [self._of(episode) for episode in episodes], keep_penalties=self.keep_penalties
        )

    def _of(self, episode: Episode) -> float:
        answers = [tuple(turn.actions) for turn in episode.turns if turn.is_valid]
        again = 1 - len(set(answers)) / len(answers) if answers else 0.0
        return episode.success * self.discount ** (len(episode.turns) - 1) - self.repeats * again
