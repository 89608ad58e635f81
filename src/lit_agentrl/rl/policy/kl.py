"""KL penalties: estimators of the KL divergence, and terms for the reward or the loss.

``l = logp - ref_logp`` in nats, (B, T).  Estimators are those of Schulman, "Approximating KL divergence" (2020).  The
reference carries no gradient.  The coefficient is state: a controller may update it once per iteration
(``kl_control.py``), and checkpoints contain it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lit_agentrl.checks import require
from lit_agentrl.rl.masked import check_shapes

DTYPES = ("float32", "bfloat16", "float16")


def none() -> None:
    """Use no reference model and no KL term."""


def k1(*, logp_BT: Tensor, ref_logp_BT: Tensor) -> Tensor:
    """``l``: unbiased, may be negative.

    As a loss its expected gradient is 0; use it in the reward.
    """
    return _subtract_reference(logp_BT, ref_logp_BT)


def k2(*, logp_BT: Tensor, ref_logp_BT: Tensor) -> Tensor:
    """``l^2 / 2``: biased; as a loss it has the gradient of the reverse KL."""
    return 0.5 * _subtract_reference(logp_BT, ref_logp_BT).square()


def k3(*, logp_BT: Tensor, ref_logp_BT: Tensor) -> Tensor:
    """``exp(-l) + l - 1``: unbiased and >= 0; GRPO uses it.

    ``l`` is clamped to [-20, 20] and the result to at most 10; clamped values carry no gradient.
    """
    difference_BT = _subtract_reference(logp_BT, ref_logp_BT).clamp(-20, 20)
    return (torch.expm1(-difference_BT) + difference_BT).clamp(max=10)


def k1_plus(*, logp_BT: Tensor, ref_logp_BT: Tensor) -> Tensor:
    """Value of `k1`, gradient of `k2` (straight-through): unbiased, with the gradient of the reverse KL."""
    return _with_gradient_of_k2(k1(logp_BT=logp_BT, ref_logp_BT=ref_logp_BT), logp_BT, ref_logp_BT)


def k3_plus(*, logp_BT: Tensor, ref_logp_BT: Tensor) -> Tensor:
    """Value of `k3` with its bounds, gradient of `k2` without bounds (straight-through)."""
    return _with_gradient_of_k2(k3(logp_BT=logp_BT, ref_logp_BT=ref_logp_BT), logp_BT, ref_logp_BT)


def jsd(*, logp_BT: Tensor, ref_logp_BT: Tensor, mix: float = 0.5) -> Tensor:
    """Generalised Jensen-Shannon divergence: GKD, arXiv 2306.13649.

    ``mix KL(ref || m) + (1 - mix) KL(policy || m)`` with ``m = mix ref + (1 - mix) policy``; the paper sums over the
    vocabulary.  Here, at a sampled token, with ``r = exp(-l)`` and ``u = 1 + mix (r - 1)``, the value is
    ``mix r log(r / u) - (1 - mix) log u``: unbiased and >= 0.  The gradient is ``-(1 - mix) log(u)`` times that of
    logp; its expectation is the gradient of the sum.  For ``mix`` near 0 it is ``mix`` times that of KL(ref || policy),
    as for `k3`; near 1, ``1 - mix`` times that of KL(policy || ref), as for `k2`.  ``l`` is clamped to [-20, 20] and
    the value to at most 10.

    Raises:
        ValueError: ``mix`` is not between 0 and 1.
    """
    require(0 < mix < 1, "mix", mix, "> 0 and < 1; for its ends use algo/kl=loss_k3 (0) or loss_k1_plus (1)")
    log_r_BT = -_subtract_reference(logp_BT, ref_logp_BT).detach().clamp(-20, 20)
    log_u_BT = torch.log1p(mix * torch.expm1(log_r_BT))
    value_BT = mix * log_r_BT.exp() * (log_r_BT - log_u_BT) - (1 - mix) * log_u_BT
    return value_BT.clamp(max=10) - (1 - mix) * log_u_BT * (logp_BT - logp_BT.detach())


@dataclass(kw_only=True)
class KLTerm:
    """A KL term; subclasses define where it acts.

    Attributes:
        coef: weight per nat, > 0.
        reference_dtype: precision of the frozen reference; None where no reference is needed.
        place: ``reward`` (added to the reward of each sampled token before advantages) or ``loss`` (added to its loss).
        measure, measured_by: the KL that drives a controller of ``coef``, see `Term`: ``ref_kl``, the mean k3 (nats per
            sampled token) to the reference during the update, or ``old_kl``, see `KLToOld`.
        first_step: the first optimizer step of an iteration in which it is not 0.
    """

    coef: float
    reference_dtype: str | None = None
    place: ClassVar[str]
    measure: ClassVar[str] = "ref_kl"
    measured_by: ClassVar[Callable[..., Tensor] | None] = None
    first_step: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Check the coefficient."""
        is_valid = 0 < self.coef < math.inf
        require(is_valid, "coef", self.coef, "finite and > 0; algo/kl=none switches the KL term off")
        if self.reference_dtype not in (None, *DTYPES):
            raise ValueError(
                f"reference_dtype={self.reference_dtype} is unknown; valid: null, {', '.join(DTYPES)}"
            )

    def __call__(self, *args: Any, **columns: Any) -> Tensor:
        """Return the term of each sampled token (B, T); 0 elsewhere."""
        raise NotImplementedError


