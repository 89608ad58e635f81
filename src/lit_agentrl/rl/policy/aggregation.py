"""Loss aggregation as weights per token, so that micro-batching cannot change the gradient.

A function of this file is called once on the whole local minibatch, which is then cut into micro-batches.  Then

    loss = (sum over tokens, micro-batches and ranks of weight_BT * loss_BT) / (sum over ranks of denominator)

where a denominator of None means that the sum is not divided, however many ranks there are; see `divide`.

A sequence is a trajectory: ``T_i`` counts the sampled tokens of all rows of trajectory i, and ``S_i`` sums the losses
of these tokens.  The rows of a trajectory must lie in the same local minibatch.  ``trajectory_B`` (B,) must be unique
over groups.  Trajectories and turns without a sampled token do not count.  Weights are (B, T), 0 outside
``is_action_BT``, in torch's default dtype but at least float32, without gradient.  All functions raise ValueError when
shapes disagree; those over turns also raise it when ``turn_BT`` is negative at a sampled token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_agentrl.checks import require
from lit_agentrl.rl.masked import check_shapes, segment_sum, trajectory_index


@dataclass(frozen=True)
class Weights:
    """Weight of each token, and this rank's share of the denominator (a scalar or None)."""

    weight_BT: Tensor
    denominator: Tensor | None


def divide(loss_sum: Tensor, denominator: Tensor | None) -> Tensor:
    """Return ``loss_sum / max(denominator, 1)``, or ``loss_sum`` if the denominator is None.

    The denominator must be summed over ranks.
    """
    return loss_sum if denominator is None else loss_sum / denominator.clamp(min=1)


def token_mean(*, is_action_BT: Tensor) -> Weights:
    """``sum_i S_i / sum_i T_i``: all tokens have equal weight; DAPO, arXiv 2503.14476."""
    weight_BT = _make_unit_weights(is_action_BT)
    return Weights(weight_BT, weight_BT.sum())


def token_sum(*, is_action_BT: Tensor) -> Weights:
    """``sum_i S_i``, without a denominator."""
    return Weights(_make_unit_weights(is_action_BT), None)


def seq_mean_token_mean(*, is_action_BT: Tensor, trajectory_B: Tensor) -> Weights:
    """``mean_i (S_i / T_i)``: GRPO, arXiv 2402.03300, equation 3."""
    length_B, count = _count_tokens(is_action_BT, trajectory_B)
    return Weights(_make_unit_weights(is_action_BT) / length_B.clamp(min=1)[:, None], count)


def seq_mean_token_sum(*, is_action_BT: Tensor, trajectory_B: Tensor) -> Weights:
    """``mean_i S_i``: the likelihood of whole trajectories; REINFORCE, RLOO."""
    _, count = _count_tokens(is_action_BT, trajectory_B)
    return Weights(_make_unit_weights(is_action_BT), count)


def seq_mean_token_sum_norm(*, is_action_BT: Tensor, trajectory_B: Tensor, max_tokens: int) -> Weights:
    """``mean_i S_i / max_tokens``: Dr. GRPO, arXiv 2503.20783.

    The constant divisor avoids the bias towards long failures.

    Raises:
        ValueError: also if ``max_tokens`` is not positive.
    """
    require(max_tokens > 0, "max_tokens", max_tokens, "> 0")
    _, count = _count_tokens(is_action_BT, trajectory_B)
    return Weights(_make_unit_weights(is_action_BT) / max_tokens, count)


def turn_mean(*, is_action_BT: Tensor, turn_BT: Tensor) -> Weights:
    """Mean over all turns of the batch of the token mean of each turn."""
    turn_length_BT, num_turns_B = _count_turn_tokens(is_action_BT, turn_BT)
    weight_BT = _make_unit_weights(is_action_BT) / turn_length_BT
    return Weights(weight_BT, num_turns_B.sum().to(weight_BT.dtype))


def seq_mean_turn_mean(*, is_action_BT: Tensor, trajectory_B: Tensor, turn_BT: Tensor) -> Weights:
    """Mean over trajectories of the mean over turns of token means: LOOP's per-turn ablation."""
    turn_length_BT, num_turns_B = _count_turn_tokens(is_action_BT, turn_BT)
    _, count = _count_tokens(is_action_BT, trajectory_B)
    index_B, num_trajectories = trajectory_index(trajectory_B)
    turns_of_trajectory_B = segment_sum(num_turns_B, index_B, num_trajectories)[index_B]
    weight_BT = _make_unit_weights(is_action_BT) / (
        turn_length_BT * turns_of_trajectory_B.clamp(min=1)[:, None]
    )
    return Weights(weight_BT, count)


def _make_unit_weights(is_action_BT: Tensor) -> Tensor:
    check_shapes(is_action_BT=is_action_BT)
    return is_action_BT.to(_get_dtype())


def _get_dtype() -> torch.dtype:
    """Return at least float32: token counts must be exact even in half precision."""
    return torch.promote_types(torch.get_default_dtype(), torch.float32)


def _count_tokens(is_action_BT: Tensor, trajectory_B: Tensor) -> tuple[Tensor, Tensor]:
    """Count the sampled tokens of each row's trajectory (B,), and the trajectories.

    Trajectories without a sampled token are not counted.
    """
    check_shapes(is_action_BT=is_action_BT, trajectory_B=trajectory_B)
    index_B, num_trajectories = trajectory_index(trajectory_B)
    length_S = segment_sum(is_action_BT.sum(1), index_B, num_trajectories)
    return length_S[index_B], (length_S > 0).sum().to(_get_dtype())


def _count_turn_tokens(is_action_BT: Tensor, turn_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Count the sampled tokens of each turn (B, T), and the turns per row (B,).

    The first count is at least 1; turns without a sampled token are not counted.  A turn lies in one row, so row and
    ``turn_BT`` identify it.
    """
    check_shapes(is_action_BT=is_action_BT, turn_BT=turn_BT)
    if bool((is_action_BT & (turn_BT < 0)).any()):
        raise ValueError(
            "turn_BT is negative at a sampled token; algo/aggregate over turns needs a turn number there"
        )
    index_BT = turn_BT.clamp(min=0).long()
    num_turns = int(index_BT.max()) + 1 if index_BT.numel() else 1
    length_BK = index_BT.new_zeros(len(index_BT), num_turns).scatter_add_(1, index_BT, is_action_BT.long())
    return length_BK.gather(1, index_BT).clamp(min=1), (length_BK > 0).sum(1)
