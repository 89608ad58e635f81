"""Importance weights that correct for differences between engine and trainer log-probs.

``rho = exp(old_logp - sampler_logp)`` for each sampled token, where ``old_logp`` is the trainer's log-prob (nats) under
the weights that sampled, and ``sampler_logp`` is the log-prob that the engine recorded.  The weight multiplies the
policy loss of the token and carries no gradient.  A part that takes both columns makes a run recompute ``old_logp``.
Arguments are (B, T); tokens that were not sampled get weight 0.  Truncated importance sampling: Yao et al., "Your
efficient RL framework secretly brings you off-policy RL training" (2025).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lit_agentrl.checks import require
from lit_agentrl.rl.masked import check_shapes


def none() -> None:
    """Use no correction; `update.max_logp_gap` limits the difference of log-probs."""


def truncated(
    *, old_logp_BT: Tensor, sampler_logp_BT: Tensor, is_action_BT: Tensor, cap: float = 2.0
) -> Tensor:
    """``min(rho, cap)``: bounded variance, biased where the engine samples too rarely.

    Raises:
        ValueError: if shapes disagree or ``cap`` is below 1.
    """
    require(1 <= cap < math.inf, "cap", cap, "finite and >= 1")
    return _compute_ratio(old_logp_BT, sampler_logp_BT, is_action_BT).clamp(max=cap)


def masked(
    *,
    old_logp_BT: Tensor,
    sampler_logp_BT: Tensor,
    is_action_BT: Tensor,
    low: float = 0.5,
    high: float = 2.0,
) -> Tensor:
    """``rho`` within [low, high], else 0: skip tokens on which log-probs disagree.

    Raises:
        ValueError: if shapes disagree, or not ``0 <= low < 1 <= high``.
    """
    require(0 <= low < 1, "low", low, "in [0, 1)")
    require(1 <= high < math.inf, "high", high, "finite and >= 1")
    ratio_BT = _compute_ratio(old_logp_BT, sampler_logp_BT, is_action_BT)
    return torch.where((ratio_BT >= low) & (ratio_BT <= high), ratio_BT, torch.zeros_like(ratio_BT))


@torch.no_grad()
def _compute_ratio(old_logp_BT: Tensor, sampler_logp_BT: Tensor, is_action_BT: Tensor) -> Tensor:
    check_shapes(old_logp_BT=old_logp_BT, sampler_logp_BT=sampler_logp_BT, is_action_BT=is_action_BT)
    zero_BT = torch.zeros_like(old_logp_BT)
    ratio_BT = torch.where(is_action_BT, old_logp_BT - sampler_logp_BT, zero_BT).clamp(-20, 20).exp()
    return torch.where(is_action_BT, ratio_BT, zero_BT)
