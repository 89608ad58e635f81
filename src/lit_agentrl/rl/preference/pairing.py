"""Pairing rules: select pairs of units of a group, with the better one as chosen.

Every rule takes columns and returns `Pairs`.  The two sides of a pair have different replies and different returns; NaN
returns and trajectories without a sampled token are left out.  Rows without a pair can be dropped: from the remaining
rows a rule selects the same pairs.  A recorded pair is a group of two, which every rule selects.  Nothing carries
gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_agentrl.checks import require, require_whole
from lit_agentrl.rl.preference.units import Units, trajectory_units, turn_units


@dataclass(frozen=True)
class Pairs:
    """P pairs of units.

    Attributes:
        units: the units that are compared.
        chosen_P, rejected_P: int64, indices of units; the value of the chosen one is higher, or equal if ties are
            allowed.
    """

    units: Units
    chosen_P: Tensor
    rejected_P: Tensor

    @property
    def gap_P(self) -> Tensor:
        """Difference of the two values, float64, in reward units, >= 0."""
        return self.units.value_N[self.chosen_P] - self.units.value_N[self.rejected_P]

    @property
    def set_P(self) -> Tensor:
        """Set of comparable units of each pair."""
        return self.units.set_N[self.chosen_P]

    def best(self) -> Tensor:
        """Return the chosen unit with the highest value of each set, int64.

        Ties go to the first unit.
        """
        first = torch.argsort(self.chosen_P, stable=True)
        first = first[torch.argsort(-self.units.value_N[self.chosen_P[first]], stable=True)]
        first = first[torch.argsort(self.set_P[first], stable=True)]
        set_P = self.set_P[first]
        is_first = torch.ones_like(set_P, dtype=torch.bool)
        is_first[1:] = set_P[1:] != set_P[:-1]
        return self.chosen_P[first][is_first]


def all_pairs(
    *,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    is_action_BT: Tensor,
    turn_BT: Tensor,
    first_turn_B: Tensor,
    tokens_BT: Tensor,
    min_gap: float = 0.0,
    most: int | None = None,
    ties: bool = False,
) -> Pairs:
    """All pairs of trajectories of a group, or the ``most`` with the widest gaps.

    Args:
        return_B: in reward units; the trajectory with the higher return is chosen.
        group_B: trajectories of a group are compared.
        trajectory_B: rows of one trajectory share a number.
        is_action_BT: sampled tokens.
        turn_BT: turn number within the trajectory.
        first_turn_B: orders the rows of a trajectory.
        tokens_BT: token ids; equal replies are not a pair.
        min_gap: minimum difference of returns, in reward units; 0 accepts any difference.
        most: maximum number of pairs per group; None for all.
        ties: include pairs of equal returns, for losses that learn from a gap of 0, such as REBEL.
    """
    units = trajectory_units(
        return_B=return_B, group_B=group_B, trajectory_B=trajectory_B, is_action_BT=is_action_BT,
        turn_BT=turn_BT, first_turn_B=first_turn_B,
    )  # fmt: skip
    if most is not None:
        require_whole("most", most, 1, alternative=", or null")
    require(
        not (ties and min_gap > 0),
        "ties",
        ties,
        f"false, since min_gap={min_gap} excludes ties; or min_gap=0",
    )
    pairs = _find_candidates(units, tokens_BT, min_gap=min_gap, ties=ties)
    return pairs if most is None else _select_first(pairs, (-pairs.gap_P,), most)


def best_worst(
    *,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    is_action_BT: Tensor,
    turn_BT: Tensor,
    first_turn_B: Tensor,
    tokens_BT: Tensor,
    min_gap: float = 0.0,
) -> Pairs:
    """The best trajectory of each group against the worst.

    Arguments are as for `all_pairs`.
    """
    return all_pairs(
        return_B=return_B, group_B=group_B, trajectory_B=trajectory_B, is_action_BT=is_action_BT,
        turn_BT=turn_BT, first_turn_B=first_turn_B, tokens_BT=tokens_BT, min_gap=min_gap, most=1,
    )  # fmt: skip


def best_rest(
    *,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    is_action_BT: Tensor,
    turn_BT: Tensor,
    first_turn_B: Tensor,
    tokens_BT: Tensor,
    min_gap: float = 0.0,
) -> Pairs:
    """The best trajectory of each group against all worse ones.

    Arguments are as for `all_pairs`.
    """
    pairs = all_pairs(
        return_B=return_B, group_B=group_B, trajectory_B=trajectory_B, is_action_BT=is_action_BT,
        turn_BT=turn_BT, first_turn_B=first_turn_B, tokens_BT=tokens_BT, min_gap=min_gap,
    )  # fmt: skip
    return select_pairs(pairs, torch.isin(pairs.chosen_P, pairs.best()))


def equal_length(
    *,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    is_action_BT: Tensor,
    turn_BT: Tensor,
    first_turn_B: Tensor,
    tokens_BT: Tensor,
    min_gap: float = 0.0,
    max_difference: int | None = None,
) -> Pairs:
    """The pair of each group with the smallest difference of length.

    Ties go to the widest gap of returns.  In most pairs of agent episodes the shorter side wins; this rule keeps the
    policy from learning length alone.  The lengths may differ by at most ``max_difference`` sampled tokens (None for
    any number); the other arguments are as for `all_pairs`.
    """
    if max_difference is not None:
        require_whole("max_difference", max_difference, 0, alternative=", or null")
    pairs = all_pairs(
        return_B=return_B, group_B=group_B, trajectory_B=trajectory_B, is_action_BT=is_action_BT,
        turn_BT=turn_BT, first_turn_B=first_turn_B, tokens_BT=tokens_BT, min_gap=min_gap,
    )  # fmt: skip
    length_N = pairs.units.length_N
    pairs = _select_first(
        pairs, (-pairs.gap_P, (length_N[pairs.chosen_P] - length_N[pairs.rejected_P]).abs()), 1
    )
    difference_P = (length_N[pairs.chosen_P] - length_N[pairs.rejected_P]).abs()
    return pairs if max_difference is None else select_pairs(pairs, difference_P <= max_difference)


def equal_state(
    *,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    is_action_BT: Tensor,
    turn_BT: Tensor,
    first_turn_B: Tensor,
    tokens_BT: Tensor,
    state_key_BK: Tensor,
    min_gap: float = 0.0,
    most: int | None = 1,
) -> Pairs:
    """Pairs of turns that begin in the same state: Step-DPO, arXiv 2406.18629.

    The turns are of one group and of trajectories with different returns.  Step-DPO takes the state before the first
    wrong step; here state keys are compared.  Only the tokens of the two turns count.  Column k of ``state_key_BK`` is
    the state before the k-th turn of the row; at most ``most`` pairs of each state are selected, the widest gaps first
    (None for all); the other arguments are as for `all_pairs`.
    """
    units = turn_units(
        return_B=return_B, group_B=group_B, trajectory_B=trajectory_B, is_action_BT=is_action_BT,
        turn_BT=turn_BT, first_turn_B=first_turn_B, state_key_BK=state_key_BK,
    )  # fmt: skip
    return widest_pairs(units, tokens_BT, min_gap=min_gap, most=most)


def widest_pairs(units: Units, tokens_BT: Tensor, *, min_gap: float, most: int | None) -> Pairs:
    """The ``most`` pairs with the widest gaps of each set of units; None for all."""
    if most is not None:
        require_whole("most", most, 1, alternative=", or null")
    pairs = _find_candidates(units, tokens_BT, min_gap=min_gap)
    return pairs if most is None else _select_first(pairs, (-pairs.gap_P,), most)


def _find_candidates(units: Units, tokens_BT: Tensor, *, min_gap: float, ties: bool = False) -> Pairs:
    """Find all pairs of units of each set.

    They are ordered by set, then by the value of the chosen unit, then by that of the rejected one.
    """
    require(0 <= min_gap < math.inf, "min_gap", min_gap, "finite and >= 0")
    order_N = torch.argsort(-units.value_N, stable=True)
    order_N = order_N[torch.argsort(units.set_N[order_N], stable=True)]
    size = torch.bincount(units.set_N) if len(units) else units.set_N
    start = size.cumsum(0) - size
    largest = int(size.max()) if len(size) else 0
    place_GM = start[:, None] + torch.arange(largest, device=size.device)
    is_there_GM = torch.arange(largest, device=size.device) < size[:, None]
    unit_GM = order_N[place_GM.clamp(max=max(len(units) - 1, 0))] if len(units) else place_GM
    value_GM, text_GM = units.value_N[unit_GM], text_keys(units, tokens_BT)[unit_GM]
    gap_GMM = value_GM[:, :, None] - value_GM[:, None, :]
    is_wide_GMM = (gap_GMM >= min_gap) if min_gap > 0 or ties else (gap_GMM > 0)
    is_ordered_MM = torch.ones(largest, largest, dtype=torch.bool, device=size.device).triu(1)
    is_pair_GMM = is_wide_GMM & is_ordered_MM & is_there_GM[:, :, None] & is_there_GM[:, None, :]
    is_pair_GMM &= text_GM[:, :, None] != text_GM[:, None, :]
    group, first, second = is_pair_GMM.nonzero(as_tuple=True)
    return Pairs(units, unit_GM[group, first], unit_GM[group, second])


def text_keys(units: Units, tokens_BT: Tensor) -> Tensor:
    """Return a hash of the sampled tokens of each unit, int64 (N,)."""
    power = torch.full((int(units.length_N.max()) if len(units) else 0,), 6364136223846793005)
    power = power.to(tokens_BT.device).cumprod(0)  # integer overflow is intended
    word_A = (tokens_BT.flatten()[units.place_A].long() + 1) * power[units.rank_A]
    return units.sum(word_A)


def _select_first(pairs: Pairs, keys: tuple[Tensor, ...], most: int) -> Pairs:
    """Select the first ``most`` pairs of each set after sorting by ``keys``.

    Pairs are sorted by the last key; the keys before it break ties.
    """
    order = torch.arange(len(pairs.chosen_P), device=pairs.chosen_P.device)
    for key_P in (*keys, pairs.set_P):
        order = order[torch.argsort(key_P[order], stable=True)]
    set_P = pairs.set_P[order]
    _, number_P, count = torch.unique_consecutive(set_P, return_inverse=True, return_counts=True)
    rank_P = torch.arange(len(order), device=order.device) - (count.cumsum(0) - count)[number_P]
    return select_pairs(pairs, order[rank_P < most])


def select_pairs(pairs: Pairs, which: Tensor) -> Pairs:
    """Return some of the pairs, by mask or index."""
    return Pairs(pairs.units, pairs.chosen_P[which], pairs.rejected_P[which])
