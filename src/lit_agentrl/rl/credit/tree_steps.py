"""Replies and states valued by all episodes of a group that hold them: step pairs, and what a critic learns of them.

A group is read as a tree.  A state is the game's before a turn, by ``state_key_BK``, group and number of the turn; a
reply is a state and the tokens that were sampled there.  So episodes that took turns over from each other share them,
and those that met by chance do, too.  Points to go are those of a turn and of all later ones.  Nothing carries
gradient but ``value_BT`` of `Ranking`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lit_agentrl.checks import require
from lit_agentrl.rl.masked import check_shapes, segment_sum
from lit_agentrl.rl.preference.pairing import Pairs, text_keys, widest_pairs
from lit_agentrl.rl.preference.units import Units, turn_units


@dataclass(frozen=True)
class Targets:
    """What a critic learns: points at the tokens of the mask, both (B, T)."""

    return_BT: Tensor
    is_value_target_BT: Tensor


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """``coef * max(0, width - (Q(chosen) - Q(rejected)))`` of each pair, on the values of a critic.

    Q is the critic's value before the last token of a reply, when the reply is written but for its end.  A pair with a
    reply of one token has none and costs nothing.  A ``width`` above the gap of a pair pulls values off their targets.

    Attributes:
        coef: weight beside the squared errors, > 0.
        width: by how much the chosen reply must be worth more, points, >= 0.
    """

    coef: float
    width: float

    def __post_init__(self) -> None:
        """Checks the constants."""
        require(
            0 < self.coef < math.inf,
            "coef",
            self.coef,
            "finite and > 0; algo/ranking=none switches the term off",
        )
        require(0 <= self.width < math.inf, "width", self.width, "finite and >= 0")

    def apart(self, pairs: Pairs, value_BT: Tensor) -> Tensor:
        """``Q(chosen) - Q(rejected)`` of the pairs that have both (points, float64); gradient through ``value_BT``."""
        units, q_N = pairs.units, value_BT.flatten()[_last(pairs.units)].double()
        is_ranked_P = (units.length_N[pairs.chosen_P] > 1) & (units.length_N[pairs.rejected_P] > 1)
        return (q_N[pairs.chosen_P] - q_N[pairs.rejected_P])[is_ranked_P]

    def losses(self, apart_P: Tensor) -> Tensor:
        """Of each of these pairs, without the weight."""
        return (self.width - apart_P).clamp(min=0)


def tree(
    *,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    is_action_BT: Tensor,
    turn_BT: Tensor,
    first_turn_B: Tensor,
    tokens_BT: Tensor,
    state_key_BK: Tensor,
    reward_BT: Tensor,
) -> Targets:
    """``V(s)`` at the first token of a turn, ``Q(s, a)`` at its last: means of points to go over episodes that hold it.

    The values of a tree search without a discount, as SVPO has them, arXiv 2406.10858; V is what `mcts` asks a critic
    for.  A turn of one token has V alone.  Where no episode shares a state, both are the points that its own episode
    still got.  Trajectories whose return is NaN have no target and count in none.
    """
    units, state_N = valued_turns(
        return_B=return_B, group_B=group_B, trajectory_B=trajectory_B, is_action_BT=is_action_BT, turn_BT=turn_BT,
        first_turn_B=first_turn_B, tokens_BT=tokens_BT, state_key_BK=state_key_BK, reward_BT=reward_BT,
    )  # fmt: skip
    target, is_target = torch.zeros_like(reward_BT).flatten(), torch.zeros_like(is_action_BT).flatten()
    for place_N, value_N in ((_last(units), units.value_N), (units.place_A[units.start_N], state_N)):
        target[place_N], is_target[place_N] = value_N.to(target), True
    return Targets(target.view_as(reward_BT), is_target.view_as(is_action_BT))


def tree_state(
    *,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    is_action_BT: Tensor,
    turn_BT: Tensor,
    first_turn_B: Tensor,
    tokens_BT: Tensor,
    state_key_BK: Tensor,
    reward_BT: Tensor,
    min_gap: float = 0.0,
    most: int | None = 1,
) -> Pairs:
    """Two replies to one state, whose Q differ: the step pairs of a tree, as of MCTS-DPO, arXiv 2405.00451, and SVPO.

    Q is that of `tree`, where `equal_state` takes the return of one episode.  A reply that many episodes hold stands in
    a pair as the first of them has it.  Other arguments are as of `equal_state`; ``min_gap`` is in points of Q.
    """
    units, _ = valued_turns(
        return_B=return_B, group_B=group_B, trajectory_B=trajectory_B, is_action_BT=is_action_BT, turn_BT=turn_BT,
        first_turn_B=first_turn_B, tokens_BT=tokens_BT, state_key_BK=state_key_BK, reward_BT=reward_BT,
    )  # fmt: skip
    return widest_pairs(units, tokens_BT, min_gap=min_gap, most=most)


def valued_turns(
    *,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    is_action_BT: Tensor,
    turn_BT: Tensor,
    first_turn_B: Tensor,
    tokens_BT: Tensor,
    state_key_BK: Tensor,
    reward_BT: Tensor,
) -> tuple[Units, Tensor]:
    """Turns, of which those that begin in one state may be compared, with Q as their values; and V of their states.

    Points, float64, rounded to float32: equal means stay equal, in whatever order they were added up.

    Raises:
        ValueError: shapes disagree, or a turn has no column in ``state_key_BK``.
    """
    check_shapes(is_action_BT=is_action_BT, reward_BT=reward_BT, tokens_BT=tokens_BT)
    units = turn_units(
        return_B=return_B, group_B=group_B, trajectory_B=trajectory_B, is_action_BT=is_action_BT,
        turn_BT=turn_BT, first_turn_B=first_turn_B, state_key_BK=state_key_BK,
    )  # fmt: skip
    first_N = units.place_A[units.start_N]
    row_N, turn_N = first_N // max(is_action_BT.shape[1], 1), turn_BT.flatten()[first_N].long()
    to_go_N = _to_go(
        units.sum(units.read(reward_BT.detach())), torch.stack([group_B[row_N], trajectory_B[row_N]], dim=1)
    )
    set_N = _numbers(units.set_N, turn_N)
    reply_N = _numbers(set_N, text_keys(units, tokens_BT))
    units = replace(units, set_N=set_N, value_N=_mean(to_go_N, reply_N), is_pooled=True)
    return units, _mean(to_go_N, set_N)


def _to_go(paid_N: Tensor, of_N2: Tensor) -> Tensor:
    """Points of a turn and the later ones of its trajectory; units lie by trajectory, then by turn."""
    _, trajectory_N, count_S = torch.unique_consecutive(of_N2, dim=0, return_inverse=True, return_counts=True)
    rank_N = torch.arange(len(paid_N), device=paid_N.device) - (count_S.cumsum(0) - count_S)[trajectory_N]
    paid_SK = paid_N.new_zeros(len(count_S), int(count_S.max()) if len(count_S) else 0)
    paid_SK[trajectory_N, rank_N] = paid_N
    return paid_SK.flip(1).cumsum(1).flip(1)[trajectory_N, rank_N]


def _mean(value_N: Tensor, of_N: Tensor) -> Tensor:
    """The mean of those with the same number, at each of them."""
    most = int(of_N.max()) + 1 if len(of_N) else 0
    count = segment_sum(torch.ones_like(value_N), of_N, most)
    return (segment_sum(value_N, of_N, most) / count)[of_N].float().double()


def _numbers(one_N: Tensor, other_N: Tensor) -> Tensor:
    """Units that agree in both get the same number, 0.."""
    number_N: Tensor = torch.unique(torch.stack([one_N, other_N], dim=1), dim=0, return_inverse=True)[1]
    return number_N


def _last(units: Units) -> Tensor:
    """Place of the last token of each unit."""
    return units.place_A[units.start_N + units.length_N.long() - 1]


def no_targets() -> None:
    """No critic beside the pairs."""


def no_ranking() -> None:
    """The values of the two sides of a pair are not compared."""
