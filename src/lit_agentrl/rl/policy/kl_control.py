"""Controllers of the KL coefficient: pure rules from the last coefficient and KL to the next coefficient.

The caller holds the coefficient, calls ``update`` once per iteration and saves it in checkpoints.  ``kl`` is
in nats, per token or per trajectory, whichever the caller measures: a controller's own KL values are in that
unit.  An iteration without sampled tokens, or whose KL is not finite, leaves the coefficient alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from lit_agentrl.checks import require, require_number
from lit_agentrl.rl.policy.kl import KLTerm

COEF_MIN, COEF_MAX = 1e-8, 1e8  # repeated halving must not end at 0, from where no factor leads back
_MAX_ERROR = 0.2


class Controller(Protocol):
    """The next coefficient as a function of the last one and of what was measured with it.

    Attributes:
        moves: whether it ever changes the coefficient.
    """

    moves: ClassVar[bool]

    def update(self, coef: float, kl: float, num_tokens: int) -> float:
        """``coef`` after an iteration whose ``num_tokens`` sampled tokens showed ``kl`` nats.

        Raises:
            ValueError: if ``coef`` is not positive or ``num_tokens`` is negative.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """The coefficient stays as it is."""

    moves: ClassVar[bool] = False

    def update(self, coef: float, kl: float, num_tokens: int) -> float:
        _is_measured(coef, kl, num_tokens)
        return coef


@dataclass(frozen=True, kw_only=True)
class Ziegler:
    """``coef * (1 + clip(kl / target - 1, -0.2, 0.2) * n / horizon)``: arXiv 1909.08593, section 2.2.

    ``n`` is ``num_tokens``, at most ``horizon``: one update changes the coefficient by a fifth at most, where
    the plain formula would make it negative at n > 5 horizon.

    Attributes:
        target: nats, > 0, in the unit of ``kl``.  The paper's 6 is per trajectory.
        horizon: sampled tokens, > 0.  The paper counts trajectories, 1e4 of them: multiply by their length.
    """

    target: float
    horizon: float
    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Checks the constants."""
        _check_positive(target=self.target, horizon=self.horizon)

    def update(self, coef: float, kl: float, num_tokens: int) -> float:
        if not _is_measured(coef, kl, num_tokens):
            return coef
        error = min(max(kl / self.target - 1, -_MAX_ERROR), _MAX_ERROR)
        return _bounded(coef * (1 + error * min(num_tokens / self.horizon, 1.0)))


@dataclass(frozen=True, kw_only=True)
class PPOPenalty:
    """``coef / 2`` if kl < target / 1.5, ``2 coef`` if kl > 1.5 target: PPO, arXiv 1707.06347, section 4.

    There ``kl`` is that between the sampling and the updated policy.

    Attributes:
        target: nats, > 0.
    """

    target: float = 0.01
    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Checks the constant."""
        _check_positive(target=self.target)

    def update(self, coef: float, kl: float, num_tokens: int) -> float:
        if not _is_measured(coef, kl, num_tokens):
            return coef
        if kl < self.target / 1.5:
            return _bounded(coef / 2)
        return _bounded(coef * 2) if kl > self.target * 1.5 else coef


@dataclass(frozen=True, kw_only=True)
class SeedThreshold:
    """``high_coef`` once kl > high_kl, ``low_coef`` once kl < low_kl, in between the last coefficient.

    Attributes:
        low_kl: nats, > 0.
        high_kl: nats, > ``low_kl``.
        low_coef: > 0.
        high_coef: > ``low_coef``.
    """

    low_kl: float = 0.1
    high_kl: float = 0.5
    low_coef: float = 0.01
    high_coef: float = 0.05
    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Checks the constants."""
        _check_positive(low_kl=self.low_kl, low_coef=self.low_coef)
        for name in ("kl", "coef"):
            low, high = getattr(self, f"low_{name}"), getattr(self, f"high_{name}")
            require(low < high < math.inf, f"high_{name}", high, f"finite and > low_{name}={low}")

    def update(self, coef: float, kl: float, num_tokens: int) -> float:
        if not _is_measured(coef, kl, num_tokens):
            return coef
        if kl > self.high_kl:
            return self.high_coef
        return self.low_coef if kl < self.low_kl else coef


@dataclass
class KLCoefficient:
    """The coefficient of a KL term, moved by a controller after each iteration: a `Term`."""

    kl: KLTerm
    controller: Controller
    place: ClassVar[str] = "kl"
    is_before: ClassVar[bool] = False

    @property
    def is_held(self) -> bool:
        return not self.controller.moves

    @property
    def measure(self) -> str:
        return self.kl.measure

    @property
    def measured_by(self) -> Callable[..., Tensor] | None:
        return self.kl.measured_by

    @property
    def coef(self) -> float:
        return self.kl.coef

    @coef.setter
    def coef(self, value: float) -> None:
        self.kl.coef = value

    def update(self, measured: float, num_tokens: int) -> dict[str, float]:
        """Moves the coefficient; returns the one that was used."""
        used = self.kl.coef
        self.kl.coef = self.controller.update(used, measured, num_tokens)
        return {"train/kl_coef": used}


def _is_measured(coef: float, kl: float, num_tokens: int) -> bool:
    """Whether there is a KL to go by, after checking the arguments."""
    if not 0 < coef < math.inf:
        raise ValueError(f"the controller cannot start from coef={coef}; it must be > 0")
    require(num_tokens >= 0, "num_tokens", num_tokens, ">= 0")
    return num_tokens > 0 and math.isfinite(kl)


def _bounded(coef: float) -> float:
    return min(max(coef, COEF_MIN), COEF_MAX)


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        require_number(name, value, "finite and > 0", lambda value: value > 0)
