"""Loss weights: what counts, what does not, and denominators."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.policy import aggregation

AGGREGATES = [
    aggregation.token_mean,
    aggregation.token_sum,
    aggregation.seq_mean_token_mean,
    aggregation.seq_mean_token_sum,
    partial(aggregation.seq_mean_token_sum_norm, max_tokens=5),
    aggregation.turn_mean,
    aggregation.seq_mean_turn_mean,
]


@pytest.mark.parametrize("fn", AGGREGATES)
def test_weights_are_zero_outside_actions(batch, fn):
    weight_BT = bind(fn, batch).weight_BT
    assert weight_BT[~batch["is_action_BT"]].eq(0).all() and weight_BT[batch["is_action_BT"]].gt(0).all()


def test_token_sum_is_not_divided(batch):
    weights = bind(aggregation.token_sum, batch)
    assert weights.denominator is None and aggregation.divide(weights.weight_BT.sum(), None) == 24


@pytest.mark.parametrize("fn", [f for f in AGGREGATES if f is not aggregation.token_sum])
def test_an_empty_minibatch_gives_zero_not_nan(batch, fn):
    batch["is_action_BT"][:] = False
    weights = bind(fn, batch)
    assert weights.denominator == 0 and aggregation.divide(weights.weight_BT.sum(), weights.denominator) == 0


def test_constant_norm_is_scaled_token_sum(batch):
    norm = aggregation.seq_mean_token_sum_norm(
        is_action_BT=batch["is_action_BT"], trajectory_B=batch["trajectory_B"], max_tokens=8
    )
    total = bind(aggregation.seq_mean_token_sum, batch)
    assert norm.denominator == total.denominator == 6
    torch.testing.assert_close(norm.weight_BT * 8, total.weight_BT)
    with pytest.raises(ValueError, match=r"max_tokens=0 must be > 0"):
        bind(partial(aggregation.seq_mean_token_sum_norm, max_tokens=0), batch)


def test_a_sequence_is_a_trajectory_not_a_row():
    is_action_BT = torch.tensor([[True, True], [True, False], [True, True], [False, False]])
    trajectory_B, turn_BT = torch.tensor([7, 7, 9, 11]), torch.tensor([[0, 0], [1, 1], [0, 1], [0, 0]])
    tensors = {"is_action_BT": is_action_BT, "trajectory_B": trajectory_B, "turn_BT": turn_BT}
    weights = bind(aggregation.seq_mean_token_mean, tensors)
    assert weights.denominator == 2
    torch.testing.assert_close(weights.weight_BT, torch.tensor([[1 / 3] * 2, [1 / 3, 0], [0.5] * 2, [0, 0]]))
    weights = bind(aggregation.turn_mean, tensors)
    assert weights.denominator == 4 and weights.weight_BT.tolist() == [[0.5, 0.5], [1, 0], [1, 1], [0, 0]]
    weights = bind(aggregation.seq_mean_turn_mean, tensors)
    assert weights.denominator == 2
    assert weights.weight_BT.tolist() == [[0.25, 0.25], [0.5, 0], [0.5, 0.5], [0, 0]]
