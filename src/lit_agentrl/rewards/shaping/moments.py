"""Count, mean and spread of numbers, exactly the same in whatever order they come within an iteration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Moments:
    """Of the numbers seen so far: how many, their mean, and the sum of squared deviations from it."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def merged(self, values: Sequence[float]) -> Moments:
        """With further numbers, by the pairwise rule of Chan, Golub and LeVeque (1979)."""
        if not values:
            return self
        count = len(values)
        mean = math.fsum(values) / count
        squares = math.fsum((value - mean) ** 2 for value in values)
        total, gap = self.count + count, mean - self.mean
        return Moments(
            total,
            self.mean + gap * count / total,
            self.squares + squares + gap * gap * self.count * count / total,
        )

    @property
    def std(self) -> float:
        """Standard deviation (ddof 1); 0 for fewer than two numbers."""
        return math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else 0.0

    @property
    def scale(self) -> float:
        """What to divide by: the spread, or 1 where there is none."""
        return self.std if self.std > 1e-8 else 1.0

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Moments:
        return cls(**state)
