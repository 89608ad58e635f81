"""Entropy terms of the loss, with adaptive coefficients, and token selection by entropy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from lit_agentrl.checks import require, require_number
from lit_agentrl.rl.masked import check_shapes


def none() -> None:
    """Use no entropy term; entropies are computed for logging only."""


def bonus(*, entropy_BT: Tensor, is_action_BT: Tensor, coef: float) -> Tensor:
    """``-coef * H_t`` for each sampled token, 0 elsewhere: A3C, arXiv 1602.01783, section 4.

    Args:
        entropy_BT: nats, of the full distribution at the sampling temperature, (B, T); carries gradient.
        is_action_BT: sampled tokens.
        coef: loss units per nat, > 0.

    Raises:
        ValueError: if shapes disagree or ``coef`` is not positive.
    """
    require(0 < coef < math.inf, "coef", coef, "finite and > 0; algo/entropy=none switches the bonus off")
    check_shapes(entropy_BT=entropy_BT, is_action_BT=is_action_BT)
    return -coef * torch.where(is_action_BT, entropy_BT, torch.zeros_like(entropy_BT))


@dataclass(kw_only=True)
class Bonus:
    """`bonus` with a coefficient that other parts of the run may set, a `Term`.

    Attributes:
        coef: loss units per nat, finite and > 0; checkpoints contain it.
    """

    coef: float
    place: ClassVar[str] = "entropy"
    measure: ClassVar[str] = "entropy"
    measured_by: ClassVar[Callable[..., Tensor] | None] = None
    is_before: ClassVar[bool] = False
    is_held: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the coefficient."""
        is_valid = 0 < self.coef < math.inf
        require(is_valid, "coef", self.coef, "finite and > 0; algo/entropy=none switches the bonus off")

    def __call__(self, *, entropy_BT: Tensor, is_action_BT: Tensor) -> Tensor:
        """Return the loss of each token (B, T); gradient through ``entropy_BT``."""
        return bonus(entropy_BT=entropy_BT, is_action_BT=is_action_BT, coef=self.coef)

    def update(self, measured: float, num_tokens: int) -> dict[str, float]:
        """Return the coefficient that was used, as a metric."""
        return {"train/entropy_coef": self.coef}


def _get_sampler_entropy(*, sampler_entropy_BT: Tensor) -> Tensor:
    return sampler_entropy_BT


@dataclass(kw_only=True)
class AdaptiveBonus:
    """`bonus` with a coefficient that grows while entropy is low, a `Term`: Skywork-OR1, arXiv 2505.22312.

    Once per iteration ``coef <- coef + delta`` if ``H <= target`` else ``coef - delta``, within [0, max_coef], where
    ``H`` is the mean entropy of the sampled tokens of the iteration.  The bonus acts only while ``H <= target``.

    Attributes:
        target: nats per token, > 0.
        delta: change per iteration, > 0.
        max_coef: upper bound of the coefficient, >= ``delta``; the lower one is 0.
        coef: loss units per nat, in [0, max_coef], which `update` changes and checkpoints contain.
    """

    target: float
    delta: float
    max_coef: float
    coef: float = 0.0
    place: ClassVar[str] = "entropy"
    measure: ClassVar[str] = "sampler_entropy"
    measured_by: ClassVar[Callable[..., Tensor] | None] = staticmethod(_get_sampler_entropy)
    is_before: ClassVar[bool] = True
    is_low: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        """Check the constants."""
        for name, constant in dict(target=self.target, delta=self.delta, max_coef=self.max_coef).items():
            require_number(name, constant, "finite and > 0", lambda value: value > 0)
        require(self.max_coef >= self.delta, "max_coef", self.max_coef, f">= delta={self.delta}")
        require(0 <= self.coef <= self.max_coef, "coef", self.coef, f"in [0, max_coef={self.max_coef}]")

    def __call__(self, *, entropy_BT: Tensor, is_action_BT: Tensor) -> Tensor:
        """Return the loss of each token (B, T), 0 where not sampled.

        Gradient flows through ``entropy_BT``.
        """
        if not (self.is_low and self.coef > 0):
            return torch.zeros_like(entropy_BT)
        return bonus(entropy_BT=entropy_BT, is_action_BT=is_action_BT, coef=self.coef)

    def update(self, measured: float, num_tokens: int) -> dict[str, float]:
        """Update the coefficient before the first step of an iteration.

        Args:
            measured: mean entropy of the iteration, nats per token; a value that is not finite changes nothing.
            num_tokens: sampled tokens; not used.
        """
        if math.isfinite(measured):
            self.is_low = measured <= self.target
            change = self.delta if self.is_low else -self.delta
            self.coef = min(max(self.coef + change, 0.0), self.max_coef)
        return {"train/entropy_coef": self.coef if self.is_low else 0.0}


@torch.no_grad()
def top_entropy_quantile(*, sampler_entropy_BT: Tensor, is_action_BT: Tensor, share: float) -> Tensor:
    """Select the sampled tokens with the highest entropy: arXiv 2506.01939.

    Returns ``is_kept_BT``, True for ``max(1, floor(share * n))`` of n sampled tokens.  Tokens tied with the last one
    are selected too, so that the order of rows does not matter.  Call it on all rows of a minibatch (of all ranks):
    with the quantile of a micro-batch the gradient would depend on the split.

    Args:
        sampler_entropy_BT: nats, as recorded at sampling, (B, T); no gradient.
        is_action_BT: sampled tokens; others are never kept.
        share: in (0, 1]; 1 keeps every sampled token.

    Raises:
        ValueError: if shapes disagree, ``share`` is out of range or a sampled token's entropy is NaN.
    """
    require(0 < share <= 1, "share", share, "in (0, 1]; 1.0 keeps every token")
    check_shapes(sampler_entropy_BT=sampler_entropy_BT, is_action_BT=is_action_BT)
    entropy_N = sampler_entropy_BT[is_action_BT]
    if not len(entropy_N):
        return torch.zeros_like(is_action_BT)
    if bool(entropy_N.isnan().any()):
        raise ValueError("sampler_entropy_BT is NaN at a sampled token")
    num_kept = max(1, int(share * len(entropy_N) + 1e-9))  # 0.29 * 100 is 28.999... in floating point
    lowest_kept = entropy_N.topk(num_kept).values[-1]
    return is_action_BT & (sampler_entropy_BT >= lowest_kept)
