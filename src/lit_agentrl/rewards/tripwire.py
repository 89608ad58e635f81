"""An alarm for reward hacking: high reward without success."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from lit_agentrl.checks import require_number
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.base import RewardPart, Rewards, Stage


@dataclass(kw_only=True)
class TripWire(RewardPart):
    """Counter of unsuccessful episodes whose training return is as high as a success's.

    The threshold is the mean, or the ``quantile``, of the training returns of the game's successes in this iteration;
    without any, of those in the last iteration that had some.

    Args:
        quantile: quantile of the successes' returns, in [0, 1] (the lower of two neighbours); null: their mean.
        max_share: the run stops with an error when the share of such episodes is higher; null: never.
    """

    stage: ClassVar[Stage] = Stage.WATCH
    sees: ClassVar[Literal["own", "all"]] = "all"
    quantile: float | None = None
    max_share: float | None = None
    _thresholds: dict[str, float] = field(default_factory=dict, init=False, repr=False)  # by game

    def __post_init__(self) -> None:
        for name in ("quantile", "max_share"):
            if getattr(self, name) is not None:
                require_number(name, getattr(self, name), "in [0, 1], or null", lambda value: 0 <= value <= 1)

    def apply(self, rewards: Rewards, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        """Return the rewards unchanged."""
        return rewards

    def share(self, episodes: Sequence[Episode]) -> float:
        """Return the share of episodes without success at or above the threshold."""
        thresholds = self._compute_thresholds(episodes)
        tripped = [
            not e.success and e.training_return >= thresholds.get(e.task_name, math.inf) for e in episodes
        ]
        gathered = self.gather_numbers(tripped)
        return sum(gathered) / len(gathered)

    def curves(self, episodes: Sequence[Episode], *, iteration: int) -> dict[str, float]:
        """Return ``share``, see :meth:`share`."""
        return {"share": self.share(episodes)}

    def learn(self, episodes: Sequence[Episode], *, iteration: int) -> None:
        """Store the thresholds of this iteration.

        Raises:
            ValueError: the share is above ``max_share``.
        """
        share = self.share(episodes)
        if self.max_share is not None and share > self.max_share:
            raise ValueError(
                f"reward.{self.name}.max_share={self.max_share}: in iteration {iteration + 1}, {share:.3f} of the "
                "episodes earned as much as a success without being one; look at the transcripts"
            )
        self._thresholds = self._compute_thresholds(episodes)

    def state_dict(self) -> dict[str, Any]:
        """Return the last threshold of each game."""
        return {"high": dict(self._thresholds)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of :meth:`state_dict`."""
        self._thresholds = dict(state["high"])

    def _compute_thresholds(self, episodes: Sequence[Episode]) -> dict[str, float]:
        returns_by_game: dict[str, list[float]] = {}
        successes = [e for e in episodes if e.success]
        games = self.gather_texts([e.task_name for e in successes])
        returns = self.gather_numbers([e.training_return for e in successes])
        for game, value in zip(games, returns, strict=True):
            returns_by_game.setdefault(game, []).append(value)
        return self._thresholds | {
            game: self._compute_threshold(sorted(values)) for game, values in returns_by_game.items()
        }

    def _compute_threshold(self, returns: Sequence[float]) -> float:
        if self.quantile is None:
            return math.fsum(returns) / len(returns)
        return returns[int(self.quantile * (len(returns) - 1))]
