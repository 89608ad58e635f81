"""Importance ratios: hand-worked numbers, identities, garbage at masked positions."""

from __future__ import annotations

import pytest
import torch

from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.policy import aggregation, ratios

RATIOS = [ratios.none, ratios.token, ratios.turn, ratios.trajectory, ratios.sequence, ratios.sequence_token]


def gradient(fn, batch, weight_BT):
    """Value and gradient wrt the log-probs of a weighted sum of ratios over sampled tokens."""
    logp_BT = batch["logp_BT"].clone().requires_grad_()
    ratio_BT = bind(fn, batch | {"logp_BT": logp_BT})
    (ratio_BT * weight_BT).sum().backward()
    return ratio_BT.detach(), logp_BT.grad


def test_row_ratios(batch):
    for fn, values in [
        (ratios.sequence, [1.096913, 0.97531, 1.083287, 1, 1.051271, 0.960789]),
        (ratios.trajectory, [1.447735, 0.904837, 1.616074, 1, 1.161834, 0.818731]),
    ]:
        expected = torch.where(batch["is_action_BT"], torch.tensor(values)[:, None], 1.0)
        torch.testing.assert_close(bind(fn, batch), expected, atol=1e-6, rtol=0)


def test_turn_ratios(batch):
    log_BT = bind(ratios.turn, batch).log()
    torch.testing.assert_close(log_BT[0], torch.tensor([0.05, 0.05, 0, 0.32, 0.32, 0, 0]))
    torch.testing.assert_close(log_BT[5], torch.tensor([-0.3, -0.3, 0, 0, 0.1, 0.1, 0.1]))


@pytest.mark.parametrize("fn", RATIOS)
def test_masked_positions_are_exactly_one_and_carry_no_gradient(batch, fn):
    ratio_BT, grad_BT = gradient(fn, batch, torch.ones(6, 7))
    outside = ~batch["is_action_BT"]
    assert ratio_BT[outside].eq(1).all() and grad_BT[outside].eq(0).all()
    assert ratio_BT.isfinite().all() and grad_BT[~outside].isfinite().all() and grad_BT[~outside].ne(0).all()


@pytest.mark.parametrize("fn", RATIOS[1:])
def test_log_ratios_are_limited(batch, fn):
    batch["logp_BT"] = batch["logp_BT"] + 500.0
    assert bind(fn, batch).max() == pytest.approx(torch.tensor(20.0).exp().item())


@pytest.mark.parametrize("fn", [ratios.turn, ratios.trajectory, ratios.sequence, ratios.sequence_token])
def test_on_one_token_every_ratio_is_that_of_the_token(batch, fn):
    batch["is_action_BT"] = batch["is_action_BT"] & (torch.arange(7) == 0)
    weight_BT = torch.linspace(-1, 1, 42).reshape(6, 7)
    for ours, expected in zip(
        gradient(fn, batch, weight_BT), gradient(ratios.token, batch, weight_BT), strict=True
    ):
        torch.testing.assert_close(ours, expected)


def test_one_turn_is_the_trajectory(batch):
    batch["turn_BT"] = torch.zeros_like(batch["turn_BT"])
    weight_BT = torch.linspace(-1, 1, 42).reshape(6, 7)
    for ours, expected in zip(
        gradient(ratios.turn, batch, weight_BT), gradient(ratios.trajectory, batch, weight_BT), strict=True
    ):
        torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(
        bind(aggregation.turn_mean, batch).weight_BT, bind(aggregation.seq_mean_token_mean, batch).weight_BT
    )


def test_sequence_token_equals_sequence_for_equal_weights_in_a_row(batch):
    weight_BT = torch.where(batch["is_action_BT"], torch.linspace(-1, 1, 6)[:, None], 0)
    for ours, expected in zip(
        gradient(ratios.sequence_token, batch, weight_BT),
        gradient(ratios.sequence, batch, weight_BT),
        strict=True,
    ):
        torch.testing.assert_close(ours, expected)


def test_no_ratio_has_the_gradient_of_the_log_prob(batch):
    weight_BT = torch.linspace(-1, 1, 42).reshape(6, 7)
    ratio_BT, grad_BT = gradient(ratios.none, batch, weight_BT)
    assert ratio_BT.eq(1).all()
    torch.testing.assert_close(grad_BT, torch.where(batch["is_action_BT"], weight_BT, 0))


def test_ratios_over_rows_refuse_a_trajectory_in_several(batch):
    batch["trajectory_B"] = torch.tensor([0, 0, 2, 3, 4, 5])
    for fn in (ratios.trajectory, ratios.sequence, ratios.sequence_token):
        with pytest.raises(ValueError, match="context=full"):
            bind(fn, batch)
    batch["is_action_BT"][1] = False  # a filling row
    assert bind(ratios.sequence, batch)[1].eq(1).all()


def test_turns_must_be_known(batch):
    batch["turn_BT"][0, 0] = -1
    for fn in (ratios.turn, aggregation.turn_mean):
        with pytest.raises(ValueError, match="turn_BT is negative"):
            bind(fn, batch)