@dataclass(kw_only=True)
class KLInLoss(KLTerm):
    """Add ``coef * estimator(logp, ref_logp)`` to the loss of each sampled token.

    Attributes:
        estimator: `k1`, `k2`, `k3`, `k1_plus`, `k3_plus` or `jsd`.
        coef: loss units per nat, > 0.
        reference_dtype: precision of the frozen reference, such as ``bfloat16``; None is the policy's.
    """

    estimator: Callable[..., Tensor]
    place: ClassVar[str] = "loss"

    def __call__(self, *, logp_BT: Tensor, ref_logp_BT: Tensor, is_action_BT: Tensor) -> Tensor:
        """Return the loss of each token (B, T), 0 where not sampled.

        Gradient flows through ``logp_BT``.
        """
        logp_BT, ref_logp_BT = _zero_unsampled(logp_BT, ref_logp_BT, is_action_BT)
        return self.coef * self.estimator(logp_BT=logp_BT, ref_logp_BT=ref_logp_BT)


def old_kl(*, logp_BT: Tensor, old_logp_BT: Tensor, is_action_BT: Tensor) -> Tensor:
    """``exp(d) - 1 - d`` at sampled tokens, nats, 0 elsewhere; see `KLToOld`."""
    logp_BT, old_logp_BT = _zero_unsampled(logp_BT, old_logp_BT, is_action_BT)
    difference_BT = _subtract_reference(logp_BT, old_logp_BT).clamp(-20, 20)
    return torch.expm1(difference_BT) - difference_BT


@dataclass(kw_only=True)
class KLToOld(KLTerm):
    """KL to the policy that sampled, added to the loss of each sampled token.

    The term is ``coef * (exp(d) - 1 - d)`` with ``d = logp - old_logp``, clamped to [-20, 20].  Its expectation under
    the policy that sampled is ``KL(old || policy)``: the penalty of PPO, arXiv 1707.06347, section 4.  Value and
    gradient are 0 in the first step of an iteration.

    Attributes:
        coef: loss units per nat, > 0.
    """

    place: ClassVar[str] = "loss"
    measure: ClassVar[str] = "old_kl"
    measured_by: ClassVar[Callable[..., Tensor] | None] = staticmethod(old_kl)
    first_step: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Check the constants."""
        super().__post_init__()
        if self.reference_dtype is not None:
            raise ValueError(
                f"reference_dtype={self.reference_dtype} has no effect under algo/kl=loss_old: it needs no reference"
            )

    def __call__(self, *, logp_BT: Tensor, old_logp_BT: Tensor, is_action_BT: Tensor) -> Tensor:
        """Return the loss of each token (B, T), 0 where not sampled.

        Gradient flows through ``logp_BT``.
        """
        return self.coef * old_kl(logp_BT=logp_BT, old_logp_BT=old_logp_BT, is_action_BT=is_action_BT)


@dataclass(kw_only=True)
class KLInReward(KLTerm):
    """Subtract ``coef * estimator(old_logp, ref_logp)`` from the reward of each sampled token.

    Attributes:
        estimator: `k1` in the literature (InstructGPT, arXiv 2203.02155).
        coef: price of one nat, in reward units, > 0.
        reference_dtype: precision of the frozen reference, such as ``bfloat16``; None is the policy's.
    """

    estimator: Callable[..., Tensor]
    place: ClassVar[str] = "reward"

    @torch.no_grad()
    def __call__(self, *, old_logp_BT: Tensor, ref_logp_BT: Tensor, is_action_BT: Tensor) -> Tensor:
        """Return the term to add to ``reward_BT``, (B, T), in reward units.

        It is 0 where not sampled and carries no gradient.
        """
        logp_BT, ref_logp_BT = _zero_unsampled(old_logp_BT, ref_logp_BT, is_action_BT)
        return -self.coef * self.estimator(logp_BT=logp_BT, ref_logp_BT=ref_logp_BT)


def _subtract_reference(logp_BT: Tensor, ref_logp_BT: Tensor) -> Tensor:
    check_shapes(logp_BT=logp_BT, ref_logp_BT=ref_logp_BT)
    return logp_BT - ref_logp_BT.detach()


def _with_gradient_of_k2(value_BT: Tensor, logp_BT: Tensor, ref_logp_BT: Tensor) -> Tensor:
    slope_BT = k2(logp_BT=logp_BT, ref_logp_BT=ref_logp_BT)
    return value_BT.detach() + (slope_BT - slope_BT.detach())


def _zero_unsampled(logp_BT: Tensor, ref_logp_BT: Tensor, is_action_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Zero both log-probs where not sampled, so that every estimator is 0 there."""
    check_shapes(logp_BT=logp_BT, ref_logp_BT=ref_logp_BT, is_action_BT=is_action_BT)
    zero_BT = torch.zeros_like(logp_BT)
    return torch.where(is_action_BT, logp_BT, zero_BT), torch.where(is_action_BT, ref_logp_BT, zero_BT)
