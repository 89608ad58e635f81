"""What groups of little and of much spread teach: the gradient of each bucket of groups, taken alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_agentrl.batch import FILLER
from lit_agentrl.checks import require_whole
from lit_agentrl.rl.masked import segment_sum
from lit_agentrl.rl.policy.filters import group_std


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
    """Which bucket each group is in, 0 being that of the least spread, as of `group_std`.

    Args:
        return_B: points of each row's trajectory; a group without any is in no bucket.
        group_B: number of its group.
        trajectory_B: of its trajectory, which counts once.
        buckets: how many.

    Returns:
        The numbers of the groups (G,), the bucket of each (G,), and the mean spread of each bucket (K,), points; K is
        at most the number of groups.
    """
    is_told_B = ~return_B.isnan() & (trajectory_B != FILLER)
    groups, spread = group_std(return_B[is_told_B], group_B[is_told_B], trajectory_B[is_told_B])
    number = min(buckets, len(groups))
    bucket = torch.empty_like(groups)
    bucket[torch.argsort(spread, stable=True)] = (
        torch.arange(len(groups), device=groups.device) * number // len(groups)
    )
    return groups, bucket, segment_sum(spread, bucket, number) / torch.bincount(bucket)
