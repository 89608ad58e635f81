"""Fit the weights of rules to pairs: rule-based rewards (RBR), arXiv 2411.01111."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lit_agentrl.checks import require, require_whole


def hinge(weight_F: Tensor, *, gap_PF: Tensor, base_P: Tensor) -> Tensor:
    """Hinge loss of the weighted rules on pairs, a scalar.

    ``mean over pairs of max(0, 1 - (R(better) - R(worse)))`` with ``R = base + sum_i w_i phi_i``.

    Args:
        weight_F: weight of each rule; carries gradient.
        gap_PF: score of each rule on the better side minus that on the other side.
        base_P: the same difference of the base reward; zeros without one.
    """
    return (1 - base_P - gap_PF @ weight_F).clamp(min=0).mean()


def fitted(*, gap_PF: Tensor, base_P: Tensor, lr: float = 0.01, steps: int = 1000) -> Tensor:
    """Fit the weights with AdamW from 0, full-batch and without weight decay; (F,), float64.

    No weight can exceed about ``lr * steps``, which bounds the weights if the rules separate all pairs.

    Args:
        gap_PF: as for `hinge`.
        base_P: as for `hinge`.
        lr: learning rate of AdamW, finite and > 0.
        steps: number of steps, >= 1.

    Raises:
        ValueError: an argument is out of range, or there is no pair.
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
