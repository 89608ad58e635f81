"""DELTA's schedule: the environment's points first, then only whether it was solved."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from lit_agentrl.checks import require, require_number, require_whole
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.base import Points, RewardPart, Stage, outcome


@dataclass(kw_only=True)
class Delta(RewardPart):
    """Dense points, then from a switch on ``solved * 1[success]`` at the last turn (DELTA, arXiv 2509.21016).

    Of the three triggers those that are set count, and the first to fire switches, once and for good.

    Args:
        at_iteration: switches after so many iterations.
        patience: switches when the mean return has had no new best for so many iterations.
        share: switches when that share of an iteration's groups has a success.
        solved: points of a success after the switch.
        keep_penalties: leave the protocol penalties beside them.
    """

    stage: ClassVar[Stage] = Stage.TASK
    sees: ClassVar[Literal["own", "all"]] = "all"
    at_iteration: int | None = 50
    patience: int | None = None
    share: float | None = None
    solved: float = 1.0
    keep_penalties: bool = True
    _is_binary: bool = field(default=False, init=False, repr=False)
    _best: float = field(default=-math.inf, init=False, repr=False)
    _waited: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("at_iteration", "patience"):
            if getattr(self, name) is not None:
                require_whole(name, getattr(self, name), 1)
        if self.share is not None:
            require_number("share", self.share, "in (0, 1]", lambda value: 0 < value <= 1)
        if self.at_iteration is None and self.patience is None and self.share is None:
            raise ValueError("at_iteration=null never switches; set at_iteration, patience or share")
        require_number("solved", self.solved, "> 0", lambda value: value > 0)
        require(isinstance(self.keep_penalties, bool), "keep_penalties", self.keep_penalties, "true or false")

    def is_binary(self, iteration: int) -> bool:
        """Whether the switch lies behind."""
        return self._is_binary or (self.at_iteration is not None and iteration >= self.at_iteration)

    def apply(self, points: Points, episodes: Sequence[Episode], *, iteration: int) -> Points:
        """The points as they are, or the outcome alone."""
        if not self.is_binary(iteration):
            return points
        return outcome(
            episodes, [self.solved * e.success for e in episodes], keep_penalties=self.keep_penalties
        )

    def curves(self, episodes: Sequence[Episode], *, iteration: int) -> dict[str, float]:
        """``phase``: 1 dense, 2 binary."""
        return {"phase": 2.0 if self.is_binary(iteration) else 1.0}

    def learn(self, episodes: Sequence[Episode], *, iteration: int) -> None:
        """See whether a trigger fires."""
        returns = self.everyones_numbers([e.total_reward for e in episodes])
        mean = math.fsum(returns) / len(returns)
        self._waited = 0 if mean > self._best else self._waited + 1
        self._best = max(self._best, mean)
        groups = set(self.everyones_numbers([e.group for e in episodes]))
        solved = set(self.everyones_numbers([e.group for e in episodes if e.success]))
        if self.patience is not None and self._waited >= self.patience:
            self._is_binary = True
        if self.share is not None and len(solved) >= self.share * len(groups):
            self._is_binary = True

    def state_dict(self) -> dict[str, Any]:
        """Whether a trigger fired, and how long the best mean return has stood."""
        return {"is_binary": self._is_binary, "best": self._best, "waited": self._waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""
        self._is_binary, self._best, self._waited = state["is_binary"], state["best"], state["waited"]
