"""Row selection: which rows to train on, decided after their advantages are known.

Every function returns ``keep_B``, bool of shape (B,), True for rows to train on.  The rows of one trajectory are kept
or dropped together; rules on advantages use the largest ``|advantage|`` of its sampled tokens.  Advantages do not
change: their statistics come from all rows.  Shapes: ``advantage_BT``, ``is_action_BT`` (B, T); ``group_B``,
``trajectory_B``, ``is_truncated_B`` (B,).  No result carries gradient.  All functions raise ValueError when shapes
disagree or an advantage at a sampled token is NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_agentrl.checks import require
from lit_agentrl.rl.masked import check_shapes, trajectory_index


def keep_all(*, trajectory_B: Tensor) -> Tensor:
    """Keep every row."""
    return torch.ones_like(trajectory_B, dtype=torch.bool)


def abs_advantage(
    *, advantage_BT: Tensor, is_action_BT: Tensor, trajectory_B: Tensor, threshold: float = 0.01
) -> Tensor:
    """Keep trajectories with ``max_t |A_t| >= threshold``: LOOP, arXiv 2502.01600.

    ``threshold`` is in the unit of the advantage (reward units or standard deviations), > 0.
    """
    require(0 < threshold < math.inf, "threshold", threshold, "> 0 and finite; algo/rows=none keeps all")
    index_B, largest_S = _find_largest(advantage_BT, is_action_BT, trajectory_B)
    return (largest_S >= threshold)[index_B]


def mask_truncated(*, is_truncated_B: Tensor, trajectory_B: Tensor) -> Tensor:
    """Drop truncated trajectories: DAPO's overlong filtering, arXiv 2503.14476, section 3.4.

    Their returns still count in the statistics of their group.

    Args:
        is_truncated_B: True if a limit cut off a reply, or left no room for the next message.
        trajectory_B: rows with the same number are kept or dropped together.
    """
    check_shapes(is_truncated_B=is_truncated_B, trajectory_B=trajectory_B)
    index_B, num_trajectories = trajectory_index(trajectory_B)
    is_cut_S = index_B.new_zeros(num_trajectories).scatter_reduce_(
        0, index_B, is_truncated_B.to(index_B.dtype), "amax"
    )
    return (is_cut_S == 0)[index_B]


@dataclass(frozen=True, kw_only=True)
class CPPO:
    """Pruning of the trajectories with the smallest advantages: CPPO, arXiv 2503.22342.

    Of N trajectories of a group, ``max(1, floor(N (1 - prune)))`` with the largest ``max_t |A_t|`` stay; ties go to the
    trajectory whose first row comes first.

    Attributes:
        prune: share of each group to drop, in (0, 1).
        refill: whether to roll out ``1 / (1 - prune)`` times as many prompts, so that the update has as many
            trajectories as without pruning: the paper's dynamic completion allocation.
    """

    prune: float = 0.5
    refill: bool = True

    def __post_init__(self) -> None:
        """Check the constant."""
        require(0 < self.prune < 1, "prune", self.prune, "in (0, 1); algo/rows=none keeps all")

    @property
    def prompt_factor(self) -> float:
        """Number of prompts to roll out per prompt of the update."""
        return 1 / (1 - self.prune) if self.refill else 1.0

    def __call__(
        self, *, advantage_BT: Tensor, is_action_BT: Tensor, group_B: Tensor, trajectory_B: Tensor
    ) -> Tensor:
        """Return ``keep_B``.

        Raises:
            ValueError: also if the rows of one trajectory are in different groups.
        """
        return _select_largest(advantage_BT, is_action_BT, group_B, trajectory_B, prune=self.prune)


def _select_largest(
    advantage_BT: Tensor, is_action_BT: Tensor, group_B: Tensor, trajectory_B: Tensor, *, prune: float
) -> Tensor:
    index_B, largest_S = _find_largest(advantage_BT, is_action_BT, trajectory_B)
    check_shapes(group_B=group_B, trajectory_B=trajectory_B)
    groups, group_index_B = torch.unique(group_B, return_inverse=True)
    group_S = index_B.new_empty(len(largest_S))
    group_S[index_B] = group_index_B
    if not torch.equal(group_S[index_B], group_index_B):
        raise ValueError("group_B differs between rows of one trajectory")
    row_B = torch.arange(len(index_B), device=index_B.device)
    first_S = torch.full_like(group_S, len(index_B)).scatter_reduce_(0, index_B, row_B, "amin")
    order_S = first_S.argsort()
    for key_S in (-largest_S, group_S):  # stable, so the last key counts most
        order_S = order_S[key_S[order_S].argsort(stable=True)]
    size_G = torch.bincount(group_S, minlength=len(groups))
    start_G = size_G.cumsum(0) - size_G
    rank_S = torch.empty_like(order_S)
    rank_S[order_S] = torch.arange(len(order_S), device=order_S.device) - start_G[group_S[order_S]]
    # 10 * (1 - 0.9) is 0.999... in floating point
    num_kept_G = (size_G * (1 - prune) + 1e-9).long().clamp(min=1)
    return (rank_S < num_kept_G[group_S])[index_B]


def _find_largest(advantage_BT: Tensor, is_action_BT: Tensor, trajectory_B: Tensor) -> tuple[Tensor, Tensor]:
    """Find the largest |advantage| of each trajectory.

    Returns:
        The trajectory number of each row (B,), and the largest |advantage| (S,), 0 without sampled tokens.
    """
    check_shapes(advantage_BT=advantage_BT, is_action_BT=is_action_BT, trajectory_B=trajectory_B)
    magnitude_BT = torch.where(is_action_BT, advantage_BT.detach().abs(), torch.zeros_like(advantage_BT))
    if bool(magnitude_BT.isnan().any()):
        raise ValueError("advantage_BT is NaN at a sampled token")
    index_B, num_trajectories = trajectory_index(trajectory_B)
    largest_B = torch.nn.functional.pad(magnitude_BT, (0, 1)).amax(1)  # the extra column covers T = 0
    return index_B, magnitude_BT.new_zeros(num_trajectories).scatter_reduce_(0, index_B, largest_B, "amax")
