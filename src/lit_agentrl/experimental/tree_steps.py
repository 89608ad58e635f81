"""Step pairs and critic targets from replies and states that episodes of a group share.

A group is treated as a tree.  A state is the state of the environment before a turn, identified by ``state_key_BK``,
group and turn number; a reply is a state and the tokens sampled there.  Episodes that were branched from each other
share states and replies, and so do episodes that reach the same state by chance.  The reward-to-go of a turn sums its
reward and those of all later turns.  Only ``value_BT`` of `Ranking` carries gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lit_agentrl.checks import require
from lit_agentrl.rl.masked import check_shapes, segment_sum
from lit_agentrl.rl.preference.critic_terms import Targets
from lit_agentrl.rl.preference.pairing import Pairs, text_keys, widest_pairs
from lit_agentrl.rl.preference.units import Units, turn_units


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Hinge loss on the critic's values of pairs.

    ``coef * max(0, width - (Q(chosen) - Q(rejected)))`` for each pair, as in SVPO (arXiv 2406.10858).  Q is the value
    of the critic before the last token of a reply, when the reply is complete except for its end.  A reply of one token
    has no Q, and its pairs have a loss of 0.  A ``width`` above the true difference of a pair biases values away from
    their targets.

    Attributes:
        coef: weight relative to the squared errors, > 0.
        width: margin by which Q(chosen) should exceed Q(rejected), in reward units, >= 0.
    """

    coef: float
    width: float

    def __post_init__(self) -> None:
        """Check the constants."""
        require(
            0 < self.coef < math.inf,
            "coef",
            self.coef,
            "finite and > 0; algo/ranking=none switches the term off",
        )
        require(0 <= self.width < math.inf, "width", self.width, "finite and >= 0")

    def value_differences(self, pairs: Pairs, value_BT: Tensor) -> Tensor:
        """Return ``Q(chosen) - Q(rejected)`` of the pairs that have both.

        The result is in reward units, float64, and carries gradient through ``value_BT``.
        """
        units, q_N = pairs.units, value_BT.flatten()[_find_last(pairs.units)].double()
        is_ranked_P = (units.length_N[pairs.chosen_P] > 1) & (units.length_N[pairs.rejected_P] > 1)
        return (q_N[pairs.chosen_P] - q_N[pairs.rejected_P])[is_ranked_P]

    def losses(self, difference_P: Tensor) -> Tensor:
        """Return the hinge loss of each pair, without ``coef``."""
        return (self.width - difference_P).clamp(min=0)


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
    """Compute critic targets from the tree of a group: SVPO, arXiv 2406.10858.

    ``V(s)`` at the first token of a turn and ``Q(s, a)`` at its last are means of the reward-to-go over the episodes
    that contain the state or the reply: the values of a tree search without discount.  The structure `mcts` uses V.  A
    turn of one token has V only.  If only one episode contains a state, V and Q are its reward-to-go.  Trajectories
    whose return is NaN have no target and count in no mean.  Nothing carries gradient.

    Raises:
        ValueError: see `compute_turn_units`.
    """
    units, state_N = compute_turn_units(
        return_B=return_B, group_B=group_B, trajectory_B=trajectory_B, is_action_BT=is_action_BT, turn_BT=turn_BT,
        first_turn_B=first_turn_B, tokens_BT=tokens_BT, state_key_BK=state_key_BK, reward_BT=reward_BT,
    )  # fmt: skip
    target, is_target = torch.zeros_like(reward_BT).flatten(), torch.zeros_like(is_action_BT).flatten()
    for place_N, value_N in ((_find_last(units), units.value_N), (units.place_A[units.start_N], state_N)):
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
    """Pair replies to one state whose Q differ: MCTS-DPO, arXiv 2405.00451, and SVPO.

    Q is that of `tree`, whereas `equal_state` uses the return of one episode.  If several episodes contain a reply, the
    pair uses the first of them.  The arguments are as for `equal_state`; ``min_gap`` is in reward units.

    Raises:
        ValueError: see `compute_turn_units` and `equal_state`.
    """
    units, _ = compute_turn_units(
        return_B=return_B, group_B=group_B, trajectory_B=trajectory_B, is_action_BT=is_action_BT, turn_BT=turn_BT,
        first_turn_B=first_turn_B, tokens_BT=tokens_BT, state_key_BK=state_key_BK, reward_BT=reward_BT,
    )  # fmt: skip
    return widest_pairs(units, tokens_BT, min_gap=min_gap, most=most)


