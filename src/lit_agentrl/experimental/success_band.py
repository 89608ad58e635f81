"""A task sampler that prefers tasks that are solved sometimes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lit_agentrl.checks import require, require_number
from lit_agentrl.episode import Episode
from lit_agentrl.experimental.success_rates import MeasuredSampler
from lit_agentrl.rollout.task_sampler import Draw


class SuccessBand(MeasuredSampler):
    """A sampler that draws tasks more often whose success rate lies in a band.

    ``weight = 1 if low <= rate <= high else outside``, with the rates of `MeasuredSampler`.  In groups of a task that
    is always or never solved, advantages are 0.

    Args:
        low, high: the band, ``0 <= low <= high <= 1``.
        outside: weight of the other tasks, in (0, 1]; they are visited again, since the policy changes.
        prior, prior_episodes, keep: see `MeasuredSampler`.

    Raises:
        ValueError: a value is out of range.
    """

    def __init__(
        self,
        *,
        low: float = 0.2,
        high: float = 0.8,
        outside: float = 0.1,
        prior: float = 0.5,
        prior_episodes: float = 2.0,
        keep: float = 0.5,
    ) -> None:
        super().__init__(prior=prior, prior_episodes=prior_episodes, keep=keep)
        require_number("high", high, "in [0, 1]", lambda value: 0 <= value <= 1)
        require_number("low", low, "in [0, 1]", lambda value: 0 <= value <= 1)
        require(low <= high, "low", low, f"at most high={high}")
        require_number("outside", outside, "in (0, 1]", lambda value: 0 < value <= 1)
        self._low, self._high, self._outside = low, high, outside

    def weigh(self, draw: Draw) -> NDArray[np.float64]:
        weights = [1.0 if self._is_inside(number) else self._outside for number in range(draw.instances or 0)]
        return np.array(weights)

    def learn(self, episodes: Sequence[Episode]) -> dict[str, float]:
        curves = super().learn(episodes)
        inside = [self._is_inside(number) for number in self._contents]
        return curves | {"band_share": sum(inside) / max(len(inside), 1)}

    def _is_inside(self, number: int) -> bool:
        return self._low <= self.estimate(number) <= self._high
