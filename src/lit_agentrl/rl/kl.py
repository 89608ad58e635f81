"""Keeping the policy near a reference: estimators of the KL divergence and the two places to use them.

``l = logp - ref_logp`` in nats, (B, T).  Estimators are those of Schulman, "Approximating KL divergence"
(2020). The reference carries no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_agentrl.rl.masked import check_shapes


def none() -> None:
    """No reference model and no KL term."""


def k1(*, logp_BT: Tensor, ref_logp_BT: Tensor) -> Tensor:
    """``l``: unbiased, may be negative.  As a loss its expected gradient is 0; use it in the reward."""
    return _difference(logp_BT, ref_logp_BT)


def k2(*, logp_BT: Tensor, ref_logp_BT: Tensor) -> Tensor:
    """``l^2 / 2``: biased, and as a loss the one with the gradient of the reverse KL."""
    return 0.5 * _difference(logp_BT, ref_logp_BT).square()


def k3(*, logp_BT: Tensor, ref_logp_BT: Tensor) -> Tensor:
    """``exp(-l) + l - 1``: unbiased and >= 0, the one of GRPO.

    ``l`` is clamped to [-20, 20] and the result to at most 10; beyond either there is no gradient.
    """
    difference_BT = _difference(logp_BT, ref_logp_BT).clamp(-20, 20)
    return (torch.expm1(-difference_BT) + difference_BT).clamp(max=10)


def k1_plus(*, logp_BT: Tensor, ref_logp_BT: Tensor) -> Tensor:
    """Value of `k1`, gradient of `k2` (straight-through): unbiased, with the gradient of the reverse KL."""
    return _with_gradient_of_k2(k1(logp_BT=logp_BT, ref_logp_BT=ref_logp_BT), logp_BT, ref_logp_BT)


def k3_plus(*, logp_BT: Tensor, ref_logp_BT: Tensor) -> Tensor:
    """Value of `k3` with its bounds, gradient of `k2` without bounds (straight-through)."""
    return _with_gradient_of_k2(k3(logp_BT=logp_BT, ref_logp_BT=ref_logp_BT), logp_BT, ref_logp_BT)


@dataclass(frozen=True, kw_only=True)
class KLInLoss:
    """Adds ``coef * estimator(logp, ref_logp)`` to the loss of each sampled token.

    Attributes:
        estimator: `k1`, `k2`, `k3`, `k1_plus` or `k3_plus`.
        coef: weight of the term, loss units per nat, > 0.
    """

    estimator: Callable[..., Tensor]
    coef: float

    def __post_init__(self) -> None:
        """Checks the coefficient."""
        _check_coef(self.coef)

    def __call__(self, *, logp_BT: Tensor, ref_logp_BT: Tensor, is_action_BT: Tensor) -> Tensor:
        """Loss of each token (B, T), 0 where not sampled; gradient through ``logp_BT``."""
        logp_BT, ref_logp_BT = _at_actions(logp_BT, ref_logp_BT, is_action_BT)
        return self.coef * self.estimator(logp_BT=logp_BT, ref_logp_BT=ref_logp_BT)


@dataclass(frozen=True, kw_only=True)
class KLInReward:
    """Subtracts ``coef * estimator(old_logp, ref_logp)`` from the reward of each sampled token.

    Attributes:
        estimator: `k1` in the literature (InstructGPT, arXiv 2203.02155).
        coef: price of one nat, environment points, > 0.
    """

    estimator: Callable[..., Tensor]
    coef: float

    def __post_init__(self) -> None:
        """Checks the coefficient."""
        _check_coef(self.coef)

    @torch.no_grad()
    def __call__(self, *, old_logp_BT: Tensor, ref_logp_BT: Tensor, is_action_BT: Tensor) -> Tensor:
        """What to add to ``reward_BT`` (B, T): points, 0 where not sampled, no gradient."""
        logp_BT, ref_logp_BT = _at_actions(old_logp_BT, ref_logp_BT, is_action_BT)
        return -self.coef * self.estimator(logp_BT=logp_BT, ref_logp_BT=ref_logp_BT)


def _difference(logp_BT: Tensor, ref_logp_BT: Tensor) -> Tensor:
    check_shapes(logp_BT=logp_BT, ref_logp_BT=ref_logp_BT)
    return logp_BT - ref_logp_BT.detach()


def _with_gradient_of_k2(value_BT: Tensor, logp_BT: Tensor, ref_logp_BT: Tensor) -> Tensor:
    slope_BT = k2(logp_BT=logp_BT, ref_logp_BT=ref_logp_BT)
    return value_BT.detach() + (slope_BT - slope_BT.detach())


def _at_actions(logp_BT: Tensor, ref_logp_BT: Tensor, is_action_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Both log-probs with 0 at tokens that were not sampled: there every estimator is 0."""
    check_shapes(logp_BT=logp_BT, ref_logp_BT=ref_logp_BT, is_action_BT=is_action_BT)
    zero_BT = torch.zeros_like(logp_BT)
    return torch.where(is_action_BT, logp_BT, zero_BT), torch.where(is_action_BT, ref_logp_BT, zero_BT)


def _check_coef(coef: float) -> None:
    if not coef > 0:
        raise ValueError(f"algo.kl.coef={coef} must be > 0; algo/kl=none switches the KL term off")
