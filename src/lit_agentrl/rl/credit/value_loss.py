"""Losses of the critic, and its explained variance.

``value_BT`` is the current prediction of the critic, ``return_BT`` its target from the advantage estimator (in reward
units, see ``critic_advantages.py``), both (B, T).  Losses are in squared reward units, and 0 outside the targets, even
where the inputs are NaN; gradient flows through ``value_BT`` only.  Targets are the tokens of ``is_value_target_BT``,
or every sampled token if it is None; both masks are (B, T).  All functions raise ValueError when shapes disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lit_agentrl.checks import require
from lit_agentrl.rl.masked import check_shapes, group_moments


@dataclass(frozen=True)
class ValueLoss:
    """Loss of each token; the mask is True where clipping stops the gradient."""

    loss_BT: Tensor
    is_clipped_BT: Tensor


def squared(
    *,
    value_BT: Tensor,
    return_BT: Tensor,
    is_action_BT: Tensor,
    is_value_target_BT: Tensor | None = None,
) -> ValueLoss:
    """``1/2 (V - ret)^2``."""
    is_target_BT = select_targets(is_action_BT, is_value_target_BT)
    error_BT = mask_targets(value_BT, is_target_BT) - mask_targets(return_BT.detach(), is_target_BT)
    return ValueLoss(0.5 * error_BT.square(), torch.zeros_like(is_target_BT))


def clipped(
    *,
    value_BT: Tensor,
    old_value_BT: Tensor,
    return_BT: Tensor,
    is_action_BT: Tensor,
    is_value_target_BT: Tensor | None = None,
    clip: float = 0.2,
) -> ValueLoss:
    """Clipped value loss of OpenAI Baselines' PPO, studied in arXiv 2005.12729.

    ``1/2 max((V - ret)^2, (clip(V, V_old - c, V_old + c) - ret)^2)`` with c = ``clip`` in reward units.
    ``old_value_BT`` is the prediction before the first update on this batch.  Where the second term is larger, the
    value has no gradient and is marked in ``is_clipped_BT``.

    Raises:
        ValueError: also if ``clip`` is not positive.
    """
    require(clip > 0, "clip", clip, "> 0; the squared loss does not clip")
    is_target_BT = select_targets(is_action_BT, is_value_target_BT)
    value_BT = mask_targets(value_BT, is_target_BT)
    return_BT = mask_targets(return_BT.detach(), is_target_BT)
    old_BT = mask_targets(old_value_BT.detach(), is_target_BT)
    unclipped_BT = (value_BT - return_BT).square()
    clipped_BT = (torch.clamp(value_BT, old_BT - clip, old_BT + clip) - return_BT).square()
    return ValueLoss(0.5 * torch.maximum(unclipped_BT, clipped_BT), clipped_BT > unclipped_BT)


def clipped_with_costs(
    *,
    value_BT: Tensor,
    old_value_BT: Tensor,
    return_BT: Tensor,
    cost_value_BT: Tensor,
    old_cost_value_BT: Tensor,
    cost_return_BT: Tensor,
    is_action_BT: Tensor,
    is_value_target_BT: Tensor | None = None,
    clip: float = 0.2,
) -> ValueLoss:
    """Sum of the `clipped` losses of reward values and cost values: Safe RLHF.

    ``cost_value_BT``, ``old_cost_value_BT`` and ``cost_return_BT`` are the values, old values and targets of costs, in
    units of cost; ``clip`` applies to rewards and costs.  A token is marked as clipped where either value is.
    """
    loss = partial(clipped, is_action_BT=is_action_BT, is_value_target_BT=is_value_target_BT, clip=clip)
    rewards = loss(value_BT=value_BT, old_value_BT=old_value_BT, return_BT=return_BT)
    costs = loss(value_BT=cost_value_BT, old_value_BT=old_cost_value_BT, return_BT=cost_return_BT)
    return ValueLoss(rewards.loss_BT + costs.loss_BT, rewards.is_clipped_BT | costs.is_clipped_BT)


def explained_variance(*, value_BT: Tensor, return_BT: Tensor, is_value_target_BT: Tensor) -> Tensor:
    """``1 - var(ret - V) / var(ret)`` over the targets, a float64 scalar without gradient.

    1 is a perfect prediction, 0 is as good as a constant, and a negative value is worse than a constant.  The result is
    0 if all targets are equal or there are none.
    """
    check_shapes(value_BT=value_BT, return_BT=return_BT, is_value_target_BT=is_value_target_BT)
    target_N = return_BT.detach()[is_value_target_BT].double()
    error_N = target_N - value_BT.detach()[is_value_target_BT].double()
    one_group_N = torch.zeros_like(target_N, dtype=torch.int64)
    # group_moments gives exactly 0 for equal values
    total, residual = (
        group_moments(x_N, one_group_N, 1).centred_N.square().sum() for x_N in (target_N, error_N)
    )
    return torch.where(total > 0, 1 - residual / total, torch.zeros_like(total))


def select_targets(is_action_BT: Tensor, is_value_target_BT: Tensor | None) -> Tensor:
    """Return the mask of the targets, (B, T); all sampled tokens if ``is_value_target_BT`` is None."""
    if is_value_target_BT is None:
        return is_action_BT
    check_shapes(is_action_BT=is_action_BT, is_value_target_BT=is_value_target_BT)
    return is_action_BT & is_value_target_BT


def mask_targets(x_BT: Tensor, is_target_BT: Tensor) -> Tensor:
    """Return ``x_BT`` at the targets, 0 elsewhere."""
    check_shapes(x_BT=x_BT, is_target_BT=is_target_BT)
    return torch.where(is_target_BT, x_BT, torch.zeros_like(x_BT))
