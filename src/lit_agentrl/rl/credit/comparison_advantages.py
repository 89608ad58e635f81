"""Advantages from comparisons within a group, and weights of imitation.

Notation and shapes are those of ``advantages.py``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lit_agentrl.checks import require
from lit_agentrl.rl.credit.advantages import Advantage, broadcast_to_actions
from lit_agentrl.rl.masked import Trajectories, find_trajectories, segment_sum


def win_rate(
    *, return_B: Tensor, group_B: Tensor, trajectory_B: Tensor, is_action_BT: Tensor, baseline: float = 0.5
) -> Advantage:
    """Share of the other trajectories that a trajectory beats: SPO, arXiv 2401.04056.

    ``1/(N - 1) sum_(j != i) P(i > j) - baseline``; a tie counts as one half.  The mean over a group is ``1/2 -
    baseline``.  A group of size 1 gets 0.  ``baseline`` is in [0, 1].
    """
    require(0 <= baseline <= 1, "baseline", baseline, "in [0, 1]")
    trajectories = find_trajectories(return_B=return_B, group_B=group_B, trajectory_B=trajectory_B)
    below_S, equal_S, size_S = count_compared(trajectories)
    rate_S = (below_S + 0.5 * (equal_S - 1)) / (size_S - 1).clamp(min=1)
    value_S = torch.where(size_S > 1, rate_S - baseline, torch.zeros_like(rate_S))
    return Advantage(broadcast_to_actions(trajectories.to_rows(value_S, return_B), is_action_BT))


def quantile(*, return_B: Tensor, group_B: Tensor, trajectory_B: Tensor, is_action_BT: Tensor) -> Advantage:
    """``1/N sum_j 1[R_j <= R_i]``, including j = i: QRPO's quantile reward, arXiv 2507.08068."""
    trajectories = find_trajectories(return_B=return_B, group_B=group_B, trajectory_B=trajectory_B)
    below_S, equal_S, size_S = count_compared(trajectories)
    value_S = (below_S + equal_S) / size_S.clamp(min=1)
    return Advantage(broadcast_to_actions(trajectories.to_rows(value_S, return_B), is_action_BT))


def demonstration(*, return_B: Tensor, is_action_BT: Tensor) -> Advantage:
    """1 for every trajectory with a return: imitate all of them, good or bad."""
    return Advantage(broadcast_to_actions((~return_B.isnan()).to(return_B.dtype), is_action_BT))


def none(*, return_B: Tensor, is_action_BT: Tensor) -> Advantage:
    """0 at every sampled token; only other terms, such as a KL term, train."""
    return Advantage(broadcast_to_actions(torch.zeros_like(return_B), is_action_BT))


def above(*, return_B: Tensor, is_action_BT: Tensor, threshold: float = 0.0) -> Advantage:
    """``1[R_i > threshold]``: rejection sampling, arXiv 2308.01825.

    ``threshold`` is finite, in reward units.
    """
    require(math.isfinite(threshold), "threshold", threshold, "finite")
    return Advantage(broadcast_to_actions((return_B > threshold).to(return_B.dtype), is_action_BT))


def count_compared(
    trajectories: Trajectories, counted_S: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Count the trajectories of the group with a lower, an equal, and any return.

    Each trajectory counts itself as equal.  All three are (S,), float64.  Only trajectories with a 1 in ``counted_S``
    are counted; None counts all.
    """
    counted_S = torch.ones_like(trajectories.return_S) if counted_S is None else counted_S
    key = torch.stack([trajectories.group_S.double(), trajectories.return_S], dim=1)
    ids, place_S = torch.unique(key, dim=0, return_inverse=True)
    equal = segment_sum(counted_S, place_S, len(ids))
    size = segment_sum(counted_S, trajectories.group_S, trajectories.num_groups)
    # ids are sorted by group, so the sums over lower ids include all trajectories of the preceding groups
    preceding = size.cumsum(0) - size
    below = (equal.cumsum(0) - equal) - preceding[ids[:, 0].long()]
    return below[place_S], equal[place_S], size[trajectories.group_S]
