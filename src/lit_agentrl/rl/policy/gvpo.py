"""GVPO, arXiv 2504.19599: a squared error per group between what the policy implies and what was earned.

``S_i = beta * sum over its sampled tokens of (logp - old_logp)`` is the return (points) that the policy implies for
trajectory i of a group, ``A_i`` its advantage, ``N_g`` counts the scored trajectories of the group.  A trajectory whose
return is NaN is left out.  Trajectories may have several rows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lit_agentrl.checks import require
from lit_agentrl.rl.masked import check_shapes, find_trajectories, segment_sum


def gvpo_loss(
    *,
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    advantage_BT: Tensor,
    is_action_BT: Tensor,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    beta: float = 0.1,
) -> Tensor:
    """``sum over groups of 1/(N_g - 1) sum_i ((S_i - mean_g S) - A_i)^2 / 2``, a scalar; see `GroupLoss`.

    With ``algo/advantage=group_mean``, ``A_i = R_i - mean_g R``, it is the paper's loss but for the division by
    the number of groups.  A group of one has no gradient.

    Args:
        logp_BT: nats; carries gradient.
        old_logp_BT: nats, of the policy to stay near: the sampler's, a reference's or any earlier one's.
        advantage_BT: points, ``A_i`` at each sampled token; where tokens differ, their mean counts.
        is_action_BT: sampled tokens.
        return_B: points; NaN leaves the trajectory out.
        group_B: groups must be complete.
        trajectory_B: rows of one trajectory share a number.
        beta: points per nat, > 0.

    Raises:
        ValueError: if shapes disagree, ``beta`` is not positive or rows of a trajectory differ in return.
    """
    require(0 < beta < math.inf, "beta", beta, "finite and > 0")
    check_shapes(
        logp_BT=logp_BT, old_logp_BT=old_logp_BT, advantage_BT=advantage_BT, is_action_BT=is_action_BT,
        return_B=return_B,
    )  # fmt: skip
    found = find_trajectories(return_B=return_B, group_B=group_B, trajectory_B=trajectory_B)
    is_scored_B = found.index_B >= 0

    def of_trajectories(x_BT: Tensor) -> Tensor:
        """Sums over the sampled tokens of each scored trajectory, float64."""
        x_B = torch.where(is_action_BT, x_BT, torch.zeros_like(x_BT)).double().sum(1)
        return segment_sum(x_B[is_scored_B], found.index_B[is_scored_B], len(found.return_S))

    score_S = beta * of_trajectories(logp_BT - old_logp_BT.detach())
    length_S = of_trajectories(torch.ones_like(advantage_BT))
    advantage_S = of_trajectories(advantage_BT.detach()) / length_S.clamp(min=1)
    size = segment_sum(torch.ones_like(score_S), found.group_S, found.num_groups)
    mean = segment_sum(score_S, found.group_S, found.num_groups) / size.clamp(min=1)
    error_S = score_S - mean[found.group_S] - advantage_S
    degrees_S = (size - 1).clamp(min=1)[found.group_S]
    return (error_S.square() / (2 * degrees_S)).sum().to(logp_BT.dtype)
