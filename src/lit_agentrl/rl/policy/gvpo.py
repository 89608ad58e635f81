"""GVPO, arXiv 2504.19599: squared error per group between implicit rewards and advantages.

``S_i = beta * sum over its sampled tokens of (logp - old_logp)`` is the implicit reward of trajectory i, ``A_i`` its
advantage; ``N_g`` counts the scored trajectories of group g.  A trajectory whose return is NaN is left out.
Trajectories may have several rows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lit_agentrl.checks import require
from lit_agentrl.rl.masked import check_shapes, find_trajectories, group_moments, segment_sum


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
    """Sum GVPO's squared errors over groups, a scalar.

    ``sum over groups of 1/(N_g - 1) sum_i ((S_i - mean_g S) - A_i)^2 / 2``.  With ``algo/advantage=group_mean``,
    ``A_i = R_i - mean_g R``, it is the loss of the paper except for the division by the number of groups, which
    `GroupLoss` does.  A group of size 1 has no gradient.

    Args:
        logp_BT: nats; carries gradient.
        old_logp_BT: nats, of the policy to stay near: the sampler's, a reference's or any earlier one's.
        advantage_BT: ``A_i`` at each sampled token, in reward units; where tokens differ, their mean counts.  A
            trajectory without a sampled token has ``S_i = 0`` and ``A_i = R_i - mean_g R``.
        is_action_BT: sampled tokens.
        return_B: in reward units; NaN leaves the trajectory out.
        group_B: groups must be complete.
        trajectory_B: rows of one trajectory share a number.
        beta: reward units per nat, > 0.

    Raises:
        ValueError: the shapes disagree, ``beta`` is not positive or rows of a trajectory differ in return.
    """
    require(0 < beta < math.inf, "beta", beta, "finite and > 0")
    check_shapes(
        logp_BT=logp_BT, old_logp_BT=old_logp_BT, advantage_BT=advantage_BT, is_action_BT=is_action_BT,
        return_B=return_B,
    )  # fmt: skip
    trajectories = find_trajectories(return_B=return_B, group_B=group_B, trajectory_B=trajectory_B)
    score_S = beta * trajectories.sum_tokens(logp_BT - old_logp_BT.detach(), is_action_BT)
    length_S = trajectories.sum_tokens(torch.ones_like(advantage_BT), is_action_BT)
    advantage_S = trajectories.sum_tokens(advantage_BT.detach(), is_action_BT) / length_S.clamp(min=1)
    centred_S = group_moments(trajectories.return_S, trajectories.group_S, trajectories.num_groups).centred_N
    advantage_S = torch.where(length_S > 0, advantage_S, centred_S.detach())
    size_G = segment_sum(torch.ones_like(score_S), trajectories.group_S, trajectories.num_groups)
    mean_G = segment_sum(score_S, trajectories.group_S, trajectories.num_groups) / size_G.clamp(min=1)
    error_S = score_S - mean_G[trajectories.group_S] - advantage_S
    degrees_S = (size_G - 1).clamp(min=1)[trajectories.group_S]
    return (error_S.square() / (2 * degrees_S)).sum().to(logp_BT.dtype)
