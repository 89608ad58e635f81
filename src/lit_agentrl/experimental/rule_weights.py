"""Weights of rules, fitted to pairs: rule-based rewards (RBR), arXiv 2411.01111."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lit_agentrl.checks import require, require_whole


def hinge(weight_F: Tensor, *, gap_PF: Tensor, base_P: Tensor) -> Tensor:
    """``mean over pairs of max(0, 1 - (R(better) - R(worse)))``, with ``R = base + sum_i w_i phi_i``.

    Args:
        weight_F: of each rule; carries gradient.
        gap_PF: score of each rule on the better side, less that on the other.
        base_P: the same of what the rules are added to; zeros where that is nothing.
    """
    return (1 - base_P - gap_PF @ weight_F).clamp(min=0).mean()


def fitted(*, gap_PF: Tensor, base_P: Tensor, lr: float = 0.01, steps: int = 1000) -> Tensor:
    """The weights that AdamW finds from 0, without weight decay, with all pairs in each step; (F,), float64.

    No weight can exceed about ``lr * steps``: where rules part all pairs, it is this that ends their growth.

    Args:
        gap_PF: as of `hinge`.
        base_P: as of `hinge`.
        lr: of AdamW, finite and > 0.
        steps: >= 1.

    Raises:
        ValueError: an argument out of range, or no pair.
    """
    require(0 < lr < math.inf, "lr", lr, "finite and > 0")
    require_whole("steps", steps, 1)
    require(len(gap_PF) > 0, "pairs", len(gap_PF), "one at least")
    weight_F = torch.zeros(gap_PF.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.AdamW([weight_F], lr=lr, weight_decay=0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        hinge(weight_F, gap_PF=gap_PF.double(), base_P=base_P.double()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return weight_F.detach()
