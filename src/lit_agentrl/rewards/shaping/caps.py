"""Bounds on rewards and returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from lit_agentrl.checks import require_number
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.base import RewardPart, Rewards, Stage


@dataclass(kw_only=True)
class Caps(RewardPart):
    """Clip rewards of turns to ``[-per_turn, per_turn]``, then returns to ``[-per_episode, per_episode]``.

    The second bound acts on the running sum S_k: turn k gets ``clip(S_k) - clip(S_{k-1})``, so the return is the
    clipped sum, and the excess is removed at the turn where it occurs.

    Args:
        per_turn, per_episode: bounds in reward units; null for no bound.
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

    def apply(self, rewards: Rewards, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        """Return the clipped reward of each turn."""
        return [self._clip_row(row) for row in rewards]

    def _clip_row(self, row: Sequence[float]) -> list[float]:
        bounded = [clip(value, self.per_turn) for value in row]
        sums = list(accumulate(bounded))
        if all(clip(total, self.per_episode) == total for total in sums):
            return bounded
        earned = [clip(total, self.per_episode) for total in sums]
        return [after - before for before, after in zip([0.0, *earned], earned, strict=False)]


def clip(value: float, bound: float | None) -> float:
    """Clip a value to ``[-bound, bound]``; None is no bound."""
    return value if bound is None else max(-bound, min(bound, value))
