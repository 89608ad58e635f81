"""Units of sampled tokens that can be compared, such as trajectories or single turns.

A token that was not sampled belongs to no unit, so sums over units never include prompts or observations.  Shape
suffixes: ``A`` sampled tokens in order, ``N`` units, ``P`` pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lit_agentrl.rl.masked import check_shapes, segment_sum


@dataclass(frozen=True)
class Units:
    """Units and the sampled tokens of each unit, in sampling order.

    Attributes:
        place_A: int64, index of each token in the flattened (B, T), ordered by unit, first turn of its row, and
            position within the row.
        unit_A: int64, unit of each token, 0..N-1.
        turn_A: turn of each token, counted from 0 within the unit.
        value_N: float64, return of the unit's trajectory, by which units are ranked; in reward units.
        set_N: int64, units with the same number can be compared, such as those of a group.
        visits_N: float64, number of the group's episodes that contain the unit; None if each unit lies in one
            episode.
        is_pooled: values depend on other units of the group, so a group must be kept or dropped as a whole.
    """

    place_A: Tensor
    unit_A: Tensor
    turn_A: Tensor
    value_N: Tensor
    set_N: Tensor
    visits_N: Tensor | None = None
    is_pooled: bool = False

    def __len__(self) -> int:
        return len(self.value_N)

    def read(self, x_BT: Tensor) -> Tensor:
        """Select the tokens of the units, (B, T) -> (A,), float64; gradient flows."""
        return x_BT.flatten()[self.place_A].double()

    def sum(self, x_A: Tensor) -> Tensor:
        """Sum over the tokens of each unit, (A,) -> (N,); gradient flows."""
        return segment_sum(x_A, self.unit_A, len(self))

    @cached_property
    def length_N(self) -> Tensor:
        """Number of sampled tokens of each unit, float64; at least 1."""
        return self.sum(torch.ones_like(self.unit_A, dtype=torch.float64))

    @cached_property
    def turns_N(self) -> Tensor:
        """Number of turns of each unit, int64."""
        return self.turn_A.new_zeros(len(self)).scatter_reduce_(0, self.unit_A, self.turn_A + 1, "amax")

    @cached_property
    def start_N(self) -> Tensor:
        """Index of the first token of each unit in (A,), int64."""
        length_N = self.length_N.long()
        return length_N.cumsum(0) - length_N

    @cached_property
    def rank_A(self) -> Tensor:
        """Index of each token within its unit, from 0, int64."""
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
    """Return one unit per scored trajectory with a sampled token.

    Trajectories of a group can be compared.  The arguments are those of `units_of`; ``group_B`` and ``trajectory_B``
    are (B,), the numbers of each row's group and trajectory.

    Raises:
        ValueError: shapes disagree.
    """
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
    """Return one unit per turn of scored trajectories.

    Turns of a group that begin in the same state can be compared.  Column k of ``state_key_BK`` is the state before the
    k-th turn of the row.  The other arguments are those of `trajectory_units`.

    Raises:
        ValueError: a turn has no column in ``state_key_BK``, or shapes disagree.
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
    unit_keys: tuple[Tensor, ...],
    set_keys: tuple[Tensor, ...],
    *,
    return_B: Tensor,
    is_action_BT: Tensor,
    turn_BT: Tensor,
    first_turn_B: Tensor,
) -> Units:
    """Group the sampled tokens into units.

    Args:
        unit_keys: (B, T) each; tokens with equal numbers in all of these belong to one unit.
        set_keys: (B, T) each; units with equal numbers in all of these can be compared.
        return_B: (B,), in reward units; rows where it is NaN belong to no unit.
        is_action_BT: (B, T), True at sampled tokens.
        turn_BT: (B, T), turn number within the trajectory.
        first_turn_B: (B,), number of the row's first turn, which orders the rows of a trajectory.
    """
    place_A = (is_action_BT & ~return_B.isnan()[:, None]).flatten().nonzero().squeeze(1)
    row_A = place_A // max(is_action_BT.shape[1], 1)
    unit_A = _number_tokens(unit_keys, place_A)
    order_A = torch.argsort(first_turn_B[row_A], stable=True)
    order_A = order_A[torch.argsort(unit_A[order_A], stable=True)]
    place_A, row_A, unit_A = place_A[order_A], row_A[order_A], unit_A[order_A]
    set_A = _number_tokens(set_keys, place_A)
    num_units = int(unit_A[-1]) + 1 if len(unit_A) else 0
    turn_A = turn_BT.flatten()[place_A].long()
    first_N = turn_A.new_full((num_units,), 2**30).scatter_reduce_(0, unit_A, turn_A, "amin")
    value_N = return_B.new_zeros(num_units, dtype=torch.float64)
    value_N[unit_A] = return_B.detach()[row_A].double()
    set_N = unit_A.new_zeros(num_units)
    set_N[unit_A] = set_A
    return Units(
        place_A=place_A, unit_A=unit_A, turn_A=turn_A - first_N[unit_A], value_N=value_N, set_N=set_N
    )


def _number_tokens(keys: tuple[Tensor, ...], place_A: Tensor) -> Tensor:
    """Number the tokens by their combination of keys, from 0 in sorted order."""
    keys_AX = torch.stack([key_BT.flatten()[place_A].long() for key_BT in keys], dim=1)
    number_A: Tensor = torch.unique(keys_AX, dim=0, return_inverse=True)[1]
    return number_A
