"""SAPO: values and slopes computed by hand, and its limit, no clip."""

from __future__ import annotations

import math

import pytest
import torch

from lit_agentrl.rl.policy.clipping import none, soft_gate

RHO = torch.tensor([[1.0, 2.0, 0.5, 4.0]], dtype=torch.float64).repeat(3, 1)
ADV = torch.tensor([[2.0], [-1.0], [0.0]], dtype=torch.float64).repeat(1, 4)


def test_values_slopes_and_flags_by_hand():
    ratio_BT = RHO.clone().requires_grad_()
    clipped = soft_gate(ratio_BT=ratio_BT, advantage_BT=ADV, tau_positive=1.0, tau_negative=2.0)
    # sigmoid of 0, 1, -0.5, 3 (tau 1) and of 0, 2, -1, 6 (tau 2), from a table
    positive = [0.5, 0.731058579, 0.377540669, 0.952574127]
    negative = [0.5, 0.880797078, 0.268941421, 0.997527377]
    expected = [[-2 * 4 * p for p in positive], [2 * p for p in negative], [0.0] * 4]
    assert clipped.loss_BT.tolist() == [pytest.approx(row, abs=1e-8) for row in expected]
    (slope,) = torch.autograd.grad(clipped.loss_BT.sum(), ratio_BT)
    by_hand = [[-2 * 4 * p * (1 - p) for p in positive], [4 * p * (1 - p) for p in negative], [0.0] * 4]
    assert slope.tolist() == [pytest.approx(row, abs=1e-8) for row in by_hand]
    assert slope[0, 0] == -2 and slope[1, 0] == 1  # where the ratio is 1 it is the unclipped one
    # 4 p (1 - p) is 1, 0.79, 0.94, 0.18 and 1, 0.42, 0.79, 0.01
    expected_flags = [[False] * 3 + [True], [False, True, False, True], [False] * 4]
    assert clipped.is_clipped_high_BT.tolist() == expected_flags
    assert not clipped.is_clipped_low_BT.any()
    assert soft_gate(ratio_BT=RHO, advantage_BT=ADV, tau_negative=4.0).is_clipped_low_BT[1].tolist() == [
        False, False, True, False,
    ]  # fmt: skip


def test_the_temperatures_are_those_of_the_paper():
    low = soft_gate(ratio_BT=RHO, advantage_BT=ADV)
    assert low.loss_BT[0, 1].item() == pytest.approx(-8 / (1 + math.exp(-1)))
    assert low.loss_BT[1, 1].item() == pytest.approx(4 / 1.05 / (1 + math.exp(-1.05)))


def test_at_low_temperature_it_is_no_clip():
    ratio_BT, advantage_BT = (torch.rand(20, 30) * 3).requires_grad_(), torch.randn(20, 30)
    soft = soft_gate(ratio_BT=ratio_BT, advantage_BT=advantage_BT, tau_positive=1e-4, tau_negative=1e-4)
    plain = none(ratio_BT=ratio_BT, advantage_BT=advantage_BT)
    slopes = [torch.autograd.grad(each.loss_BT.sum(), ratio_BT)[0] for each in (soft, plain)]
    torch.testing.assert_close(*slopes, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("key", ["tau_positive", "tau_negative"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_wrong_temperatures(key, value):
    with pytest.raises(ValueError, match=rf"{key}={value} must be finite and > 0"):
        soft_gate(ratio_BT=RHO, advantage_BT=ADV, **{key: value})
