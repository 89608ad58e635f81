"""Gradient norms of buckets of groups, which are ordered by their reward std."""

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
    """Gradient norms by the std of returns within a group: RAGEN v2, arXiv 2604.06268.

    Before the first step of an iteration the groups are ordered by ``std(return_B)`` over their trajectories and cut
    into buckets of near-equal numbers.  For each bucket, two norms over the policy's weights are computed as if a
    filter had dropped all other buckets: ``|g₀|``, the regulariser, with all advantages 0, and ``|g − g₀|``, the task.
    No step is taken, so measuring does not change the run.

    Args:
        buckets: number of buckets, >= 2; fewer if there are fewer groups.
        every: iterations between measurements, >= 1; the first iteration is measured.

    Raises:
        ValueError: a value is out of range; the message names the option.
    """

    buckets: int = 6
    every: int = 10

    def __post_init__(self) -> None:
        require_whole("buckets", self.buckets, 2)
        require_whole("every", self.every, 1)

    def is_due(self, iteration: int) -> bool:
        """Return whether the iteration of this number, from 0, is measured."""
        return iteration % self.every == 0


def assign_buckets(
    *, return_B: Tensor, group_B: Tensor, trajectory_B: Tensor, buckets: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Assign each group to a bucket by its `group_std`; bucket 0 has the lowest.

    Args:
        return_B: (B,), return of each row's trajectory in reward units, NaN if unknown; a group without returns is
            in no bucket.
        group_B: (B,), number of the row's group.
        trajectory_B: (B,), number of the row's trajectory, which counts once however many rows it has.
        buckets: number of buckets.

    Returns:
        The numbers of the groups (G,), the bucket of each (G,), and the mean std of each bucket (K,), in reward;
        K is at most the number of groups.
    """
    is_known_B = ~return_B.isnan() & (trajectory_B != FILLER)
    groups, std = group_std(return_B[is_known_B], group_B[is_known_B], trajectory_B[is_known_B])
    count = min(buckets, len(groups))
    bucket = torch.empty_like(groups)
    bucket[torch.argsort(std, stable=True)] = (
        torch.arange(len(groups), device=groups.device) * count // len(groups)
    )
    return groups, bucket, segment_sum(std, bucket, count) / torch.bincount(bucket)