def by_visits(
    *, loss_P: Tensor, flipped_P: Tensor, chosen_visits_P: Tensor, rejected_visits_P: Tensor
) -> Tensor:
    """Smooth the label of each pair by the visits of its replies: MCTS-DPO, arXiv 2405.00451.

    ``(1 - e) f(z) + e f(-z)`` with ``e = N_l / (N_w + N_l)``: the fewer episodes contain the chosen reply, the less
    certain is the label.

    Args:
        loss_P: ``f(z)``, the loss of each pair; carries gradient.
        flipped_P: ``f(-z)``, the loss with the sides exchanged; carries gradient.
        chosen_visits_P: ``N_w``, the number of episodes that contain the chosen reply, as `tree_state` counts them.
        rejected_visits_P: ``N_l``, the same for the rejected reply.
    """
    epsilon_P = rejected_visits_P / (chosen_visits_P + rejected_visits_P)
    return (1 - epsilon_P) * loss_P + epsilon_P * flipped_P


def compute_turn_units(
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
    """Return turns grouped by state, with Q as values, and V of their states.

    Values are float64, in reward units, rounded to float32, so that equal means do not depend on the order of
    summation.

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
    to_go_N = _sum_reward_to_go(
        units.sum(units.read(reward_BT.detach())), torch.stack([group_B[row_N], trajectory_B[row_N]], dim=1)
    )
    set_N = _number_pairs(units.set_N, turn_N)
    reply_N = _number_pairs(set_N, text_keys(units, tokens_BT))
    visits_N = torch.bincount(reply_N)[reply_N].double()
    units = replace(units, set_N=set_N, value_N=_average(to_go_N, reply_N), visits_N=visits_N, is_pooled=True)
    return units, _average(to_go_N, set_N)


def number_replies(units: Units, tokens_BT: Tensor) -> Tensor:
    """Number the replies of turns, with equal numbers for equal tokens at one state."""
    return _number_pairs(units.set_N, text_keys(units, tokens_BT))


def _sum_reward_to_go(reward_N: Tensor, key_N2: Tensor) -> Tensor:
    """Sum the rewards of each turn and the later ones of its trajectory.

    Units must be ordered by trajectory, then by turn.
    """
    _, trajectory_N, count_S = torch.unique_consecutive(
        key_N2, dim=0, return_inverse=True, return_counts=True
    )
    rank_N = torch.arange(len(reward_N), device=reward_N.device) - (count_S.cumsum(0) - count_S)[trajectory_N]
    reward_SK = reward_N.new_zeros(len(count_S), int(count_S.max()) if len(count_S) else 0)
    reward_SK[trajectory_N, rank_N] = reward_N
    return reward_SK.flip(1).cumsum(1).flip(1)[trajectory_N, rank_N]


def _average(value_N: Tensor, number_N: Tensor) -> Tensor:
    """Return, for each entry, the mean of all entries with the same number."""
    size = int(number_N.max()) + 1 if len(number_N) else 0
    count_G = segment_sum(torch.ones_like(value_N), number_N, size)
    return (segment_sum(value_N, number_N, size) / count_G)[number_N].float().double()


def _number_pairs(first_N: Tensor, second_N: Tensor) -> Tensor:
    """Number the distinct pairs of two numbers from 0."""
    number_N: Tensor = torch.unique(torch.stack([first_N, second_N], dim=1), dim=0, return_inverse=True)[1]
    return number_N


def _find_last(units: Units) -> Tensor:
    """Return the place of the last token of each unit."""
    return units.place_A[units.start_N + units.length_N.long() - 1]
