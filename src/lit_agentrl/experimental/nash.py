"""Advantages and rows against the opponent of a group: Nash-MD.

Notation and shapes are those of ``rl/credit/advantages.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lit_agentrl.checks import require
from lit_agentrl.rl.credit.advantages import Advantage, broadcast_to_actions
from lit_agentrl.rl.credit.comparison_advantages import count_compared
from lit_agentrl.rl.masked import find_trajectories


def against_opponent(
    *,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    is_action_BT: Tensor,
    is_opponent_B: Tensor,
    baseline: float = 0.5,
) -> Advantage:
    """Share of the group's opponents that a trajectory beats: Nash-MD, arXiv 2312.00886.

    ``1/M sum_j P(i > j) - baseline`` over the M opponents j; a tie counts as one half.  Opponents (``is_opponent_B``)
    and groups without one get 0.  ``baseline`` is in [0, 1].
    """
    require(0 <= baseline <= 1, "baseline", baseline, "in [0, 1]")
    trajectories = find_trajectories(return_B=return_B, group_B=group_B, trajectory_B=trajectory_B)
    is_opponent_S = torch.zeros_like(trajectories.return_S)
    is_scored_B = trajectories.index_B >= 0
    is_opponent_S[trajectories.index_B[is_scored_B]] = is_opponent_B[is_scored_B].to(is_opponent_S)
    below_S, equal_S, size_S = count_compared(trajectories, is_opponent_S)
    rate_S = (below_S + 0.5 * equal_S) / size_S.clamp(min=1)
    value_S = torch.where((size_S > 0) & (is_opponent_S == 0), rate_S - baseline, torch.zeros_like(rate_S))
    return Advantage(broadcast_to_actions(trajectories.to_rows(value_S, return_B), is_action_BT))


def own(*, is_opponent_B: Tensor) -> Tensor:
    """Drop the rows of the opponent; they serve only for comparison."""
    return ~is_opponent_B
