"""Clip rules: from ratio and advantage to the loss of each token (to be minimised).

``rho`` is ``ratio_BT``, ``A`` is ``advantage_BT``, both (B, T).  Gradient flows through ``ratio_BT`` (and
``logp_BT`` where it is asked for), never through the advantage.  The two flags mark tokens whose bound acts.
All raise ValueError when shapes disagree or a bound makes no sense.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lit_agentrl.rl.masked import check_shapes


@dataclass(frozen=True)
class Clipped:
    """Per-token loss and where a bound acted, all (B, T)."""

    loss_BT: Tensor
    is_clipped_low_BT: Tensor
    is_clipped_high_BT: Tensor


def none(*, ratio_BT: Tensor, advantage_BT: Tensor) -> Clipped:
    """``-rho A``."""
    check_shapes(ratio_BT=ratio_BT, advantage_BT=advantage_BT)
    never_BT = torch.zeros_like(ratio_BT, dtype=torch.bool)
    return Clipped(-ratio_BT * advantage_BT.detach(), never_BT, never_BT)


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
    if lower not in ("linear", "reciprocal"):
        raise ValueError(f"algo.clip.lower={lower} must be linear or reciprocal")
    if lower == "linear":
        _check_bounds("epsilon", epsilon, "epsilon", epsilon)
    elif not epsilon > 0:
        raise ValueError(f"algo.clip.epsilon={epsilon} must be > 0; algo/clip=none switches clipping off")
    bound = 1 - epsilon if lower == "linear" else 1 / (1 + epsilon)
    return _clip(ratio_BT, advantage_BT, bound, 1 + epsilon)


def clip_higher(*, ratio_BT: Tensor, advantage_BT: Tensor, low: float = 0.2, high: float = 0.28) -> Clipped:
    """``-min(rho A, clip(rho, 1 - low, 1 + high) A)``: DAPO, arXiv 2503.14476, equation 10."""
    _check_bounds("low", low, "high", high)
    return _clip(ratio_BT, advantage_BT, 1 - low, 1 + high)


def dual(
    *, ratio_BT: Tensor, advantage_BT: Tensor, low: float = 0.2, high: float = 0.2, cap: float = 3.0
) -> Clipped:
    """`clip_higher`, and where A < 0 the loss is at most ``-cap A``: dual-clip PPO, arXiv 1912.09729.

    A token held by the cap (A < 0 and rho > cap) counts as clipped high.
    """
    _check_bounds("low", low, "high", high)
    if not cap > 1:
        raise ValueError(f"algo.clip.cap={cap} must be > 1")
    base = _clip(ratio_BT, advantage_BT, 1 - low, 1 + high)
    is_negative_BT = advantage_BT < 0
    limit_BT = -cap * advantage_BT.detach()
    loss_BT = torch.where(is_negative_BT, torch.minimum(base.loss_BT, limit_BT), base.loss_BT)
    is_capped_BT = is_negative_BT & (ratio_BT > cap)
    return Clipped(loss_BT, base.is_clipped_low_BT, base.is_clipped_high_BT | is_capped_BT)


def cispo(*, ratio_BT: Tensor, advantage_BT: Tensor, logp_BT: Tensor, cap: float = 5.0) -> Clipped:
    """``-sg[min(rho, cap)] A logp``: CISPO, arXiv 2506.13585.  No token loses its gradient.

    ``is_clipped_high_BT`` marks weights held at the cap, whatever the sign of A; gradient through
    ``logp_BT``.
    """
    check_shapes(ratio_BT=ratio_BT, advantage_BT=advantage_BT, logp_BT=logp_BT)
    if not cap > 1:
        raise ValueError(f"algo.clip.cap={cap} must be > 1")
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
    remedy = "algo/clip=none switches clipping off"
    if not 0 < low < 1:
        raise ValueError(f"algo.clip.{low_name}={low} must be in (0, 1); {remedy}")
    if not high > 0:
        raise ValueError(f"algo.clip.{high_name}={high} must be > 0; {remedy}")
