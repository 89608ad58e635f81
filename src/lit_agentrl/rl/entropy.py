"""Entropy terms of the loss."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_agentrl.rl.masked import check_shapes


def none() -> None:
    """No entropy term; entropies are then only computed for logging."""


def bonus(*, entropy_BT: Tensor, is_action_BT: Tensor, coef: float) -> Tensor:
    """``-coef * H_t`` for each sampled token, 0 elsewhere: A3C, arXiv 1602.01783, section 4.

    Args:
        entropy_BT: nats, of the full distribution at the sampling temperature, (B, T); carries gradient.
        is_action_BT: sampled tokens.
        coef: loss units per nat, > 0.

    Raises:
        ValueError: if shapes disagree or ``coef`` is not positive.
    """
    if not coef > 0:
        raise ValueError(f"algo.entropy.coef={coef} must be > 0; algo/entropy=none switches the bonus off")
    check_shapes(entropy_BT=entropy_BT, is_action_BT=is_action_BT)
    return -coef * torch.where(is_action_BT, entropy_BT, torch.zeros_like(entropy_BT))
