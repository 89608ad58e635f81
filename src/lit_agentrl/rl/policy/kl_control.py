"""Controllers of the KL coefficient: compute the next value from the last value and KL.

The caller holds the coefficient, calls ``update`` once per iteration and saves it in checkpoints.  ``kl`` is in nats,
per token or per trajectory as the caller measures it; the KL constants of a controller are in the same unit.  An
iteration without sampled tokens, or whose KL is not finite, leaves the coefficient unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from lit_agentrl.checks import require, require_number
from lit_agentrl.rl.policy.kl import KLTerm

COEF_MIN, COEF_MAX = 1e-8, 1e8  # a coefficient halved down to 0 could never grow again
_MAX_ERROR = 0.2


class Controller(Protocol):
    """A rule that computes the next coefficient from the last one and the measured KL.

    Attributes:
        moves: True if it ever changes the coefficient.
    """

    moves: ClassVar[bool]

    def update(self, coef: float, kl: float, num_tokens: int) -> float:
        """Return the next coefficient.

        Args:
            coef: the coefficient of the last iteration, > 0.
            kl: the KL measured in that iteration, nats.
            num_tokens: number of sampled tokens on which it was measured.

        Raises:
            ValueError: ``coef`` is not positive or ``num_tokens`` is negative.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """A constant coefficient."""

    moves: ClassVar[bool] = False

    def update(self, coef: float, kl: float, num_tokens: int) -> float:
        _is_measured(coef, kl, num_tokens)  # checks the arguments
        return coef


@dataclass(frozen=True, kw_only=True)
class Ziegler:
    """Proportional controller of Ziegler et al.: arXiv 1909.08593, section 2.2.

    ``coef * (1 + clip(kl / target - 1, -0.2, 0.2) * n / horizon)``.  ``n`` is ``num_tokens``, at most ``horizon``, so
    that one update changes the coefficient by at most a fifth; the formula of the paper would make it negative at
    n > 5 horizon.

    Attributes:
        target: nats, > 0, in the unit of ``kl``.  The 6 of the paper is per trajectory.
        horizon: sampled tokens, > 0.  The paper uses 1e4 trajectories: multiply by their length.
    """

    target: float
    horizon: float
    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the constants."""
        _check_positive(target=self.target, horizon=self.horizon)

    def update(self, coef: float, kl: float, num_tokens: int) -> float:
        if not _is_measured(coef, kl, num_tokens):
            return coef
        error = min(max(kl / self.target - 1, -_MAX_ERROR), _MAX_ERROR)
        return _clamp_coefficient(coef * (1 + error * min(num_tokens / self.horizon, 1.0)))


@dataclass(frozen=True, kw_only=True)
class PPOPenalty:
    """Adaptive KL penalty of PPO: arXiv 1707.06347, section 4.

    ``coef / 2`` if kl < target / 1.5, ``2 coef`` if kl > 1.5 target.  In the paper ``kl`` is measured between the
    sampling and the updated policy.

    Attributes:
        target: nats, > 0.
    """

    target: float = 0.01
    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the constant."""
        _check_positive(target=self.target)

    def update(self, coef: float, kl: float, num_tokens: int) -> float:
        if not _is_measured(coef, kl, num_tokens):
            return coef
        if kl < self.target / 1.5:
            return _clamp_coefficient(coef / 2)
        return _clamp_coefficient(coef * 2) if kl > self.target * 1.5 else coef


@dataclass(frozen=True, kw_only=True)
class SeedThreshold:
    """Two coefficients: ``high_coef`` if kl > high_kl, ``low_coef`` if kl < low_kl.

    Between these KLs, the coefficient does not change.

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
        """Check the constants."""
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
    """The coefficient of a KL term, updated by a controller after each iteration; a `Term`."""

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
        """Update the coefficient; return the one that was used, as a metric."""
        used = self.kl.coef
        self.kl.coef = self.controller.update(used, measured, num_tokens)
        return {"train/kl_coef": used}


def _is_measured(coef: float, kl: float, num_tokens: int) -> bool:
    """Check the arguments and return True if a KL was measured."""
    if not 0 < coef < math.inf:
        raise ValueError(f"the controller cannot start from coef={coef}; it must be > 0")
    require(num_tokens >= 0, "num_tokens", num_tokens, ">= 0")
    return num_tokens > 0 and math.isfinite(kl)


def _clamp_coefficient(coef: float) -> float:
    return min(max(coef, COEF_MIN), COEF_MAX)


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        require_number(name, value, "finite and > 0", lambda value: value > 0)
