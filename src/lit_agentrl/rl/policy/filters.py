"""Group filters: select groups of rollouts to train on, before advantages are computed.

Filters raise ValueError when shapes disagree or a constant is out of range.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lit_agentrl.checks import require, require_whole
from lit_agentrl.rl.binding import constants
from lit_agentrl.rl.masked import check_shapes, find_trajectories, group_moments, segment_sum


@dataclass(frozen=True)
class Selection:
    """The groups that a filter selected.

    Attributes:
        keep_groups: int64 ids from ``group_B``, in order of first appearance.
        want_more: True if more groups should be rolled out before training.
    """

    keep_groups: Tensor
    want_more: bool


def wanted_groups(select_groups: Callable[..., Selection]) -> int | None:
    """Return the ``target`` number of groups; None if a filter never asks for more."""
    return select_groups.keywords.get("target") if isinstance(select_groups, partial) else None


def keeps_all(select_groups: Callable[..., Selection]) -> bool:
    """Return True if a filter never drops a group: `keep_all`, or `top_std` with ratio 1."""
    rule = select_groups.func if isinstance(select_groups, partial) else select_groups
    return rule is keep_all or (rule is top_std and constants(select_groups)["ratio"] == 1)


def keep_all(*, group_B: Tensor) -> Selection:
    """Keep every group."""
    return Selection(keep_groups=_list_groups(group_B), want_more=False)


def top_std(*, return_B: Tensor, group_B: Tensor, trajectory_B: Tensor, ratio: float) -> Selection:
    """Keep the groups with the highest std of returns: StarPO-S, arXiv 2504.20073.

    It keeps ``max(1, floor(ratio * P))`` of P groups.  The std (ddof 1) leaves out NaN returns and is 0 for fewer than
    two returns.  Ties go to the group that appears first.

    Args:
        return_B: return of the whole trajectory, in reward units, (B,).
        group_B: group ids, (B,).
        trajectory_B: trajectory ids, (B,); rows of one trajectory count once.
        ratio: share of groups to keep, in (0, 1].

    Raises:
        ValueError: if shapes disagree or ``ratio`` is outside (0, 1].
    """
    require(0 < ratio <= 1, "ratio", ratio, "in (0, 1]; 1.0 keeps all groups")
    groups, std = group_std(return_B, group_B, trajectory_B)
    num_kept = max(1, int(ratio * len(groups) + 1e-9))  # 0.29 * 100 is 28.999... in floating point
    best = torch.argsort(std, descending=True, stable=True)[:num_kept]
    return Selection(keep_groups=groups[best.sort().values], want_more=False)


def group_std(return_B: Tensor, group_B: Tensor, trajectory_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return the group ids and the std of returns of each group, float64.

    Groups are in order of first appearance.  The std (ddof 1, in reward units) is over trajectories: each
    counts once, whatever its number of rows.  NaN returns are left out; with fewer than two other returns the std is 0.

    Raises:
        ValueError: the shapes disagree.
    """
    trajectories = find_trajectories(return_B=return_B, group_B=group_B, trajectory_B=trajectory_B)
    # Sort returns so that the last bit of a std does not depend on the order of rows.
    order = torch.argsort(trajectories.return_S)
    moments = group_moments(
        trajectories.return_S[order], trajectories.group_S[order], trajectories.num_groups
    )
    std_B = trajectories.to_rows(moments.std_N[torch.argsort(order)], moments.std_N)
    groups = _list_groups(group_B)
    ids, index_B = torch.unique(group_B, return_inverse=True)
    std = std_B.new_zeros(len(ids)).scatter_reduce_(0, index_B, std_B, "amax")
    return groups, std[torch.searchsorted(ids, groups)]


def _list_groups(group_B: Tensor) -> Tensor:
    """List the distinct group ids in order of first appearance, int64."""
    ids, index_B = torch.unique(group_B, return_inverse=True)
    row_B = torch.arange(len(group_B), device=group_B.device)
    first = torch.full_like(ids, len(group_B)).scatter_reduce_(0, index_B, row_B, "amin")
    in_order: Tensor = ids[first.argsort()].long()
    return in_order


