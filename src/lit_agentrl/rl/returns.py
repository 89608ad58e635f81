"""Discounted sums of rewards along trajectories."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_agentrl.rl.masked import check_shapes, trajectory_index


def return_to_go(
    *, reward_BT: Tensor, is_action_BT: Tensor, trajectory_B: Tensor, first_turn_B: Tensor, discount: float
) -> Tensor:
    """``G_t = r_t + discount * G_t'`` at sampled tokens, t' the next one; 0 elsewhere.  (B, T), no gradient.

    Rows of one trajectory are chained in the order of ``first_turn_B``: after the last sampled token
    of a row comes the first of the next row.  Rewards at tokens that were not sampled are ignored.
    """
    check_shapes(
        reward_BT=reward_BT, is_action_BT=is_action_BT, trajectory_B=trajectory_B, first_turn_B=first_turn_B
    )
    next_row_B = _next_rows(trajectory_B, first_turn_B)
    out_BT = torch.zeros_like(reward_BT)
    start_B = reward_BT.new_zeros(len(reward_BT) + 1)  # the extra entry is what follows a last row: nothing
    rows = (next_row_B == -1).nonzero().squeeze(1)
    while len(rows):  # last rows first, then the rows before them
        running = start_B[next_row_B[rows]]
        for t in reversed(range(reward_BT.shape[1])):
            is_action = is_action_BT[rows, t]
            running = torch.where(is_action, reward_BT[rows, t] + discount * running, running)
            out_BT[rows, t] = torch.where(is_action, running, torch.zeros_like(running))
        start_B[rows] = running
        rows = torch.isin(next_row_B, rows).nonzero().squeeze(1)
    return out_BT


def _next_rows(trajectory_B: Tensor, first_turn_B: Tensor) -> Tensor:
    """The row that continues each row's trajectory, -1 for its last row; (B,) int64."""
    index_B, _ = trajectory_index(trajectory_B)
    order = torch.argsort(first_turn_B, stable=True)
    order = order[torch.argsort(index_B[order], stable=True)]
    continues = index_B[order[:-1]] == index_B[order[1:]]
    next_row_B = torch.full_like(index_B, -1)
    next_row_B[order[:-1][continues]] = order[1:][continues]
    return next_row_B
