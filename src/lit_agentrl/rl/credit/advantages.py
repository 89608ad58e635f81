"""Advantage estimators that need no critic.

Each returns one number per sampled token, 0 elsewhere; none carries gradient.  Notation: ``R_i`` is the return of
trajectory i in reward units, ``mean_g`` and ``std_g`` are over the trajectories of its group, ``N`` is their number,
``T_i`` is the number of its sampled tokens.  Statistics count each trajectory once, however many rows it has.  A NaN
return means "unscorable": the trajectory is left out of every statistic and its advantage is 0.

Shapes: ``return_B``, ``group_B``, ``trajectory_B``, ``first_turn_B`` (B,); ``is_action_BT``,
``is_turn_end_BT``, ``reward_BT`` (B, T).  All functions raise ValueError when shapes disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lit_agentrl.checks import require
from lit_agentrl.rl.masked import (
    check_shapes,
    find_trajectories,
    group_moments,
    masked_whiten,
    segment_sum,
)
from lit_agentrl.rl.returns import return_to_go, sum_over_turn, turn_index


@dataclass(frozen=True)
class Advantage:
    """Advantages, in reward units or standard deviations, and the targets of a critic.

    Attributes:
        advantage_BT: advantage of each sampled token, 0 elsewhere.
        return_BT: target of the critic; None without one.
        is_value_target_BT: the tokens with a target; None means every sampled token.
    """

    advantage_BT: Tensor
    return_BT: Tensor | None = None
    is_value_target_BT: Tensor | None = None


def broadcast_to_actions(value_B: Tensor, is_action_BT: Tensor) -> Tensor:
    """Copy one value per row to every sampled token of the row; 0 elsewhere."""
    check_shapes(value_B=value_B, is_action_BT=is_action_BT)
    return torch.where(is_action_BT, value_B[:, None], torch.zeros_like(value_B)[:, None])


def greedy(*, return_B: Tensor, baseline_B: Tensor, is_action_BT: Tensor) -> Advantage:
    """``R_i - R(greedy episode of the prompt)``: ReMax, arXiv 2310.10505.

    ``baseline_B`` is the greedy return, in reward units; where it or the return is NaN the advantage is 0.
    """
    check_shapes(return_B=return_B, baseline_B=baseline_B, is_action_BT=is_action_BT)
    value_B = return_B.detach() - baseline_B.detach()
    return Advantage(broadcast_to_actions(value_B.nan_to_num(nan=0.0), is_action_BT))


def group_mean_std(
    *,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    is_action_BT: Tensor,
    eps: float = 1e-6,
    ddof: int = 1,
    singleton: Literal["zero", "raw"] = "zero",
) -> Advantage:
    """``(R_i - mean_g) / (std_g + eps)``: GRPO, arXiv 2402.03300, section 4.1.2.

    ``singleton`` sets the advantage of a group with one scored trajectory: ``zero``, or its ``raw`` return.
    """
    require(singleton in ("zero", "raw"), "singleton", singleton, "zero or raw")
    require(0 <= eps <= 1, "eps", eps, "in [0, 1]: it is added to a standard deviation")
    trajectories = find_trajectories(return_B=return_B, group_B=group_B, trajectory_B=trajectory_B)
    moments = group_moments(trajectories.return_S, trajectories.group_S, trajectories.num_groups, ddof=ddof)
    value_S = _divide(moments.centred_N, moments.std_N, eps)
    if singleton == "raw":
        value_S = torch.where(moments.count_N == 1, trajectories.return_S, value_S)
    return Advantage(broadcast_to_actions(trajectories.to_rows(value_S, return_B), is_action_BT))


def group_mean(*, return_B: Tensor, group_B: Tensor, trajectory_B: Tensor, is_action_BT: Tensor) -> Advantage:
    """``R_i - mean_g``: Dr. GRPO, arXiv 2503.20783, section 3."""
    trajectories = find_trajectories(return_B=return_B, group_B=group_B, trajectory_B=trajectory_B)
    moments = group_moments(trajectories.return_S, trajectories.group_S, trajectories.num_groups)
    return Advantage(broadcast_to_actions(trajectories.to_rows(moments.centred_N, return_B), is_action_BT))


def loo(*, return_B: Tensor, group_B: Tensor, trajectory_B: Tensor, is_action_BT: Tensor) -> Advantage:
    """Return minus the mean return of the others (leave-one-out): RLOO, arXiv 2402.14740.

    ``R_i - mean of the others = N / (N - 1) (R_i - mean_g)``, section 2; also used by LOOP.  A group with one scored
    trajectory gets 0.
    """
    trajectories = find_trajectories(return_B=return_B, group_B=group_B, trajectory_B=trajectory_B)
    moments = group_moments(trajectories.return_S, trajectories.group_S, trajectories.num_groups)
    value_S = moments.centred_N * moments.count_N / (moments.count_N - 1).clamp(min=1)
    return Advantage(broadcast_to_actions(trajectories.to_rows(value_S, return_B), is_action_BT))


def group_mean_batch_std(
    *, return_B: Tensor, group_B: Tensor, trajectory_B: Tensor, is_action_BT: Tensor, eps: float = 1e-6
) -> Advantage:
    """Return minus group mean, divided by the std of the whole batch.

    ``(R_i - mean_g) / (std of all returns of the batch + eps)``, with ddof 1.
    """
    require(0 <= eps <= 1, "eps", eps, "in [0, 1]: it is added to a standard deviation")
    trajectories = find_trajectories(return_B=return_B, group_B=group_B, trajectory_B=trajectory_B)
    moments = group_moments(trajectories.return_S, trajectories.group_S, trajectories.num_groups)
    batch = group_moments(trajectories.return_S, torch.zeros_like(trajectories.group_S), 1)
    value_S = _divide(moments.centred_N, batch.std_N, eps)
    return Advantage(broadcast_to_actions(trajectories.to_rows(value_S, return_B), is_action_BT))


def group_mean_whiten(
    *, return_B: Tensor, group_B: Tensor, trajectory_B: Tensor, is_action_BT: Tensor
) -> Advantage:
    """``whiten(R_i - mean_g)`` over sampled tokens: REINFORCE++-baseline, arXiv 2501.03262.

    Whitening is over tokens, so long trajectories have more weight.
    """
    advantage_BT = group_mean(
        return_B=return_B, group_B=group_B, trajectory_B=trajectory_B, is_action_BT=is_action_BT
    ).advantage_BT
    return Advantage(masked_whiten(advantage_BT, is_action_BT & ~return_B.isnan()[:, None]))


def opo(*, return_B: Tensor, group_B: Tensor, trajectory_B: Tensor, is_action_BT: Tensor) -> Advantage:
    """``R_i - sum_j T_j R_j / sum_j T_j`` over the group: OPO, arXiv 2505.23585."""
    check_shapes(return_B=return_B, is_action_BT=is_action_BT)
    trajectories = find_trajectories(return_B=return_B, group_B=group_B, trajectory_B=trajectory_B)
    length_S = trajectories.sum_tokens(torch.ones_like(is_action_BT, dtype=torch.float64), is_action_BT)
    # Centre first, so that equal returns give exactly 0, as in the other estimators.
    centred_S = group_moments(trajectories.return_S, trajectories.group_S, trajectories.num_groups).centred_N
    weighted_G = segment_sum(length_S * centred_S, trajectories.group_S, trajectories.num_groups)
    length_G = segment_sum(length_S, trajectories.group_S, trajectories.num_groups)
    value_S = centred_S - (weighted_G / length_G.clamp(min=1))[trajectories.group_S]
    return Advantage(broadcast_to_actions(trajectories.to_rows(value_S, return_B), is_action_BT))


def mc_return(
    *,
    return_B: Tensor,
    trajectory_B: Tensor,
    first_turn_B: Tensor,
    is_action_BT: Tensor,
    reward_BT: Tensor,
    discount: float = 1.0,
) -> Advantage:
    """``G_t = r_t + discount * G_t'``, t' the next sampled token: REINFORCE, Williams 1992.

    Observation tokens do not count as discount steps.  If a trajectory has several rows, returns are propagated back
    through them in the order of ``first_turn_B``.
    """
    require(0 <= discount <= 1, "discount", discount, "in [0, 1]")
    check_shapes(return_B=return_B, is_action_BT=is_action_BT, reward_BT=reward_BT)
    is_counted_BT = is_action_BT & ~return_B.isnan()[:, None]
    return Advantage(
        return_to_go(
            reward_BT=reward_BT,
            is_action_BT=is_counted_BT,
            trajectory_B=trajectory_B,
            first_turn_B=first_turn_B,
            discount=discount,
        )
    )


def mc_return_whiten(
    *,
    return_B: Tensor,
    trajectory_B: Tensor,
    first_turn_B: Tensor,
    is_action_BT: Tensor,
    reward_BT: Tensor,
    discount: float = 1.0,
) -> Advantage:
    """``whiten(G_t)`` over all sampled tokens: REINFORCE++, arXiv 2501.03262; see `mc_return`."""
    advantage_BT = mc_return(
        return_B=return_B,
        trajectory_B=trajectory_B,
        first_turn_B=first_turn_B,
        is_action_BT=is_action_BT,
        reward_BT=reward_BT,
        discount=discount,
    ).advantage_BT
    return Advantage(masked_whiten(advantage_BT, is_action_BT & ~return_B.isnan()[:, None]))


def process_group(
    *,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    first_turn_B: Tensor,
    is_action_BT: Tensor,
    is_turn_end_BT: Tensor,
    reward_BT: Tensor,
    eps: float = 1e-6,
) -> Advantage:
    """Sum of the normalised rewards of this and later turns: GRPO with process supervision.

    arXiv 2402.03300, section 4.1.3.  The reward of a turn is the sum of ``reward_BT`` over its sampled tokens; mean and
    std (ddof 1) are over all turns of the group.

    This advantage does not credit longer episodes, because the mean is subtracted once for each remaining turn.  If
    the policy decides when an episode ends and every turn has the same reward, the expected update is 0.  Separate
    means for each turn number do not help; `process_group_baseline` does.

    Raises:
        ValueError: also if a row ends in sampled tokens after its last turn end.
    """
    require(0 <= eps <= 1, "eps", eps, "in [0, 1]: it is added to a standard deviation")
    check_shapes(
        return_B=return_B,
        group_B=group_B,
        is_action_BT=is_action_BT,
        is_turn_end_BT=is_turn_end_BT,
        reward_BT=reward_BT,
    )
    is_counted_BT = is_action_BT & ~return_B.isnan()[:, None]
    turn_BT = turn_index(is_action_BT=is_counted_BT, is_turn_end_BT=is_turn_end_BT)
    turn_reward_BT = sum_over_turn(x_BT=reward_BT.double(), is_action_BT=is_counted_BT, turn_BT=turn_BT)
    _, group_index_B = torch.unique(group_B, return_inverse=True)
    row_N, t_N = (is_counted_BT & is_turn_end_BT).nonzero(as_tuple=True)
    moments = group_moments(turn_reward_BT[row_N, t_N], group_index_B[row_N], len(group_B))
    normalised_BT = torch.zeros_like(turn_reward_BT)
    normalised_BT[row_N, t_N] = _divide(moments.centred_N, moments.std_N, eps)
    return Advantage(
        return_to_go(
            reward_BT=normalised_BT.to(reward_BT.dtype),
            is_action_BT=is_counted_BT,
            trajectory_B=trajectory_B,
            first_turn_B=first_turn_B,
            discount=1.0,
        )
    )


def _divide(centred: Tensor, std: Tensor, eps: float) -> Tensor:
    """Divide ``centred`` by ``std + eps``; 0 where the divisor is 0."""
    return torch.where(std + eps > 0, centred / (std + eps), torch.zeros_like(centred))
