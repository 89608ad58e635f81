"""What comparisons are between: units of sampled tokens, such as whole trajectories or single turns.

A token that was not sampled belongs to no unit, so that no sum over a unit can see it: neither prompts nor what an
environment answers are ever learnt from.  Shape suffixes: ``A`` sampled tokens in order, ``N`` units, ``P`` pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lit_agentrl.rl.masked import check_shapes, segment_sum


@dataclass(frozen=True)
class Units:
    """Units, and the sampled tokens of each in the order in which they were sampled.

    Attributes:
        place_A: of each token in the flattened (B, T), by unit, then by the row's first turn, then along the row.
        unit_A: int64, its unit, 0..N-1.
        turn_A: its turn, counted from 0 within the unit.
        value_N: points by which units are ranked, float64; the return of the trajectory.
        set_N: units with the same number may be compared, 0..; such as those of a group.
        is_pooled: values are of other units of the group too, so that a group is kept whole or not at all.
    """

    place_A: Tensor
    unit_A: Tensor
    turn_A: Tensor
    value_N: Tensor
    set_N: Tensor
    is_pooled: bool = False

    def __len__(self) -> int:
        return len(self.value_N)

    def read(self, x_BT: Tensor) -> Tensor:
        """(B, T) -> (A,), float64; gradient flows."""
        return x_BT.flatten()[self.place_A].double()

    def sum(self, x_A: Tensor) -> Tensor:
        """(A,) -> (N,); gradient flows."""
        return segment_sum(x_A, self.unit_A, len(self))

    @cached_property
    def length_N(self) -> Tensor:
        """Sampled tokens of each unit, float64; at least 1."""
        return self.sum(torch.ones_like(self.unit_A, dtype=torch.float64))

    @cached_property
    def turns_N(self) -> Tensor:
        """Turns of each unit, int64."""
        return self.turn_A.new_zeros(len(self)).scatter_reduce_(0, self.unit_A, self.turn_A + 1, "amax")

    @cached_property
    def start_N(self) -> Tensor:
        """Where a unit's tokens begin among all, int64."""
        length_N = self.length_N.long()
        return length_N.cumsum(0) - length_N

    @cached_property
    def rank_A(self) -> Tensor:
        """Number of a token within its unit, from 0, int64."""
        return torch.arange(len(self.unit_A), device=self.unit_A.device) - self.start_N[self.unit_A]


def trajectory_units(
    *,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    is_action_BT: Tensor,
    turn_BT: Tensor,
    first_turn_B: Tensor,
) -> Units:
    """Each scored trajectory that sampled a token is a unit; those of a group may be compared."""
    check_shapes(is_action_BT=is_action_BT, turn_BT=turn_BT, return_B=return_B, group_B=group_B)
    return units_of(
        tuple(x_B[:, None].expand_as(turn_BT) for x_B in (group_B, trajectory_B)),
        (group_B[:, None].expand_as(turn_BT),),
        return_B=return_B, is_action_BT=is_action_BT, turn_BT=turn_BT, first_turn_B=first_turn_B,
    )  # fmt: skip


def turn_units(
    *,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    is_action_BT: Tensor,
    turn_BT: Tensor,
    first_turn_B: Tensor,
    state_key_BK: Tensor,
) -> Units:
    """Each turn of a scored trajectory is a unit; those of a group that begin in the same state may be compared.

    Column k of ``state_key_BK`` is the state before the k-th turn of the row.

    Raises:
        ValueError: a turn has no column in ``state_key_BK``.
    """
    check_shapes(is_action_BT=is_action_BT, turn_BT=turn_BT, return_B=return_B, group_B=group_B)
    first_B = torch.where(turn_BT >= 0, turn_BT, turn_BT.new_tensor(2**30)).amin(1, keepdim=True)
    column_BT = torch.where(is_action_BT, turn_BT - first_B, 0).long()
    if bool((column_BT >= state_key_BK.shape[1]).any()):
        raise ValueError(f"state_key_BK has K={state_key_BK.shape[1]}, and a row has more turns")
    state_BT = state_key_BK.gather(1, column_BT)
    return units_of(
        (*(x_B[:, None].expand_as(turn_BT) for x_B in (group_B, trajectory_B)), turn_BT),
        (group_B[:, None].expand_as(turn_BT), state_BT),
        return_B=return_B, is_action_BT=is_action_BT, turn_BT=turn_BT, first_turn_B=first_turn_B,
    )  # fmt: skip


def units_of(
    names: tuple[Tensor, ...],
    sets: tuple[Tensor, ...],
    *,
    return_B: Tensor,
    is_action_BT: Tensor,
    turn_BT: Tensor,
    first_turn_B: Tensor,
) -> Units:
    """Units of the sampled tokens that have the same numbers.

    Args:
        names: (B, T) each; tokens that agree in all of them are a unit.
        sets: (B, T) each; units that agree in all of them may be compared.
        return_B: points; rows where it is NaN belong to no unit.
        is_action_BT: sampled tokens.
        turn_BT: of the trajectory.
        first_turn_B: orders the rows of a trajectory.
    """
    place_A = (is_action_BT & ~return_B.isnan()[:, None]).flatten().nonzero().squeeze(1)
    row_A = place_A // max(is_action_BT.shape[1], 1)
    unit_A = _numbered(names, place_A)[0]
    order = torch.argsort(first_turn_B[row_A], stable=True)
    order = order[torch.argsort(unit_A[order], stable=True)]
    place_A, row_A, unit_A = place_A[order], row_A[order], unit_A[order]
    set_A, _ = _numbered(sets, place_A)
    count = int(unit_A[-1]) + 1 if len(unit_A) else 0
    turn_A = turn_BT.flatten()[place_A].long()
    first_N = turn_A.new_full((count,), 2**30).scatter_reduce_(0, unit_A, turn_A, "amin")
    value_N = return_B.new_zeros(count, dtype=torch.float64)
    value_N[unit_A] = return_B.detach()[row_A].double()
    set_N = unit_A.new_zeros(count)
    set_N[unit_A] = set_A
    return Units(
        place_A=place_A, unit_A=unit_A, turn_A=turn_A - first_N[unit_A], value_N=value_N, set_N=set_N
    )


def _numbered(names: tuple[Tensor, ...], place_A: Tensor) -> tuple[Tensor, int]:
    """Tokens that agree in all names get the same number, 0.. in the order of the names."""
    keys_AX = torch.stack([name.flatten()[place_A].long() for name in names], dim=1)
    ids, number_A = torch.unique(keys_AX, dim=0, return_inverse=True)
    return number_A, len(ids)
