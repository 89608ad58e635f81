"""Sums of rewards along trajectories and turns.

Rows of one trajectory are chained in the order of ``first_turn_B``: the last sampled token of a row is followed by the
first sampled token of the next row that has one.  Values at tokens that were not sampled are ignored.  No result
carries gradient.  All functions raise ValueError when shapes disagree.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lit_agentrl.rl.masked import check_shapes, sum_columns, trajectory_index


def return_to_go(
    *,
    reward_BT: Tensor,
    is_action_BT: Tensor,
    trajectory_B: Tensor,
    first_turn_B: Tensor,
    discount: float | Tensor,
) -> Tensor:
    """Return the discounted return-to-go of each sampled token, (B, T).

    ``G_t = r_t + discount * G_t'``, where t' is the next sampled token; 0 at tokens that were not sampled.  If
    ``discount`` has shape (B, T), its entry at token t is used, and 0 ends the sum after t.
    """
    check_shapes(
        reward_BT=reward_BT, is_action_BT=is_action_BT, trajectory_B=trajectory_B, first_turn_B=first_turn_B
    )
    reward_BT = reward_BT.detach()
    discount_BT = torch.as_tensor(discount).to(reward_BT).expand_as(reward_BT)
    next_row_B = _find_next_rows(trajectory_B, first_turn_B)
    out_BT = torch.zeros_like(reward_BT)
    start_B = reward_BT.new_zeros(len(reward_BT) + 1)  # the extra 0 follows the last row of a trajectory
    rows = (next_row_B == -1).nonzero().squeeze(1)
    while len(rows):  # the last row of each trajectory, then the row before it, and so on
        running = start_B[next_row_B[rows]]
        for t in reversed(range(reward_BT.shape[1])):
            is_action = is_action_BT[rows, t]
            running = torch.where(is_action, reward_BT[rows, t] + discount_BT[rows, t] * running, running)
            out_BT[rows, t] = torch.where(is_action, running, torch.zeros_like(running))
        start_B[rows] = running
        rows = torch.isin(next_row_B, rows).nonzero().squeeze(1)
    return out_BT


def next_sampled(*, x_BT: Tensor, is_action_BT: Tensor, trajectory_B: Tensor, first_turn_B: Tensor) -> Tensor:
    """Return ``x`` of the next sampled token at each sampled token, (B, T).

    The result is 0 at the last sampled token of a trajectory and at tokens that were not sampled.
    """
    check_shapes(x_BT=x_BT, is_action_BT=is_action_BT, trajectory_B=trajectory_B, first_turn_B=first_turn_B)
    order_B, index_B = _order_rows(trajectory_B, first_turn_B)
    position_N, t_N = is_action_BT[order_B].nonzero(as_tuple=True)
    row_N = order_B[position_N]
    x_N, index_N = x_BT.detach()[row_N, t_N], index_B[row_N]
    is_followed_N = torch.zeros_like(index_N, dtype=torch.bool)
    is_followed_N[:-1] = index_N[1:] == index_N[:-1]
    out_BT = torch.zeros_like(x_BT)
    out_BT[row_N, t_N] = torch.where(is_followed_N, x_N.roll(-1), torch.zeros_like(x_N))
    return out_BT


def sum_until_next(
    *, x_BT: Tensor, is_action_BT: Tensor, is_kept_BT: Tensor, trajectory_B: Tensor, first_turn_B: Tensor
) -> Tensor:
    """Sum ``x`` from each kept token to before the next kept one, (B, T).

    The sum is over sampled tokens.  ``is_kept_BT`` is True at the sampled tokens that are kept.  Values before the
    first kept token of a trajectory are in no sum; the result is 0 at tokens that are not kept.
    """
    check_shapes(x_BT=x_BT, is_action_BT=is_action_BT, is_kept_BT=is_kept_BT)
    rows = {"trajectory_B": trajectory_B, "first_turn_B": first_turn_B}
    to_go_BT = return_to_go(reward_BT=x_BT.double(), is_action_BT=is_action_BT, discount=1.0, **rows)
    rest_BT = next_sampled(x_BT=to_go_BT, is_action_BT=is_kept_BT, **rows)
    return torch.where(is_kept_BT, to_go_BT - rest_BT, torch.zeros_like(rest_BT)).to(x_BT.dtype)


def turn_index(*, is_action_BT: Tensor, is_turn_end_BT: Tensor) -> Tensor:
    """Number the turns of each row from 0; (B, T) int64, in [0, T).

    ``is_turn_end_BT`` marks the last token of each turn.  Entries at tokens that were not sampled have no meaning.

    Raises:
        ValueError: also if a row ends in sampled tokens after its last turn end.
    """
    check_shapes(is_action_BT=is_action_BT, is_turn_end_BT=is_turn_end_BT)
    is_end_BT = (is_action_BT & is_turn_end_BT).long()
    turn_BT: Tensor = is_end_BT.cumsum(1) - is_end_BT
    if bool((is_action_BT & (turn_BT == is_end_BT.sum(1, keepdim=True))).any()):
        raise ValueError("is_turn_end_BT marks no end for the last sampled tokens of a row")
    return turn_BT


def sum_over_turn(*, x_BT: Tensor, is_action_BT: Tensor, turn_BT: Tensor) -> Tensor:
    """Sum ``x`` over the sampled tokens of each token's turn, (B, T).

    The sum covers the part of the turn in that row; it is 0 at tokens that were not sampled.
    """
    check_shapes(x_BT=x_BT, is_action_BT=is_action_BT, turn_BT=turn_BT)
    x_BT = torch.where(is_action_BT, x_BT.detach(), torch.zeros_like(x_BT))
    sum_BT = sum_columns(x_BT, turn_BT, x_BT.shape[1]).gather(1, turn_BT)
    return torch.where(is_action_BT, sum_BT, torch.zeros_like(sum_BT))


def _order_rows(trajectory_B: Tensor, first_turn_B: Tensor) -> tuple[Tensor, Tensor]:
    """Sort rows by trajectory, then by ``first_turn_B``.

    Returns:
        The order, and the trajectory number of each row; both (B,) int64.
    """
    index_B, _ = trajectory_index(trajectory_B)
    order_B = torch.argsort(first_turn_B, stable=True)
    return order_B[torch.argsort(index_B[order_B], stable=True)], index_B


def _find_next_rows(trajectory_B: Tensor, first_turn_B: Tensor) -> Tensor:
    """Find the row that continues each row's trajectory, -1 for none; (B,) int64."""
    order_B, index_B = _order_rows(trajectory_B, first_turn_B)
    continues = index_B[order_B[:-1]] == index_B[order_B[1:]]
    next_row_B = torch.full_like(index_B, -1)
    next_row_B[order_B[:-1][continues]] = order_B[1:][continues]
    return next_row_B
