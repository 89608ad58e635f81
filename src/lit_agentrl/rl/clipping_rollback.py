"""A clip rule that pulls back: beyond its bounds the loss slopes the other way instead of being flat."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lit_agentrl.rl.clipping import Clipped
from lit_agentrl.rl.masked import check_shapes


def rollback(*, ratio_BT: Tensor, advantage_BT: Tensor, epsilon: float = 0.2, alpha: float = 0.3) -> Clipped:
    """``-min(rho A, F(rho) A)``: PPO-RB, arXiv 1903.07940, equation 8.

    ``F(rho) = rho`` within ``[1 - epsilon, 1 + epsilon]``, else ``-alpha rho + (1 + alpha) b`` with b the bound
    that was crossed.  ``alpha -> 0`` is the symmetric rule.  Shapes (B, T); gradient through ``ratio_BT`` only.

    Raises:
        ValueError: if shapes disagree, ``epsilon`` is not in (0, 1) or ``alpha`` is not positive.
    """
    check_shapes(ratio_BT=ratio_BT, advantage_BT=advantage_BT)
    if not 0 < epsilon < 1:
        raise ValueError(f"algo.clip.epsilon={epsilon} must be in (0, 1)")
    if not 0 < alpha < math.inf:
        raise ValueError(f"algo.clip.alpha={alpha} must be finite and > 0; algo/clip=symmetric has no slope")
    advantage_BT = advantage_BT.detach()
    bound_BT = ratio_BT.detach().clamp(1 - epsilon, 1 + epsilon)
    is_outside_BT = bound_BT != ratio_BT.detach()
    back_BT = torch.where(is_outside_BT, -alpha * ratio_BT + (1 + alpha) * bound_BT, ratio_BT)
    loss_BT = -torch.minimum(ratio_BT * advantage_BT, back_BT * advantage_BT)
    is_low_BT = (ratio_BT < 1 - epsilon) & (advantage_BT < 0)
    is_high_BT = (ratio_BT > 1 + epsilon) & (advantage_BT > 0)
    return Clipped(loss_BT, is_low_BT, is_high_BT)