def std_nucleus(
    *, return_B: Tensor, group_B: Tensor, trajectory_B: Tensor, p: float, slack: float = 0.01
) -> Selection:
    """Keep the fewest groups whose stds sum to a share of the total: RAGEN.

    Groups are taken by decreasing std until their stds sum to ``p * (sum of all stds) - slack``.  Groups with a std of
    0 are never kept; ties go to the group that appears first.

    ``p`` is in (0, 1]; ``slack`` is in reward units, >= 0.  With ``slack=0``, ``p=1`` keeps every group whose std is
    not 0.
    """
    require(0 < p <= 1, "p", p, "in (0, 1]; filter=none keeps all groups")
    require(0 <= slack < math.inf, "slack", slack, ">= 0 and finite")
    groups, std = group_std(return_B, group_B, trajectory_B)
    sorted_std, order = torch.sort(std, descending=True, stable=True)
    # Sum the remaining stds from the smallest up: exact where p=1, however small the last std is.
    remaining = sorted_std.flip(0).cumsum(0).flip(0)
    allowed = (1 - p) * std.sum() + slack
    # The margin absorbs rounding for shares such as 0.7 of ten equal groups.
    needed = order[(sorted_std > 0) & (remaining > allowed + 1e-12 * (1 - p) * std.sum())]
    return Selection(keep_groups=groups[needed.sort().values], want_more=False)


def min_p(*, return_B: Tensor, group_B: Tensor, trajectory_B: Tensor, p: float) -> Selection:
    """Keep the groups whose std is at least ``p`` times the largest: RAGEN.

    ``p`` is in (0, 1].  If all stds are 0, no group is kept.
    """
    require(0 < p <= 1, "p", p, "in (0, 1]; filter=none keeps all groups")
    groups, std = group_std(return_B, group_B, trajectory_B)
    largest = torch.cat([std, std.new_zeros(1)]).max()
    return Selection(keep_groups=groups[(std > 0) & (std >= p * largest)], want_more=False)


def var_threshold(
    *, return_B: Tensor, group_B: Tensor, trajectory_B: Tensor, threshold: float = 0.01
) -> Selection:
    """Keep the groups whose variance of returns is at least ``threshold``.

    ``threshold`` is in squared reward units, > 0.
    """
    require(0 < threshold < math.inf, "threshold", threshold, "> 0 and finite; filter=none keeps all groups")
    groups, std = group_std(return_B, group_B, trajectory_B)
    return Selection(keep_groups=groups[std >= math.sqrt(threshold)], want_more=False)


def reject_uniform(*, return_B: Tensor, success_B: Tensor, group_B: Tensor) -> Selection:
    """Keep the groups with both solved and failed trajectories: Reinforce-Rej, arXiv 2504.11343.

    ``success_B`` (bool) decides, not the return.  Trajectories whose return is NaN are left out.
    """
    check_shapes(return_B=return_B, success_B=success_B, group_B=group_B)
    groups = keep_all(group_B=group_B).keep_groups
    ids, index_B = torch.unique(group_B, return_inverse=True)
    outcome_B2 = torch.stack([success_B, ~success_B], dim=1) & ~return_B.isnan()[:, None]
    counts = [segment_sum(outcome_B.long(), index_B, len(ids)) for outcome_B in outcome_B2.unbind(1)]
    is_mixed = (counts[0] > 0) & (counts[1] > 0)
    return Selection(keep_groups=groups[is_mixed[torch.searchsorted(ids, groups)]], want_more=False)


def dynamic_sampling(
    *, return_B: Tensor, success_B: Tensor, group_B: Tensor, target: int | None = None
) -> Selection:
    """Keep the first ``target`` groups with both outcomes: DAPO, arXiv 2503.14476.

    Section 3.2: while fewer than ``target`` groups have both outcomes, more groups are requested.  Call it on all
    groups rolled out so far.  ``target=None`` never requests more, like `reject_uniform`.

    Raises:
        ValueError: also if ``target`` is not a whole number >= 1.
    """
    if target is not None:
        require_whole("target", target, 1, alternative=", or null to never sample more")
    keep_groups = reject_uniform(return_B=return_B, success_B=success_B, group_B=group_B).keep_groups
    want_more = target is not None and len(keep_groups) < target
    return Selection(keep_groups=keep_groups[:target], want_more=want_more)
