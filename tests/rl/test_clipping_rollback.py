"""PPO-RB: values and slopes on both sides of both bounds, and its limit, the symmetric rule."""

from __future__ import annotations

import pytest
import torch

from lit_agentrl.rl.policy.clipping import rollback, symmetric

RHO = torch.tensor([0.5, 0.9, 1.1, 1.5]).repeat(3, 1)
ADV = torch.tensor([[2.0], [-1.0], [0.0]]).repeat(1, 4)


def test_values_slopes_and_flags():
    ratio_BT = RHO.clone().requires_grad_()
    clipped = rollback(ratio_BT=ratio_BT, advantage_BT=ADV, epsilon=0.2, alpha=0.5)
    # at 1.5: F = -0.75 + 1.5 * 1.2 = 1.05; at 0.5: F = -0.25 + 1.5 * 0.8 = 0.95
    expected = torch.tensor([[-1.0, -1.8, -2.2, -2.1], [0.95, 0.9, 1.1, 1.5], [0.0] * 4]).to(RHO)
    torch.testing.assert_close(clipped.loss_BT, expected)
    (slope,) = torch.autograd.grad(clipped.loss_BT.sum(), ratio_BT)
    assert slope.tolist() == [[-2, -2, -2, 1], [-0.5, 1, 1, 1], [0] * 4]
    assert clipped.is_clipped_high_BT.tolist() == [[False] * 3 + [True], [False] * 4, [False] * 4]
    assert clipped.is_clipped_low_BT.tolist() == [[False] * 4, [True] + [False] * 3, [False] * 4]


def test_without_slope_it_is_the_symmetric_rule():
    ratio_BT, advantage_BT = torch.rand(20, 30) * 2, torch.randn(20, 30)
    ours = rollback(ratio_BT=ratio_BT, advantage_BT=advantage_BT, epsilon=0.2, alpha=1e-12)
    base = symmetric(ratio_BT=ratio_BT, advantage_BT=advantage_BT, epsilon=0.2)
    torch.testing.assert_close(ours.loss_BT, base.loss_BT)
    assert ours.is_clipped_high_BT.equal(base.is_clipped_high_BT)
    assert ours.is_clipped_low_BT.equal(base.is_clipped_low_BT)


@pytest.mark.parametrize(
    ("key", "value"), [("epsilon", 0.0), ("epsilon", 1.0), ("alpha", 0.0), ("alpha", -1.0)]
)
def test_wrong_constants(key, value):
    with pytest.raises(ValueError, match=rf"{key}={value} must be"):
        rollback(ratio_BT=RHO, advantage_BT=ADV, **{key: value})
