"""What groups of little and of much spread teach: the gradient of each bucket of groups, taken alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_agentrl.batch import FILLER
from lit_agentrl.checks import require_whole


@dataclass(frozen=True, kw_only=True)
class SpreadBuckets:
    """Gradient norms by the spread of returns within a group: RAGEN v2, arXiv 2604.06268.

    Before the first step of an iteration the groups are ordered by ``std(return_B)`` over their trajectories and cut
    into buckets of near-equal numbers.  Of each bucket alone, as if a filter had dropped all others, two norms over
    the policy's weights are taken: ``|g₀|``, the regulariser, with all advantages 0, and ``|g − g₀|``, the task.
    Nothing is stepped: a run that measures is the same run.

    Args:
        buckets: how many, >= 2; fewer where there are fewer groups.
        every: iterations from one measurement to the next, >= 1; the first iteration is measured.

    Raises:
        ValueError: a value out of range, naming the option.
    """

    buckets: int = 6
    every: int = 10

    def __post_init__(self) -> None:
        require_whole("buckets", self.buckets, 2)
        require_whole("every", self.every, 1)

    def is_due(self, iteration: int) -> bool:
        """Whether the iteration of this number, the first being 0, is measured."""
        return iteration % self.every == 0


def by_spread(
    *, return_B: Tensor, group_B: Tensor, trajectory_B: Tensor, buckets: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Which bucket each group is in, 0 being that of the least spread.

    Args:
        return_B: points of each row's trajectory; rows whose return is NaN, or which are fillers, are in no bucket.
        group_B: number of its group.
        trajectory_B: of its trajectory, which counts once.
        buckets: how many.

    Returns:
        The numbers of the groups (G,), the bucket of each (G,), and the mean spread of each bucket (K,), population
        standard deviations in points; K is at most the number of groups.
    """
    rows = torch.nonzero(~return_B.isnan() & (trajectory_B != FILLER)).squeeze(1)
    _, index = torch.unique(trajectory_B[rows], return_inverse=True)
    first = torch.full((int(index.max()) + 1 if len(index) else 0,), len(return_B), device=rows.device)
    rows = rows[first.scatter_reduce(0, index, torch.arange(len(index), device=rows.device), "amin")]
    groups, index = torch.unique(group_B[rows], return_inverse=True)
    points = return_B[rows].double()
    count = torch.bincount(index, minlength=len(groups))
    mean = (
        torch.zeros(len(groups), dtype=torch.float64, device=rows.device).index_add(0, index, points) / count
    )
    square = torch.zeros_like(mean).index_add(0, index, (points - mean[index]) ** 2)
    spread = (square / count).sqrt()
    number = min(buckets, len(groups))
    place = torch.empty_like(groups)
    place[torch.argsort(spread, stable=True)] = torch.arange(len(groups), device=groups.device)
    bucket = place * number // max(len(groups), 1)
    of_bucket = torch.zeros(number, dtype=torch.float64, device=rows.device).index_add(0, bucket, spread)
    return groups, bucket, of_bucket / torch.bincount(bucket, minlength=number)
