"""A task sampler that trains in stages, the easy tasks first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lit_agentrl.checks import require, require_number, require_whole
from lit_agentrl.distributed import gather_objects
from lit_agentrl.episode import Episode, Source
from lit_agentrl.experimental.task_samplers.success_rates import MeasuredSampler


class Difficulty(MeasuredSampler):
    """A sampler that prefers the easiest tasks, and more of them in each stage.

    Each stage prefers the share of the tasks with the highest estimated success rates; the ranking changes with the
    estimates.  A stage ends when ``after`` or ``success`` is reached; the last stage has no end.  Stages are those of
    DELTA (arXiv 2509.21016: one switch) and GHPO (arXiv 2507.10628: steps of a quarter), which switch rewards and hints
    instead of tasks.

    Args:
        shares: preferred share of the tasks in each stage; increasing in (0, 1], the last one 1.
        after: number of iterations after which a stage ends; None: no such limit.
        success: success rate in an iteration at which a stage ends; None: no such rate.
        floor, prior, prior_episodes, keep: see `MeasuredSampler`.

    Raises:
        ValueError: a value is out of range, or there are several stages, but neither ``after`` nor ``success``.
    """

    def __init__(
        self,
        *,
        shares: Sequence[float] = (0.25, 0.5, 0.75, 1.0),
        after: int | None = 25,
        success: float | None = None,
        floor: float = 0.0,
        prior: float = 0.5,
        prior_episodes: float = 2.0,
        keep: float = 0.5,
    ) -> None:
        super().__init__(floor=floor, prior=prior, prior_episodes=prior_episodes, keep=keep)
        is_listed = isinstance(shares, Sequence) and not isinstance(shares, str)
        stages = [share for share in shares if isinstance(share, int | float)] if is_listed else []
        is_growing = all(low < high for low, high in pairwise([0, *stages])) and stages[-1:] == [1]
        valid = "growing numbers above 0 that end with 1, such as [0.5,1]"
        require(is_growing and len(stages) == len(shares), "shares", shares, valid)
        if after is not None:
            require_whole("after", after, 1)
        if success is not None:
            require_number("success", success, "in (0, 1]", lambda value: 0 < value <= 1)
        if len(stages) > 1 and after is None and success is None:
            raise ValueError("after=null never begins the next stage; set after, or success")
        self._shares, self._after, self._success = stages, after, success
        self._stage = self._iterations = 0  # index of the stage, and its completed iterations

    def prefer(self, rate_N: NDArray[np.float64]) -> NDArray[np.bool_]:
        count = math.ceil(self._shares[self._stage] * len(rate_N))
        easiest = np.argsort(-rate_N, kind="stable")[:count]
        return np.isin(np.arange(len(rate_N)), easiest)

    def learn(self, episodes: Sequence[Episode]) -> dict[str, float]:
        curves = super().learn(episodes) | {"stage": float(self._stage)}
        solved = gather_objects([e.success for e in episodes if e.source is Source.ROLLOUT and not e.failed])
        self._iterations += 1
        is_over = self._after is not None and self._iterations >= self._after
        is_learnt = self._success is not None and sum(solved) >= self._success * max(len(solved), 1)
        if (is_over or is_learnt) and self._stage + 1 < len(self._shares):
            self._stage, self._iterations = self._stage + 1, 0
        return curves

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"stage": self._stage, "iterations": self._iterations}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._stage = min(int(state["stage"]), len(self._shares) - 1)
        self._iterations = int(state["iterations"])
