"""Clip rules: compute the loss of each token (to be minimised) from ratio and advantage.

``rho`` is ``ratio_BT``, ``A`` is ``advantage_BT``, both (B, T).  Gradient flows through ``ratio_BT`` (and ``logp_BT``
where a rule takes it), never through the advantage.  The two flags mark the tokens that the lower or upper bound
clipped.  All functions raise ValueError when shapes disagree or a bound is invalid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lit_agentrl.checks import require
from lit_agentrl.rl.masked import check_shapes, require_whole_rows

_REMEDY = "algo/clip=none switches clipping off"


@dataclass(frozen=True)
class Clipped:
    """Loss of each token, and flags for tokens clipped by a bound; all (B, T)."""

    loss_BT: Tensor
    is_clipped_low_BT: Tensor
    is_clipped_high_BT: Tensor


def none(*, ratio_BT: Tensor, advantage_BT: Tensor) -> Clipped:
    """``-rho A``, without clipping."""
    check_shapes(ratio_BT=ratio_BT, advantage_BT=advantage_BT)
    never_BT = torch.zeros_like(ratio_BT, dtype=torch.bool)
    return Clipped(-ratio_BT * advantage_BT.detach(), never_BT, never_BT)


def log_prob(*, logp_BT: Tensor, advantage_BT: Tensor) -> Clipped:
    """``-A logp``: weighted imitation; where A is 1 it is the NLL (nats).

    The gradient equals that of `none` at a ratio of 1.  It flows through ``logp_BT``, whatever algo/ratio is.
    """
    check_shapes(logp_BT=logp_BT, advantage_BT=advantage_BT)
    never_BT = torch.zeros_like(logp_BT, dtype=torch.bool)
    return Clipped(-advantage_BT.detach() * logp_BT, never_BT, never_BT)


def symmetric(
    *,
    ratio_BT: Tensor,
    advantage_BT: Tensor,
    epsilon: float = 0.2,
    lower: Literal["linear", "reciprocal"] = "linear",
) -> Clipped:
    """``-min(rho A, clip(rho, low, 1 + epsilon) A)``: PPO, arXiv 1707.06347, equation 7.

    ``lower`` is ``linear`` (low = 1 - epsilon) or ``reciprocal`` (low = 1 / (1 + epsilon), LOOP's release).
    """
    require(lower in ("linear", "reciprocal"), "lower", lower, "linear or reciprocal")
    if lower == "linear":
        _check_bounds("epsilon", epsilon, "epsilon", epsilon)
    else:
        require(epsilon > 0, "epsilon", epsilon, f"> 0; {_REMEDY}")
    bound = 1 - epsilon if lower == "linear" else 1 / (1 + epsilon)
    return _clip(ratio_BT, advantage_BT, bound, 1 + epsilon)


def clip_higher(*, ratio_BT: Tensor, advantage_BT: Tensor, low: float = 0.2, high: float = 0.28) -> Clipped:
    """``-min(rho A, clip(rho, 1 - low, 1 + high) A)``: DAPO, arXiv 2503.14476, equation 10."""
    _check_bounds("low", low, "high", high)
    return _clip(ratio_BT, advantage_BT, 1 - low, 1 + high)


def dual(
    *, ratio_BT: Tensor, advantage_BT: Tensor, low: float = 0.2, high: float = 0.2, cap: float = 3.0
) -> Clipped:
    """`clip_higher` with the loss capped at ``-cap A`` where A < 0: dual-clip PPO.

    arXiv 1912.09729.  A token at the cap (A < 0 and rho > cap) counts as clipped high.
    """
    _check_bounds("low", low, "high", high)
    require(cap > 1, "cap", cap, "> 1")
    base = _clip(ratio_BT, advantage_BT, 1 - low, 1 + high)
    is_negative_BT = advantage_BT < 0
    limit_BT = -cap * advantage_BT.detach()
    loss_BT = torch.where(is_negative_BT, torch.minimum(base.loss_BT, limit_BT), base.loss_BT)
    is_capped_BT = is_negative_BT & (ratio_BT > cap)
    return Clipped(loss_BT, base.is_clipped_low_BT, base.is_clipped_high_BT | is_capped_BT)


def cispo(*, ratio_BT: Tensor, advantage_BT: Tensor, logp_BT: Tensor, cap: float = 5.0) -> Clipped:
    """``-sg[min(rho, cap)] A logp``: CISPO, arXiv 2506.13585.

    No token loses its gradient, which flows through ``logp_BT``.  ``is_clipped_high_BT`` marks weights at the cap,
    whatever the sign of A.
    """
    check_shapes(ratio_BT=ratio_BT, advantage_BT=advantage_BT, logp_BT=logp_BT)
    require(cap > 1, "cap", cap, "> 1")
    weight_BT = ratio_BT.detach().clamp(max=cap) * advantage_BT.detach()
    is_high_BT = ratio_BT > cap
    return Clipped(-weight_BT * logp_BT, torch.zeros_like(is_high_BT), is_high_BT)


def _clip(ratio_BT: Tensor, advantage_BT: Tensor, low: float, high: float) -> Clipped:
    check_shapes(ratio_BT=ratio_BT, advantage_BT=advantage_BT)
    advantage_BT = advantage_BT.detach()
    loss_BT = torch.maximum(-ratio_BT * advantage_BT, -ratio_BT.clamp(low, high) * advantage_BT)
    is_low_BT = (advantage_BT < 0) & (ratio_BT < low)
    is_high_BT = (advantage_BT > 0) & (ratio_BT > high)
    return Clipped(loss_BT, is_low_BT, is_high_BT)


def _check_bounds(low_name: str, low: float, high_name: str, high: float) -> None:
    require(0 < low < 1, low_name, low, f"in (0, 1); {_REMEDY}")
    require(high > 0, high_name, high, f"> 0; {_REMEDY}")


def log_wide(
    *,
    ratio_BT: Tensor,
    advantage_BT: Tensor,
    is_action_BT: Tensor,
    trajectory_B: Tensor,
    low: float = 0.4,
    high: float = 0.4,
) -> Clipped:
    """``-A_i exp(sum of d'_t / T_i)``, the geometric mean of clipped ratios: GMPO, arXiv 2507.20673.

    ``d_t = log rho_t``; ``d'_t = min(d_t, high)`` where A_i > 0, else ``max(d_t, -low)``.  A clipped token loses its
    gradient; the other tokens of its row do not.  Each sampled token has the loss of its row, so
    ``algo/aggregate=seq_mean_token_mean`` gives GMPO's mean over trajectories; other aggregations weight trajectories
    by length.  With ``algo/ratio=token`` this is GMPO; ``sequence`` clips the log of GSPO's ratio.

    Args:
        ratio_BT: from the ratio axis; carries gradient.
        advantage_BT: no gradient.  A_i is its mean over the sampled tokens of the row, so differences between tokens or
            turns of a row are lost.
        is_action_BT: sampled tokens; elsewhere the loss is 0.
        trajectory_B: each trajectory must lie in one row, because the ratios of its tokens are multiplied.
        low: nats, > 0; acts on tokens of rows with A_i < 0.
        high: nats, > 0; acts on tokens of rows with A_i > 0.

    Raises:
        ValueError: the shapes disagree, a bound is not positive or a trajectory has several rows.
    """
    for name, bound in (("low", low), ("high", high)):
        require(bound > 0, name, bound, f"> 0 (nats); {_REMEDY}")
    check_shapes(
        ratio_BT=ratio_BT, advantage_BT=advantage_BT, is_action_BT=is_action_BT, trajectory_B=trajectory_B
    )
    require_whole_rows(
        trajectory_B=trajectory_B, is_action_BT=is_action_BT, option="algo/clip=log_wide",
        alternative="algo/clip=clip_higher",
    )  # fmt: skip
    length_B1 = is_action_BT.sum(1, keepdim=True).clamp(min=1)
    total_B1 = torch.where(is_action_BT, advantage_BT.detach(), 0).sum(1, keepdim=True)
    advantage_B1 = total_B1 / length_B1
    # 1 where not sampled, so that padding affects neither the logarithm nor its gradient
    log_BT = torch.where(is_action_BT, ratio_BT, 1).log()
    clipped_BT = torch.where(advantage_B1 > 0, log_BT.clamp(max=high), log_BT.clamp(min=-low))
    loss_B1 = -advantage_B1 * (clipped_BT.sum(1, keepdim=True) / length_B1).exp()
    return Clipped(
        torch.where(is_action_BT, loss_B1, 0),
        is_action_BT & (advantage_B1 < 0) & (log_BT < -low),
        is_action_BT & (advantage_B1 > 0) & (log_BT > high),
    )


def rollback(*, ratio_BT: Tensor, advantage_BT: Tensor, epsilon: float = 0.2, alpha: float = 0.3) -> Clipped:
    """``-min(rho A, F(rho) A)``: PPO-RB, arXiv 1903.07940, equation 8.

    ``F(rho) = rho`` within ``[1 - epsilon, 1 + epsilon]``, else ``-alpha rho + (1 + alpha) b``, where b is the bound
    that rho exceeds.  ``alpha -> 0`` is `symmetric`.  Shapes (B, T); gradient through ``ratio_BT`` only.

    Raises:
        ValueError: if shapes disagree, ``epsilon`` is not in (0, 1) or ``alpha`` is not positive.
    """
    check_shapes(ratio_BT=ratio_BT, advantage_BT=advantage_BT)
    require(0 < epsilon < 1, "epsilon", epsilon, "in (0, 1)")
    require(0 < alpha < math.inf, "alpha", alpha, "finite and > 0; algo/clip=symmetric has no slope")
    advantage_BT = advantage_BT.detach()
    bound_BT = ratio_BT.detach().clamp(1 - epsilon, 1 + epsilon)
    is_outside_BT = bound_BT != ratio_BT.detach()
    back_BT = torch.where(is_outside_BT, -alpha * ratio_BT + (1 + alpha) * bound_BT, ratio_BT)
    loss_BT = -torch.minimum(ratio_BT * advantage_BT, back_BT * advantage_BT)
    is_low_BT = (ratio_BT < 1 - epsilon) & (advantage_BT < 0)
    is_high_BT = (ratio_BT > 1 + epsilon) & (advantage_BT > 0)
    return Clipped(loss_BT, is_low_BT, is_high_BT)


def soft_gate(
    *, ratio_BT: Tensor, advantage_BT: Tensor, tau_positive: float = 1.0, tau_negative: float = 1.05
) -> Clipped:
    """``-f(rho) A`` with a sigmoid gate f: SAPO, arXiv 2511.20347.

    ``f(rho) = 4 / tau * sigmoid(tau (rho - 1))``, where ``tau`` is ``tau_positive`` for A > 0, else ``tau_negative``.
    The gradient of ``f`` is 1 at ``rho = 1`` and falls smoothly on both sides.  There is no bound: the flags mark
    tokens with less than half of that gradient, below and above 1.  Shapes (B, T); gradient through ``ratio_BT`` only.

    Raises:
        ValueError: if shapes disagree or a temperature is not finite and positive.
    """
    check_shapes(ratio_BT=ratio_BT, advantage_BT=advantage_BT)
    for name, tau in (("tau_positive", tau_positive), ("tau_negative", tau_negative)):
        require(0 < tau < math.inf, name, tau, f"finite and > 0; {_REMEDY}")
    advantage_BT = advantage_BT.detach()
    tau_BT = torch.where(advantage_BT > 0, tau_positive, tau_negative).to(ratio_BT.dtype)
    share_BT = torch.sigmoid(tau_BT * (ratio_BT - 1))
    is_faded_BT = (4 * share_BT * (1 - share_BT) < 0.5) & (advantage_BT != 0)
    loss_BT = -4 / tau_BT * share_BT * advantage_BT
    return Clipped(loss_BT, is_faded_BT & (ratio_BT < 1), is_faded_BT & (ratio_BT > 1))
