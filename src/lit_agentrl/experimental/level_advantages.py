"""Credit for the two levels of a hierarchy: planner and executor turns.

Notation, shapes and the treatment of NaN returns are those of ``advantages.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lit_agentrl.checks import require, require_number
from lit_agentrl.rl.credit.advantages import Advantage, group_mean_std
from lit_agentrl.rl.masked import check_shapes
from lit_agentrl.rl.returns import next_sampled, return_to_go, sum_over_turn, turn_index


def two_level(
    *,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    first_turn_B: Tensor,
    is_action_BT: Tensor,
    is_turn_end_BT: Tensor,
    is_plan_BT: Tensor,
    reward_BT: Tensor,
    discount: float = 1.0,
    turn_discount: float = 1.0,
    cost: float = 0.0,
    eps: float = 1e-6,
) -> Advantage:
    """Returns of planner turns over the episode, of executor turns over one plan: HRL-TAR.

    ``r_k`` is the sum of ``reward_BT`` over the sampled tokens of turn k:

        planner:   G_k = (r_k - cost) + d_k G_k+1,   d_k = discount where turn k+1 is a plan, else 1
        executor:  G_k = r_k + e_k G_k+1,            e_k = 0 where turn k+1 is a plan, else turn_discount
        A_k = (G_k - mean) / (std + eps), over all turns of the same level in the group

    A plan is therefore credited with the return of the episode minus costs, and an executor turn with the return of its
    sub-task, which ends with the next plan.  With one plan per episode and no cost, the planner has the advantage of
    `group_mean_std`.  ``cost`` (in reward units) is subtracted for each turn, of either level.  No primary source of
    HRL-TAR is known; these formulas are ours.

    Raises:
        ValueError: also if a row ends in sampled tokens after its last turn end.
    """
    for name, share in (("discount", discount), ("turn_discount", turn_discount)):
        require(0 <= share <= 1, name, share, "in [0, 1]")
    require_number("cost", cost, "a number >= 0", lambda value: value >= 0)
    check_shapes(return_B=return_B, group_B=group_B, is_action_BT=is_action_BT, is_plan_BT=is_plan_BT)
    is_counted_BT = is_action_BT & ~return_B.isnan()[:, None]
    turn_BT = turn_index(is_action_BT=is_counted_BT, is_turn_end_BT=is_turn_end_BT)
    reward_BT = sum_over_turn(
        x_BT=reward_BT.double(), is_action_BT=is_counted_BT, turn_BT=turn_BT
    )  # of the whole turn, used at its end
    one = reward_BT.new_ones(())  # in the dtype of the rewards
    is_end_BT = is_counted_BT & is_turn_end_BT
    chain = {"is_action_BT": is_end_BT, "trajectory_B": trajectory_B, "first_turn_B": first_turn_B}
    is_before_plan_BT = next_sampled(x_BT=is_plan_BT.double(), **chain) > 0
    planner_BT = return_to_go(
        reward_BT=reward_BT - cost, discount=torch.where(is_before_plan_BT, one * discount, one), **chain
    )
    executor_BT = return_to_go(
        reward_BT=reward_BT, discount=torch.where(is_before_plan_BT, 0 * one, one * turn_discount), **chain
    )
    row_N, t_N = is_end_BT.nonzero(as_tuple=True)
    return_N = torch.where(is_plan_BT, planner_BT, executor_BT)[row_N, t_N]
    level_N2 = torch.stack([group_B[row_N], is_plan_BT[row_N, t_N].long()], dim=1)
    value_BT = torch.zeros_like(reward_BT)
    value_BT[row_N, t_N] = _normalise(return_N, torch.unique(level_N2, dim=0, return_inverse=True)[1], eps)
    advantage_BT = sum_over_turn(x_BT=value_BT, is_action_BT=is_counted_BT, turn_BT=turn_BT)
    return Advantage(advantage_BT.to(return_B.dtype))


def _normalise(value_N: Tensor, group_N: Tensor, eps: float) -> Tensor:
    """Normalise each entry by mean and std of its group."""
    return group_mean_std(
        return_B=value_N, group_B=group_N, trajectory_B=torch.arange(len(value_N), device=value_N.device),
        is_action_BT=torch.ones(len(value_N), 1, dtype=torch.bool, device=value_N.device), eps=eps,
    ).advantage_BT[:, 0]  # fmt: skip
