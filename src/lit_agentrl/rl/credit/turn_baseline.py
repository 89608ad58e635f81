"""Advantages with a baseline for each turn, which credit longer episodes."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_agentrl.rl.credit.advantages import Advantage
from lit_agentrl.rl.masked import check_shapes, group_moments, trajectory_index


def process_group_baseline(
    *,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    is_action_BT: Tensor,
    turn_BT: Tensor,
    reward_BT: Tensor,
) -> Advantage:
    """Return-to-go minus the mean of other trajectories that reached the turn (leave-one-out).

    ``A_ik = G_ik - mean over j of G_jk``, where ``G_ik`` sums the rewards of turn k and later, and j are the other
    trajectories of the group that have a turn k.  Their rewards do not depend on the choices of trajectory i from turn
    k on, so under `seq_mean_token_sum` the expected update is the gradient of the expected return, even if the policy
    decides when an episode ends.  If no other trajectory reached turn k, the baseline is 0; setting the advantage to 0
    instead would drop late turns more often than early ones, and so give them less weight.  Advantages are not divided
    by a standard deviation.

    Example: each of two turns has reward 1, the policy continues with probability 1/2, and the group size is 2.  Then
    the expected update of the logit of continuing is 1/4, which is the gradient; `process_group` gives 0.

    A trajectory whose ``return_B`` is NaN is left out and gets 0.  ``turn_BT`` numbers the turns of a trajectory, not
    those of a row; the other columns are those of `process_group`.

    Raises:
        ValueError: also if a sampled token has no turn (``turn_BT`` < 0).
    """
    check_shapes(return_B=return_B, group_B=group_B, trajectory_B=trajectory_B)
    check_shapes(is_action_BT=is_action_BT, turn_BT=turn_BT, reward_BT=reward_BT)
    is_counted_BT = is_action_BT & ~return_B.isnan()[:, None]
    if bool((is_counted_BT & (turn_BT < 0)).any()):
        raise ValueError("turn_BT is negative at a sampled token; each needs a turn")
    advantage_BT = torch.zeros_like(reward_BT)
    if not bool(is_counted_BT.any()):
        return Advantage(advantage_BT)
    index_B, num_trajectories = trajectory_index(trajectory_B)
    row_N, t_N = is_counted_BT.nonzero(as_tuple=True)
    trajectory_N, turn_N = index_B[row_N], turn_BT[row_N, t_N].long()
    num_turns = int(turn_N.max()) + 1
    reward_SK = reward_BT.new_zeros((num_trajectories, num_turns), dtype=torch.float64)
    reward_SK.index_put_((trajectory_N, turn_N), reward_BT.detach()[row_N, t_N].double(), accumulate=True)
    to_go_SK = reward_SK.flip(1).cumsum(1).flip(1)
    is_reached_SK = torch.zeros_like(reward_SK, dtype=torch.bool)
    is_reached_SK[trajectory_N, turn_N] = True
    _, group_index_B = torch.unique(group_B, return_inverse=True)
    group_S = group_index_B.new_zeros(num_trajectories)
    group_S[index_B] = group_index_B
    s_M, k_M = is_reached_SK.nonzero(as_tuple=True)
    # turns are compared with those of the same group and turn number
    set_M = group_S[s_M] * num_turns + k_M
    moments = group_moments(to_go_SK[s_M, k_M], set_M, (int(group_S.max()) + 1) * num_turns)
    num_others_M = moments.count_N - 1
    value_M = moments.centred_N * moments.count_N / num_others_M.clamp(min=1)
    value_SK = torch.zeros_like(reward_SK)
    value_SK[s_M, k_M] = torch.where(num_others_M > 0, value_M, to_go_SK[s_M, k_M])
    advantage_BT[row_N, t_N] = value_SK[trajectory_N, turn_N].to(reward_BT.dtype)
    return Advantage(advantage_BT)
