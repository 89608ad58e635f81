"""Metrics that compare a learned or judged reward with true success."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


class SuccessComparison:
    """A comparison of a reward part's values with true success over a run."""

    def __init__(self) -> None:
        self._first: dict[str, float] = {}

    def measure(self, values: Sequence[float], solved: Sequence[float]) -> dict[str, float]:
        """Return ``score``, ``success``, ``auc`` and ``gap`` of an iteration.

        ``score`` is the mean value of episodes and ``success`` their true success rate.  ``auc`` is the probability
        that a success has a higher value than a failure.  ``gap`` is the share of episodes whose value is at least the
        median of successes in the first iteration that had some, minus the success rate.

        Args:
            values: values of the episodes of all processes, at least one.
            solved: 1 for each solved episode.
        """
        value_A, is_solved = (
            torch.tensor(values, dtype=torch.float64),
            torch.tensor(solved, dtype=torch.float64) > 0,
        )
        metrics = {"score": float(value_A.mean()), "success": float(is_solved.double().mean())}
        won, lost = value_A[is_solved], value_A[~is_solved]
        if len(won) and len(lost):
            difference = won[:, None] - lost
            metrics["auc"] = float(((difference > 0).double() + 0.5 * (difference == 0).double()).mean())
        if len(won) and "bar" not in self._first:
            self._first["bar"] = float(won.median())
        if "bar" in self._first:
            metrics["gap"] = float((value_A >= self._first["bar"]).double().mean()) - metrics["success"]
        return metrics

    def state_dict(self) -> dict[str, Any]:
        return dict(self._first)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._first = dict(state)
