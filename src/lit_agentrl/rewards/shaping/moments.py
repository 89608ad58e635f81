"""Running count, mean and variance, independent of the order within an iteration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations of the numbers so far."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def merge(self, values: Sequence[float]) -> Moments:
        """Merge further numbers by the pairwise rule of Chan, Golub and LeVeque (1979)."""
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
        """Divisor for normalisation: the standard deviation, or 1 if it is 0."""
        return self.std if self.std > 1e-8 else 1.0

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Moments:
        return cls(**state)
