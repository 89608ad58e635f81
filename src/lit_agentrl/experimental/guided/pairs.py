"""Pairs of replies to one state, compared by the tree and by a critic: AgentQ."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lit_agentrl.checks import require
from lit_agentrl.experimental.tree_steps import compute_turn_units, number_replies
from lit_agentrl.rl.masked import segment_sum
from lit_agentrl.rl.preference.pairing import Pairs, widest_pairs


def tree_ranked(
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
    rank_BT: Tensor,
    alpha: float = 0.5,
    min_gap: float = 0.0,
    most: int | None = 1,
) -> Pairs:
    """Pair replies to one state whose mixed Q differ: AgentQ, arXiv 2408.07199.

    ``Q = alpha Q~ + (1 - alpha) Q_critic``.  ``Q~`` is the mean reward-to-go of `tree_state`, scaled so that the turns
    of a group range from 0 to 1; it is 0 if all turns are equal.  ``Q_critic`` is the rank of the reply, from 0 to 1; a
    reply that was not ranked has Q = Q~.  Nothing carries gradient.

    Example: Q~ = (1, 0), ranks (0, 1): with alpha = 0.4 the second reply is chosen, by 0.2.

    Departs: the paper was not at hand; from memory its Q are shares of successes, from 0 to 1 without scaling.

    ``rank_BT`` has ``Q_critic`` at the first token of each ranked reply, and NaN where there is none; ``alpha`` is in
    [0, 1]; ``min_gap`` is in units of the mixed Q.  Other arguments are as for `tree_state`.

    Raises:
        ValueError: ``alpha`` is out of range, or as for `tree_state`.
    """
    require(0 <= alpha <= 1, "alpha", alpha, "in [0, 1]")
    units, _ = compute_turn_units(
        return_B=return_B, group_B=group_B, trajectory_B=trajectory_B, is_action_BT=is_action_BT, turn_BT=turn_BT,
        first_turn_B=first_turn_B, tokens_BT=tokens_BT, state_key_BK=state_key_BK, reward_BT=reward_BT,
    )  # fmt: skip
    place_N = units.place_A[units.start_N]
    _, group_N = torch.unique(group_B[place_N // max(is_action_BT.shape[1], 1)], return_inverse=True)
    low_N, high_N = (_reduce(units.value_N, group_N, how) for how in ("amin", "amax"))
    scaled_N = (units.value_N - low_N) / (high_N - low_N).clamp(min=1e-12)
    # only the episode that wrote a reply has its rank: give the rank to all episodes that contain the reply
    rank_N, reply_N = rank_BT.flatten()[place_N].double(), number_replies(units, tokens_BT)
    size, is_known_N = len(rank_N), ~rank_N.isnan()
    count_N = segment_sum(is_known_N.double(), reply_N, size)[reply_N]
    critic_N = segment_sum(rank_N.nan_to_num(), reply_N, size)[reply_N] / count_N.clamp(min=1)
    mixed_N = torch.where(count_N > 0, alpha * scaled_N + (1 - alpha) * critic_N, scaled_N)
    units = replace(units, value_N=mixed_N.float().double())
    return widest_pairs(units, tokens_BT, min_gap=min_gap, most=most)


def _reduce(value_N: Tensor, group_N: Tensor, how: str) -> Tensor:
    """Return, for each entry, the smallest or largest value of its group."""
    size = int(group_N.max()) + 1 if len(group_N) else 0
    reduced_G = value_N.new_zeros(size).scatter_reduce(0, group_N, value_N, how, include_self=False)
    return reduced_G[group_N]
