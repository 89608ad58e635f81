"""SPPO and QRPO: regress a trajectory's log-ratio towards its win rate or quantile.

``D_i = sum over sampled tokens of (logp - reference logp)``, nats.  Both are losses of `GroupLoss`: the mean of
squared errors over the N scored trajectories of each group, summed over groups.  Trajectories may have several rows.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from lit_agentrl.checks import require
from lit_agentrl.rl.masked import check_shapes, find_trajectories, segment_sum


def sppo_loss(
    *,
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    advantage_BT: Tensor,
    is_action_BT: Tensor,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    eta: float = 10.0,
) -> Tensor:
    """``1/N sum_i (D_i - eta A_i)^2``: SPPO, arXiv 2405.00675, equation 4.4, a scalar.

    ``A_i = win rate - 1/2``, from ``algo/advantage=win_rate``; the reference is the policy that sampled.

    Args:
        logp_BT: nats; carries gradient.
        old_logp_BT: nats, of the policy that sampled.
        advantage_BT: ``A_i`` at each sampled token.
        is_action_BT: sampled tokens.
        return_B: in reward units; NaN leaves the trajectory out.
        group_B: groups must be complete.
        trajectory_B: rows of one trajectory share a number.
        eta: nats, finite and > 0.

    Raises:
        ValueError: ``eta`` is out of range, or shapes disagree.
    """
    require(0 < eta < math.inf, "eta", eta, "finite and > 0")
    return _sum_squared_errors(
        logp_BT - old_logp_BT.detach(), advantage_BT, slope=1.0, scale=eta, shift=0.0, is_action_BT=is_action_BT,
        return_B=return_B, group_B=group_B, trajectory_B=trajectory_B,
    )  # fmt: skip


def qrpo_loss(
    *,
    logp_BT: Tensor,
    ref_logp_BT: Tensor,
    advantage_BT: Tensor,
    is_action_BT: Tensor,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    beta: float = 0.1,
    transform: Literal["identity", "log"] = "identity",
) -> Tensor:
    """``1/N sum_i (r(q_i) - beta log Z - beta D_i)^2``: QRPO, arXiv 2507.08068, a scalar.

    ``q_i`` is the quantile of the return among those of reference samples of the prompt, from
    ``algo/advantage=reference_quantile``, or within the group, from ``algo/advantage=quantile``.  With
    ``transform=identity``, ``r = q`` and ``Z = beta (e^(1 / beta) - 1)``; with ``log``, ``r = log q`` and
    ``Z = beta / (1 + beta)``.

    ``advantage_BT`` is ``q_i`` at each sampled token, in (0, 1]; ``beta`` is per nat, finite and > 0; the other
    arguments are those of `sppo_loss`.  Gradient flows through ``logp_BT``.

    Raises:
        ValueError: an option is out of range, or shapes disagree.
    """
    require(0 < beta < math.inf, "beta", beta, "finite and > 0")
    require(transform in ("identity", "log"), "transform", transform, "identity or log")
    if transform == "log":
        log_z, advantage_BT = math.log(beta / (1 + beta)), torch.log(advantage_BT.clamp(min=1e-6))
    else:
        log_z = math.log(beta) + 1 / beta + math.log1p(-math.exp(-1 / beta))
    return _sum_squared_errors(
        logp_BT - ref_logp_BT.detach(), advantage_BT, slope=beta, scale=1.0, shift=-beta * log_z,
        is_action_BT=is_action_BT, return_B=return_B, group_B=group_B, trajectory_B=trajectory_B,
    )  # fmt: skip


qrpo_loss.min_members = 1  # type: ignore[attr-defined]  # each error concerns a single trajectory


def _sum_squared_errors(
    log_ratio_BT: Tensor, goal_BT: Tensor, *, slope: float, scale: float, shift: float, is_action_BT: Tensor,
    return_B: Tensor, group_B: Tensor, trajectory_B: Tensor,
) -> Tensor:  # fmt: skip
    """Return ``sum over groups of 1/N sum_i (scale goal_i + shift - slope D_i)^2``.

    ``goal_i`` is the mean of ``goal_BT`` over sampled tokens.
    """
    check_shapes(log_ratio_BT=log_ratio_BT, goal_BT=goal_BT, is_action_BT=is_action_BT, return_B=return_B)
    trajectories = find_trajectories(return_B=return_B, group_B=group_B, trajectory_B=trajectory_B)
    length_S = trajectories.sum_tokens(torch.ones_like(log_ratio_BT), is_action_BT)
    goal_S = trajectories.sum_tokens(goal_BT.detach(), is_action_BT) / length_S.clamp(min=1)
    log_ratio_S = trajectories.sum_tokens(log_ratio_BT, is_action_BT)
    error_S = torch.where(length_S > 0, scale * goal_S + shift - slope * log_ratio_S, 0.0)
    size_G = segment_sum((length_S > 0).double(), trajectories.group_S, trajectories.num_groups)
    return (error_S.square() / size_G.clamp(min=1)[trajectories.group_S]).sum().to(log_ratio_BT.dtype)
