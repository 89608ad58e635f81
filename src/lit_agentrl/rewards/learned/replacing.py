"""What parts have in common whose points stand in place of the game's, or beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lit_agentrl.checks import require, require_number
from lit_agentrl.episode import Episode, Turn
from lit_agentrl.rewards.base import Points, RewardPart, Stage


@dataclass(kw_only=True)
class Replacing(RewardPart):
    """A part that gives every turn a value, and says what becomes of the game's points.

    Args:
        weight: points per unit of value; 0 keeps the game's points: the part is watched alone.
        replaces: its points stand in place of the game's, else beside them.
        keep_penalties: protocol penalties stay where the game's points go.

    Raises:
        ValueError: an option that makes no sense.
    """

    weight: float = 1.0
    replaces: bool = True
    keep_penalties: bool = True

    def __post_init__(self) -> None:
        require_number("weight", self.weight, "finite and >= 0", lambda weight: 0 <= weight < math.inf)
        for name in ("replaces", "keep_penalties"):
            require(isinstance(getattr(self, name), bool), name, getattr(self, name), "true or false")
        if not self.weight and self.replaces:
            raise ValueError(
                "weight=0 would leave no points at all; set replaces=false to watch the part alone"
            )
        self.stage = Stage.TASK if self.replaces else Stage.SHAPING  # type: ignore[misc]  # an option decides it

    def placed(self, points: Points, episodes: Sequence[Episode], values: Points) -> Points:
        """``weight * value`` of each turn, and of the points so far what stays."""
        return [
            [
                self._kept(p, turn) + self.weight * v
                for p, v, turn in zip(row, more, episode.turns, strict=True)
            ]
            for row, more, episode in zip(points, values, episodes, strict=True)
        ]

    def _kept(self, points: float, turn: Turn) -> float:
        if not self.replaces:
            return points
        return turn.reward_parts.get("invalid", 0.0) if self.keep_penalties else 0.0
