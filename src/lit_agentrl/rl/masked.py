"""Masked reductions, and statistics over trajectories and groups.

Positions outside a mask may hold anything, NaN included: values are selected with ``torch.where``, never by
multiplying with a mask.  Shape suffixes: ``B`` rows, ``T`` tokens, ``S`` trajectories, ``N`` any entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_agentrl.checks import require


def check_shapes(**tensors: Tensor) -> None:
    """Check tensors against the shape suffixes of their names.

    All ``_BT`` must be (B, T) and all ``_B`` must be (B,) with the same B and T.  Tensors whose names start with
    ``is_`` must be boolean.

    Raises:
        ValueError: a tensor does not fit; the message names the first one.
    """
    reference: dict[str, tuple[str, int]] = {}
    for name, tensor in tensors.items():
        axes = name.rsplit("_", 1)[1]
        if tensor.dim() != len(axes):
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {len(axes)} axes ({axes})")
        if name.startswith("is_") and tensor.dtype != torch.bool:
            raise ValueError(f"{name} has dtype {tensor.dtype}, expected torch.bool")
        for axis, size in zip(axes, tensor.shape, strict=True):
            other, expected = reference.setdefault(axis, (name, size))
            if size != expected:
                raise ValueError(f"{name} has {axis}={size}, but {other} has {axis}={expected}")


def masked_sum(x: Tensor, mask: Tensor) -> Tensor:
    """Return the sum of ``x`` where ``mask`` is True, a scalar.

    Gradient flows through the selected entries only.
    """
    return torch.where(mask, x, torch.zeros_like(x)).sum()


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of ``x`` where ``mask`` is True, a scalar.

    It is 0 when nothing is selected.  Gradient flows through the selected entries only.
    """
    return masked_sum(x, mask) / mask.sum().clamp(min=1)


def masked_whiten(x: Tensor, mask: Tensor, *, eps: float = 1e-8) -> Tensor:
    """Standardise the selected entries: ``(x - mean) / sqrt(var + eps)``.

    Mean and variance (ddof 1) are those of the selected entries.  Entries outside the mask become 0.  With fewer than
    two selected entries the result is only centred.  Gradient flows through the selected entries only.
    """
    centred = torch.where(mask, x - masked_mean(x, mask), torch.zeros_like(x))
    count = int(mask.sum())
    if count < 2:
        return centred
    return centred / (centred.square().sum() / (count - 1) + eps).sqrt()


def compute_masked_skewness(x: Tensor, mask: Tensor) -> Tensor:
    """Compute the skewness ``m_3 / m_2^(3/2)`` of the selected entries, a float64 scalar.

    ``m_k`` is the mean of ``(x - mean)^k``.  The skewness is 0 where the entries are equal or none is selected,
    positive where few entries lie far above the mean, and negative where few lie far below.  No gradient.
    """
    chosen_N = x.detach()[mask].double()
    if not len(chosen_N) or bool((chosen_N == chosen_N[0]).all()):
        return chosen_N.new_zeros(())
    centred_N = chosen_N - chosen_N.mean()
    return centred_N.pow(3).mean() / centred_N.square().mean().pow(1.5)


def segment_sum(x_N: Tensor, segment_N: Tensor, num_segments: int) -> Tensor:
    """Return the sum of the entries of each segment, (num_segments,); gradient flows.

    Equal inputs give equal bits on each device.
    """
    sum_K = x_N.new_zeros(num_segments)
    if x_N.device.type == "cpu":
        return sum_K.index_add_(0, segment_N, x_N)
    # on a GPU, index_add and scatter_add sum in any order, and this sorts first
    return sum_K.index_put((segment_N,), x_N, accumulate=True)


def sum_columns(x_BT: Tensor, column_BT: Tensor, num_columns: int) -> Tensor:
    """Return the sums by row and column, (B, num_columns); see `segment_sum`."""
    row_B1 = torch.arange(len(x_BT), device=x_BT.device)[:, None]
    place_BT = row_B1 * num_columns + column_BT
    return segment_sum(x_BT.flatten(), place_BT.flatten(), len(x_BT) * num_columns).view(
        len(x_BT), num_columns
    )


def trajectory_index(trajectory_B: Tensor) -> tuple[Tensor, int]:
    """Number the trajectories 0..S-1; return each row's number and S."""
    ids, index_B = torch.unique(trajectory_B, return_inverse=True)
    return index_B, len(ids)


