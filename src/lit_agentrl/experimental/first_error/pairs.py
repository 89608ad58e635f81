"""Pairs of a right and a wrong turn at the first error of an episode."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lit_agentrl.checks import require_whole
from lit_agentrl.experimental.tree_steps import compute_turn_units
from lit_agentrl.rl.preference.pairing import Pairs, text_keys, widest_pairs


def first_error(
    *,
    return_B: Tensor,
    success_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    is_action_BT: Tensor,
    turn_BT: Tensor,
    first_turn_B: Tensor,
    tokens_BT: Tensor,
    state_key_BK: Tensor,
    reward_BT: Tensor,
    least: int = 3,
    most: int | None = 1,
) -> Pairs:
    """Pair a right reply to a state with a wrong one: Step-DPO, arXiv 2406.18629.

    The group is a tree, as in `tree_steps`.  A reply is *right* if an episode that holds it solves the game
    (``success_B``).  It is *wrong* if no episode that holds it solves the game, and either at least ``least`` episodes
    hold it or one of them ends with it; ``least`` should be the ``tries`` of `search.FirstError` plus 1.  Other replies
    are unknown, and in no pair.  A pair has a right and a wrong reply to one state.  The state is therefore right, and
    the wrong reply is the first wrong one on its path.  Only the tokens of the two replies count.  At most ``most``
    pairs of a state are taken (None: all); the other arguments are as for `tree_steps.tree_state`.  The value of a
    right reply is 1, of a wrong one 0.  Nothing carries gradient.

    Example with ``least=3``: a, b and c are replies to one state.  Of the episodes that hold a, 2 of 3 solve the game;
    of those that hold b, 0 of 3; the only one that holds c continues after it and fails.  (a, b) is the only pair.

    Raises:
        ValueError: ``least`` is not a whole number >= 1, or as for `tree_steps.tree_state`.
    """
    require_whole("least", least, 1)
    units, _ = compute_turn_units(
        return_B=return_B, group_B=group_B, trajectory_B=trajectory_B, is_action_BT=is_action_BT, turn_BT=turn_BT,
        first_turn_B=first_turn_B, tokens_BT=tokens_BT, state_key_BK=state_key_BK, reward_BT=reward_BT,
    )  # fmt: skip
    place_N = units.place_A[units.start_N]
    row_N, turn_N = place_N // max(is_action_BT.shape[1], 1), turn_BT.flatten()[place_N].long()
    episode_N = _number(torch.stack([group_B[row_N], trajectory_B[row_N]], 1))
    reply_N = _number(torch.stack([units.set_N, text_keys(units, tokens_BT)], 1))
    last_N = turn_N.new_zeros(len(units)).scatter_reduce_(0, episode_N, turn_N, "amax")[episode_N]
    is_right_N = _find_any(success_B[row_N].bool(), reply_N)
    is_end_N = _find_any(turn_N == last_N, reply_N)
    assert units.visits_N is not None
    is_wrong_N = ~is_right_N & (is_end_N | (units.visits_N >= least))
    place_N = torch.arange(len(units), device=reply_N.device)
    first_N = place_N.new_full((len(units),), len(units)).scatter_reduce_(0, reply_N, place_N, "amin")[
        reply_N
    ]
    is_unknown_N = ~(is_right_N | is_wrong_N) | (place_N != first_N)
    value_N = torch.where(is_unknown_N, 0.5, is_right_N.double())  # 0.5 is in no pair
    return widest_pairs(replace(units, value_N=value_N), tokens_BT, min_gap=1.0, most=most)


def _number(key_NK: Tensor) -> Tensor:
    """Number the distinct rows from 0."""
    number_N: Tensor = torch.unique(key_NK, dim=0, return_inverse=True)[1]
    return number_N


def _find_any(is_set_N: Tensor, number_N: Tensor) -> Tensor:
    """Return whether the mask is True for any entry with the same number."""
    any_N = number_N.new_zeros(len(number_N)).scatter_reduce_(0, number_N, is_set_N.long(), "amax")
    return any_N[number_N].bool()
