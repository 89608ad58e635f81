"""Bounds on what can be earned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from lit_agentrl.checks import require_number
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.base import Points, RewardPart, Stage


@dataclass(kw_only=True)
class Caps(RewardPart):
    """Each turn's points within ``[-per_turn, per_turn]``, then each episode's within ``[-per_episode, per_episode]``.

    The second bound acts on the running sum: a turn earns ``clip(S_k) - clip(S_{k-1})``, so what goes beyond is
    lost where it was earned, and the return is the clipped sum.

    Args:
        per_turn, per_episode: points; null for no bound.
    """

    stage: ClassVar[Stage] = Stage.CAP
    per_turn: float | None = 20.0
    per_episode: float | None = 20.0

    def __post_init__(self) -> None:
        for name in ("per_turn", "per_episode"):
            if getattr(self, name) is not None:
                require_number(
                    name, getattr(self, name), "> 0, or null for no bound", lambda value: value > 0
                )
        if self.per_turn is None and self.per_episode is None:
            raise ValueError("per_turn=null with per_episode=null bounds nothing; leave the part out")

    def apply(self, points: Points, episodes: Sequence[Episode], *, iteration: int) -> Points:
        """Of each turn."""
        return [self._row(row) for row in points]

    def _row(self, row: Sequence[float]) -> list[float]:
        bounded = [clip(value, self.per_turn) for value in row]
        sums = list(accumulate(bounded))
        if all(clip(total, self.per_episode) == total for total in sums):
            return bounded
        earned = [clip(total, self.per_episode) for total in sums]
        return [after - before for before, after in zip([0.0, *earned], earned, strict=False)]


def clip(value: float, bound: float | None) -> float:
    """The nearest number within the bound."""
    return value if bound is None else max(-bound, min(bound, value))
