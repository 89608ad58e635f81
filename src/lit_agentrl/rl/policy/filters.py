"""Group selection: which groups of rollouts to train on, decided before any advantage is computed."""

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
    """The outcome of a filter.

    Attributes:
        keep_groups: int64 ids from ``group_B``, in order of first appearance.
        want_more: whether more groups should be rolled out before training.
    """

    keep_groups: Tensor
    want_more: bool


def wanted_groups(select_groups: Callable[..., Selection]) -> int | None:
    """The number of groups below which a filter asks for more: its ``target``; None: it never asks."""
    return select_groups.keywords.get("target") if isinstance(select_groups, partial) else None


def may_want_more(select_groups: Callable[..., Selection]) -> bool:
    """Whether a filter can ask for more groups: one that has a ``target`` number of them."""
    return wanted_groups(select_groups) is not None


def keeps_all(select_groups: Callable[..., Selection]) -> bool:
    """Whether a filter never drops a group: none, and `top_std` that keeps the share 1."""
    rule = select_groups.func if isinstance(select_groups, partial) else select_groups
    return rule is keep_all or (rule is top_std and constants(select_groups)["ratio"] == 1)


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
    require(0 < ratio <= 1, "ratio", ratio, "in (0, 1]; 1.0 keeps all groups")
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


def std_nucleus(
    *, return_B: Tensor, group_B: Tensor, trajectory_B: Tensor, p: float, slack: float = 0.01
) -> Selection:
    """The fewest groups, widest first, whose spreads sum to ``p * (sum of all spreads) - slack``: RAGEN.

    Groups without spread are never kept; ties go to the group that appears first.

    ``p`` is in (0, 1]; ``slack`` in points, >= 0.  With ``slack=0``, ``p=1`` keeps every group with spread.
    """
    require(0 < p <= 1, "p", p, "in (0, 1]; filter=none keeps all groups")
    require(0 <= slack < math.inf, "slack", slack, ">= 0 and finite")
    groups, std = group_std(return_B, group_B, trajectory_B)
    widest, order = torch.sort(std, descending=True, stable=True)
    # Summed from the narrow end, as what is missing: exact where p=1, however small the last spread is.
    missing = widest.flip(0).cumsum(0).flip(0)
    allowed = (1 - p) * std.sum() + slack
    # The margin is for shares such as 0.7 of ten equal groups, which floating point misses.
    needed = order[(widest > 0) & (missing > allowed + 1e-12 * (1 - p) * std.sum())]
    return Selection(keep_groups=groups[needed.sort().values], want_more=False)


def min_p(*, return_B: Tensor, group_B: Tensor, trajectory_B: Tensor, p: float) -> Selection:
    """The groups whose spread is at least ``p`` times the largest: RAGEN.  ``p`` in (0, 1].

    Where no group spreads, none is kept.
    """
    require(0 < p <= 1, "p", p, "in (0, 1]; filter=none keeps all groups")
    groups, std = group_std(return_B, group_B, trajectory_B)
    largest = torch.cat([std, std.new_zeros(1)]).max()
    return Selection(keep_groups=groups[(std > 0) & (std >= p * largest)], want_more=False)


def var_threshold(
    *, return_B: Tensor, group_B: Tensor, trajectory_B: Tensor, threshold: float = 0.01
) -> Selection:
    """The groups whose variance of returns is at least ``threshold`` (points squared, > 0)."""
    require(0 < threshold < math.inf, "threshold", threshold, "> 0 and finite; filter=none keeps all groups")
    groups, std = group_std(return_B, group_B, trajectory_B)
    return Selection(keep_groups=groups[std >= math.sqrt(threshold)], want_more=False)


def reject_uniform(*, return_B: Tensor, success_B: Tensor, group_B: Tensor) -> Selection:
    """The groups with both outcomes, solved and failed: Reinforce-Rej, arXiv 2504.11343.

    ``success_B`` (bool) decides, not the return; trajectories whose return is NaN are left out.
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
    """The first ``target`` groups with both outcomes; more are wanted while fewer survive: DAPO.

    arXiv 2503.14476, section 3.2.  Call it on all groups rolled out so far.  ``target=None`` keeps what
    survives and never wants more, as `reject_uniform`.

    Raises:
        ValueError: also if ``target`` is not a whole number >= 1.
    """
    if target is not None:
        require_whole("target", target, 1, alternative=", or null to never sample more")
    keep_groups = reject_uniform(return_B=return_B, success_B=success_B, group_B=group_B).keep_groups
    want_more = target is not None and len(keep_groups) < target
    return Selection(keep_groups=keep_groups[:target], want_more=want_more)