@dataclass(frozen=True)
class Trajectories:
    """The S scored trajectories among B rows; each counts once.

    Attributes:
        return_S: float64, in reward units; never NaN.
        group_S: int64, group number 0..P-1.
        num_groups: P.
        index_B: int64, the trajectory of each row; -1 where the return is NaN ("unscorable").
    """

    return_S: Tensor
    group_S: Tensor
    num_groups: int
    index_B: Tensor

    def to_rows(self, value_S: Tensor, like: Tensor) -> Tensor:
        """Expand (S,) to (B,) in the dtype of ``like``; 0 for unscorable trajectories."""
        value_B = torch.where(self.index_B >= 0, torch.cat([value_S, value_S.new_zeros(1)])[self.index_B], 0)
        return value_B.to(like.dtype)

    def sum_tokens(self, x_BT: Tensor, is_action_BT: Tensor) -> Tensor:
        """Sum over the sampled tokens of each trajectory, (B, T) -> (S,), float64; gradient flows."""
        x_B = torch.where(is_action_BT, x_BT, torch.zeros_like(x_BT)).double().sum(1)
        is_scored_B = self.index_B >= 0
        return segment_sum(x_B[is_scored_B], self.index_B[is_scored_B], len(self.return_S))


def find_trajectories(*, return_B: Tensor, group_B: Tensor, trajectory_B: Tensor) -> Trajectories:
    """Find the trajectories among the rows; those with a NaN return are dropped.

    Rows with the same ``(group_B, trajectory_B)`` belong to one trajectory.

    Raises:
        ValueError: two rows of one trajectory have different returns.
    """
    check_shapes(return_B=return_B, group_B=group_B, trajectory_B=trajectory_B)
    is_scored_B = ~return_B.isnan()
    keys_B2 = torch.stack([group_B, trajectory_B], dim=1)[is_scored_B]
    keys_S2, index_N = torch.unique(keys_B2, dim=0, return_inverse=True)
    return_N = return_B[is_scored_B].double()
    return_S = return_N.new_zeros(len(keys_S2))
    return_S[index_N] = return_N
    if not torch.equal(return_S[index_N], return_N):
        raise ValueError("return_B differs between rows of one trajectory")
    groups, group_S = torch.unique(keys_S2[:, 0], return_inverse=True)
    index_B = torch.full_like(trajectory_B, -1, dtype=torch.int64)
    index_B[is_scored_B] = index_N
    return Trajectories(return_S=return_S, group_S=group_S, num_groups=len(groups), index_B=index_B)


@dataclass(frozen=True)
class Moments:
    """Distance of each entry from its group mean, the group's std and its size."""

    centred_N: Tensor
    std_N: Tensor
    count_N: Tensor


def group_moments(value_N: Tensor, group_N: Tensor, num_groups: int, *, ddof: int = 1) -> Moments:
    """Return mean-centred values, standard deviations and sizes per group, each (N,).

    Means are computed over distances from the group minimum, so that a group of equal values is centred to exactly 0
    and has a std of exactly 0.  A group with ``ddof`` entries or fewer has a std of 0.
    """
    require(ddof in (0, 1), "ddof", ddof, "0 or 1")
    count = segment_sum(torch.ones_like(value_N), group_N, num_groups)
    minimum = value_N.new_zeros(num_groups).scatter_reduce_(0, group_N, value_N, "amin", include_self=False)
    above_N = value_N - minimum[group_N]
    mean = segment_sum(above_N, group_N, num_groups) / count.clamp(min=1)
    centred_N = above_N - mean[group_N]
    std = (segment_sum(centred_N.square(), group_N, num_groups) / (count - ddof).clamp(min=1)).sqrt()
    return Moments(centred_N=centred_N, std_N=std[group_N], count_N=count[group_N])


def require_whole_rows(*, trajectory_B: Tensor, is_action_BT: Tensor, option: str, alternative: str) -> None:
    """Refuse trajectories whose sampled tokens lie in several rows.

    Rows without a sampled token are padding and are ignored.

    Raises:
        ValueError: there are such trajectories; the message names ``option`` and the ``alternative`` that works on
            any rows.
    """
    ids = trajectory_B[is_action_BT.any(1)]
    if len(torch.unique(ids)) < len(ids):
        raise ValueError(
            f"{option} needs each trajectory in one row (context=full); {alternative} works on any rows"
        )
