"""Preference pairs for imitation, stored successes against the policy's own episodes: SPIN."""

from __future__ import annotations

from torch import Tensor

from lit_agentrl.rl.preference.pairing import Pairs, all_pairs, select_pairs


def demonstrated(
    *,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    is_action_BT: Tensor,
    turn_BT: Tensor,
    first_turn_B: Tensor,
    tokens_BT: Tensor,
    source_B: Tensor,
    min_gap: float = 0.0,
) -> Pairs:
    """Pair trajectories of other sources, such as stored successes, with worse ones: SPIN.

    ``source_B`` is 0 for rows that the current policy has sampled; the other arguments are as for `all_pairs`.
    """
    pairs = all_pairs(
        return_B=return_B, group_B=group_B, trajectory_B=trajectory_B, is_action_BT=is_action_BT,
        turn_BT=turn_BT, first_turn_B=first_turn_B, tokens_BT=tokens_BT, min_gap=min_gap,
    )  # fmt: skip
    units = pairs.units
    row_N = (units.place_A // max(is_action_BT.shape[1], 1))[units.start_N]
    return select_pairs(pairs, source_B[row_N[pairs.chosen_P]] != 0)
