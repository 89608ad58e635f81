"""GVPO, arXiv 2504.19599: a squared error per group, and the policy gradient that is equal to it.

``R_i`` is the return of trajectory i in points, ``S_i = beta * sum over its sampled tokens of
(logp - old_logp)`` the return its policy implies (in points too), both over the ``N_g`` scored trajectories
of a group; ``G`` counts groups.  A trajectory with a NaN return is left out; a group of one has a loss of 0
but counts in ``G``.  Trajectories may have several rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_agentrl.rl.advantages import Advantage, broadcast_to_actions
from lit_agentrl.rl.aggregation import seq_mean_token_sum
from lit_agentrl.rl.masked import Trajectories, check_shapes, find_trajectories, group_moments, segment_sum


def gvpo_loss(
    *,
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    is_action_BT: Tensor,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    beta: float = 0.1,
) -> Tensor:
    """``1/G sum over groups of 1/(N_g - 1) sum_i ((S_i - mean_g S) - (R_i - mean_g R))^2 / 2``, a scalar.

    Args:
        logp_BT: nats; carries gradient.  ``mean_g S`` is a constant: the errors of a group sum to 0, so its
            gradient would too.
        old_logp_BT: nats, of the policy to stay near: the sampler's, a reference's or any earlier one's.
        is_action_BT: sampled tokens.
        return_B: points.
        group_B: groups must be complete.
        trajectory_B: rows of one trajectory share a number.
        beta: points per nat, > 0.

    Raises:
        ValueError: if shapes disagree, ``beta`` is not positive or rows of a trajectory differ in return.
    """
    errors = _errors(logp_BT, old_logp_BT, is_action_BT, return_B, group_B, trajectory_B, beta)
    residual_S = errors.error_S + errors.score_S - errors.score_S.detach()
    loss = (residual_S.square() / (2 * errors.degrees_S)).sum() / max(errors.found.num_groups, 1)
    return loss.to(logp_BT.dtype)


@torch.no_grad()
def gvpo(
    *,
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    is_action_BT: Tensor,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    beta: float = 0.1,
) -> Advantage:
    """``M/G * beta / (N_g - 1) * ((R_i - mean_g R) - (S_i - mean_g S))`` at each sampled token.

    ``M`` counts trajectories with sampled tokens, scored or not; for complete groups of equal size M/G is
    ``N``.  With ``algo/ratio=none``, ``algo/clip=none`` and ``algo/aggregate=seq_mean_token_sum`` (which
    divides by M) the gradient is that of `gvpo_loss`, in micro-batches of any size; with ``token_sum`` it is
    M times that.  The value of the loss is not.  Where all ``S_i`` are equal, as on the sampling policy
    itself, it is ``beta`` times `advantages.loo` for groups of equal size.

    Args:
        logp_BT: nats, under the weights at the start of the optimizer step, from a pass without gradient;
            ``old_logp_BT`` itself on the first step, where the two policies are one.
        old_logp_BT: as in `gvpo_loss`, likewise the others.
        is_action_BT: sampled tokens.
        return_B: points.
        group_B: groups must be complete.
        trajectory_B: must be unique over groups.
        beta: points per nat, > 0.

    Raises:
        ValueError: as `gvpo_loss`.
    """
    errors = _errors(logp_BT, old_logp_BT, is_action_BT, return_B, group_B, trajectory_B, beta)
    count = seq_mean_token_sum(is_action_BT=is_action_BT, trajectory_B=trajectory_B).denominator
    scale = beta * float(count if count is not None else 1) / max(errors.found.num_groups, 1)
    value_S = -scale * errors.error_S / errors.degrees_S
    return Advantage(broadcast_to_actions(errors.found.to_rows(value_S, return_B), is_action_BT))


@dataclass(frozen=True)
class _Errors:
    """Per scored trajectory: ``S_i``, with gradient; its group-centred error; ``max(N_g - 1, 1)``."""

    found: Trajectories
    score_S: Tensor
    error_S: Tensor
    degrees_S: Tensor


def _errors(
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    is_action_BT: Tensor,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    beta: float,
) -> _Errors:
    if not 0 < beta < math.inf:
        raise ValueError(f"beta={beta} must be finite and > 0")
    check_shapes(
        logp_BT=logp_BT, old_logp_BT=old_logp_BT, is_action_BT=is_action_BT, trajectory_B=trajectory_B
    )
    check_shapes(is_action_BT=is_action_BT, return_B=return_B)
    found = find_trajectories(return_B=return_B, group_B=group_B, trajectory_B=trajectory_B)
    delta_B = torch.where(is_action_BT, logp_BT - old_logp_BT.detach(), 0).double().sum(1)
    is_scored_B = found.index_B >= 0
    score_S = beta * segment_sum(delta_B[is_scored_B], found.index_B[is_scored_B], len(found.return_S))
    moments = group_moments(score_S.detach() - found.return_S.detach(), found.group_S, found.num_groups)
    return _Errors(found, score_S, moments.centred_N, (moments.count_N - 1).clamp(min=1))
