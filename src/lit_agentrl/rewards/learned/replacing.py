"""Base class of parts whose rewards replace the game's or are added to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lit_agentrl.checks import require, require_number
from lit_agentrl.episode import Episode, Turn
from lit_agentrl.rewards.base import RewardPart, Rewards, Stage


@dataclass(kw_only=True)
class Replacing(RewardPart):
    """A part whose values of turns replace the game's rewards or are added to them.

    Args:
        weight: reward per unit of value; with 0 the rewards do not change, and the part only logs metrics.
        replaces: its rewards replace those of the game; otherwise they are added.
        keep_penalties: if it replaces them, add the protocol penalties.

    Raises:
        ValueError: an option is invalid.
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
                "weight=0 would set all rewards to 0; set replaces=false to log the metrics of the part only"
            )
        self.stage = Stage.TASK if self.replaces else Stage.SHAPING  # type: ignore[misc]  # an option decides it

    def combine_rewards(self, rewards: Rewards, episodes: Sequence[Episode], values: Rewards) -> Rewards:
        """Return ``weight * value`` of each turn plus the rewards that are kept."""
        return [
            [
                self._keep_reward(p, turn) + self.weight * v
                for p, v, turn in zip(row, value_row, episode.turns, strict=True)
            ]
            for row, value_row, episode in zip(rewards, values, episodes, strict=True)
        ]

    def _keep_reward(self, reward: float, turn: Turn) -> float:
        if not self.replaces:
            return reward
        return turn.reward_parts.get("invalid", 0.0) if self.keep_penalties else 0.0
