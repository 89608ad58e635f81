"""Group selection: which groups of rollouts to train on, decided before any advantage is computed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_agentrl.rl.masked import find_trajectories, group_moments


@dataclass(frozen=True)
class Selection:
    """The outcome of a filter.

    Attributes:
        keep_groups: int64 ids from ``group_B``, in order of first appearance.
        want_more: whether more groups should be rolled out before training.
    """

    keep_groups: Tensor
    want_more: bool


def keep_all(*, group_B: Tensor) -> Selection:
    """Keeps every group."""
    return Selection(keep_groups=_groups_in_order(group_B), want_more=False)


def top_std(*, return_B: Tensor, group_B: Tensor, trajectory_B: Tensor, ratio: float) -> Selection:
    """Keeps the ``max(1, floor(ratio * P))`` of P groups with the widest returns: StarPO-S, arXiv 2504.20073.

    Spread is the standard deviation (ddof 1) of the group's returns, NaN returns left out; fewer than two
    returns spread 0.  Ties go to the group that appears first.

    Args:
        return_B: points, of the whole trajectory, (B,).
        group_B: group ids, (B,).
        trajectory_B: trajectory ids, (B,); rows of one trajectory count once.
        ratio: share of groups to keep, in (0, 1].

    Raises:
        ValueError: if shapes disagree or ``ratio`` is outside (0, 1].
    """
    if not 0 < ratio <= 1:
        raise ValueError(f"filter.ratio={ratio} must be in (0, 1]; 1.0 keeps all groups")
    groups, std = group_std(return_B, group_B, trajectory_B)
    num_kept = max(1, int(ratio * len(groups) + 1e-9))  # 0.29 * 100 is 28.999... in floating point
    best = torch.argsort(std, descending=True, stable=True)[:num_kept]
    return Selection(keep_groups=groups[best.sort().values], want_more=False)


def group_std(return_B: Tensor, group_B: Tensor, trajectory_B: Tensor) -> tuple[Tensor, Tensor]:
    """Group ids in order of first appearance and the spreads (points) of their returns, float64.

    The spread is the standard deviation (ddof 1) over trajectories, each counted once however many rows it
    has; NaN returns are left out, and fewer than two others spread 0.

    Raises:
        ValueError: if shapes disagree.
    """
    found = find_trajectories(return_B=return_B, group_B=group_B, trajectory_B=trajectory_B)
    # Sorted returns: a group's std then does not depend, in its last bit, on the order of its members.
    order = torch.argsort(found.return_S)
    moments = group_moments(found.return_S[order], found.group_S[order], found.num_groups)
    std_B = found.to_rows(moments.std_N[torch.argsort(order)], moments.std_N)
    groups = _groups_in_order(group_B)
    ids, index_B = torch.unique(group_B, return_inverse=True)
    std = std_B.new_zeros(len(ids)).scatter_reduce_(0, index_B, std_B, "amax")
    return groups, std[torch.searchsorted(ids, groups)]


def _groups_in_order(group_B: Tensor) -> Tensor:
    """Distinct group ids, in order of first appearance, int64."""
    ids, index_B = torch.unique(group_B, return_inverse=True)
    row_B = torch.arange(len(group_B), device=group_B.device)
    first = torch.full_like(ids, len(group_B)).scatter_reduce_(0, index_B, row_B, "amin")
    in_order: Tensor = ids[first.argsort()].long()
    return in_order
