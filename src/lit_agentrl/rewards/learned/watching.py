"""What a learned or asked reward is watched by: true success beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


class Watched:
    """Compares the values that a reward part gives with the truth, over the iterations of a run."""

    def __init__(self) -> None:
        self._first: dict[str, float] = {}

    def look(self, values: Sequence[float], solved: Sequence[float]) -> dict[str, float]:
        """``score``, the mean value of episodes, and beside it the true ``success``; ``auc`` and ``gap``.

        ``auc``: the chance that a success has a higher value than a failure.  ``gap``: the share of episodes whose
        value is at least the median of successes in the first iteration that had some, less the share of successes.

        Args:
            values: of all processes' episodes, at least one.
            solved: 1 where one is solved.
        """
        value_A, is_solved = (
            torch.tensor(values, dtype=torch.float64),
            torch.tensor(solved, dtype=torch.float64) > 0,
        )
        row = {"score": float(value_A.mean()), "success": float(is_solved.double().mean())}
        won, lost = value_A[is_solved], value_A[~is_solved]
        if len(won) and len(lost):
            ahead = won[:, None] - lost
            row["auc"] = float(((ahead > 0).double() + 0.5 * (ahead == 0).double()).mean())
        if len(won) and "bar" not in self._first:
            self._first["bar"] = float(won.median())
        if "bar" in self._first:
            row["gap"] = float((value_A >= self._first["bar"]).double().mean()) - row["success"]
        return row

    def state_dict(self) -> dict[str, Any]:
        return dict(self._first)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._first = dict(state)
