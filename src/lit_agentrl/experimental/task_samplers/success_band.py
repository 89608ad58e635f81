"""A task sampler that prefers tasks that are solved sometimes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lit_agentrl.checks import require, require_number
from lit_agentrl.experimental.task_samplers.success_rates import MeasuredSampler


class SuccessBand(MeasuredSampler):
    """A sampler that prefers tasks whose estimated success rate lies in a band.

    A task that is always or never solved teaches nothing, since its groups have advantages of 0.  `MeasuredSampler`
    defines weights and rates.

    Args:
        low, high: bounds of the band, both inclusive, ``0 <= low <= high <= 1``.
        floor, prior, prior_episodes, keep: see `MeasuredSampler`.

    Raises:
        ValueError: a value is out of range.
    """

    def __init__(
        self,
        *,
        low: float = 0.2,
        high: float = 0.8,
        floor: float = 0.2,
        prior: float = 0.5,
        prior_episodes: float = 2.0,
        keep: float = 0.5,
    ) -> None:
        super().__init__(floor=floor, prior=prior, prior_episodes=prior_episodes, keep=keep)
        for name, value in (("high", high), ("low", low)):
            require_number(name, value, "in [0, 1]", lambda number: 0 <= number <= 1)
        require(low <= high, "low", low, f"at most high={high}")
        self._low, self._high = low, high

    def prefer(self, rate_N: NDArray[np.float64]) -> NDArray[np.bool_]:
        return (self._low <= rate_N) & (rate_N <= self._high)
