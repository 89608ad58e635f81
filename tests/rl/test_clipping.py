"""Clip rules: values, flags and gradients on a grid of ratios and advantages."""

from __future__ import annotations

import pytest
import torch

from lit_agentrl.rl.policy import clipping

RHO = torch.tensor([[0.5, 0.9, 1.1, 1.5, 6.0]], dtype=torch.float64)
ADV = torch.tensor([[1.0], [-1.0], [0.0]], dtype=torch.float64)


def clip_grid(fn, **constants):
    ratio_BT = RHO.repeat(3, 1).requires_grad_()
    clipped = fn(ratio_BT=ratio_BT, advantage_BT=ADV.repeat(1, 5), **constants)
    (grad,) = torch.autograd.grad(clipped.loss_BT.sum(), ratio_BT)
    return clipped, grad


def test_clip_values_flags_and_gradients():
    clipped, grad = clip_grid(clipping.clip_higher, low=0.2, high=0.3)
    torch.testing.assert_close(
        clipped.loss_BT.detach(),
        torch.tensor([[-0.5, -0.9, -1.1, -1.3, -1.3], [0.8, 0.9, 1.1, 1.5, 6.0], [0.0] * 5]),
    )
    assert clipped.is_clipped_high_BT.tolist() == [[False] * 3 + [True] * 2, [False] * 5, [False] * 5]
    assert clipped.is_clipped_low_BT.tolist() == [[False] * 5, [True] + [False] * 4, [False] * 5]
    assert grad.tolist() == [[-1, -1, -1, 0, 0], [0, 1, 1, 1, 1], [0] * 5]


def test_dual_caps_only_negative_advantages():
    clipped, grad = clip_grid(clipping.dual, low=0.2, high=0.3, cap=3.0)
    base, _ = clip_grid(clipping.clip_higher, low=0.2, high=0.3)
    assert clipped.loss_BT[1].tolist() == pytest.approx([0.8, 0.9, 1.1, 1.5, 3.0])
    assert clipped.loss_BT[0].equal(base.loss_BT[0]) and grad[1, 4] == 0
    assert clipped.is_clipped_high_BT[1].tolist() == [False] * 4 + [True]


def test_symmetric_bounds():
    ours, our_grad = clip_grid(clipping.symmetric, epsilon=0.2)
    expected, grad = clip_grid(clipping.clip_higher, low=0.2, high=0.2)
    assert ours.loss_BT.equal(expected.loss_BT) and our_grad.equal(grad)
    reciprocal, _ = clip_grid(clipping.symmetric, epsilon=0.25, lower="reciprocal")
    assert reciprocal.loss_BT[1, 0].item() == pytest.approx(1 / 1.25)


def test_no_clip():
    clipped, grad = clip_grid(clipping.none)
    assert clipped.loss_BT.equal(-RHO * ADV) and grad.equal(-ADV.repeat(1, 5))
    assert not clipped.is_clipped_low_BT.any() and not clipped.is_clipped_high_BT.any()


def test_cispo_weights_the_log_prob():
    logp_BT = torch.full((3, 5), -2.0).requires_grad_()
    ratio_BT = RHO.repeat(3, 1).requires_grad_()
    cispo = clipping.cispo(ratio_BT=ratio_BT, advantage_BT=ADV.repeat(1, 5), logp_BT=logp_BT, cap=5.0)
    cispo.loss_BT.sum().backward()
    assert ratio_BT.grad is None and logp_BT.grad.equal(-RHO.clamp(max=5) * ADV)
    assert cispo.is_clipped_high_BT.tolist() == [[False] * 4 + [True]] * 3


@pytest.mark.parametrize(
    ("fn", "constants", "message"),
    [
        (clipping.clip_higher, {"low": 1.0}, r"low=1\.0 must be in \(0, 1\)"),
        (clipping.clip_higher, {"high": 0}, r"high=0 must be > 0"),
        (clipping.symmetric, {"epsilon": 0}, r"epsilon=0 must be in \(0, 1\)"),
        (clipping.symmetric, {"epsilon": 0, "lower": "reciprocal"}, r"epsilon=0 must be > 0"),
        (clipping.symmetric, {"lower": "both"}, r"lower=both must be linear or reciprocal"),
        (clipping.dual, {"cap": 1.0}, r"cap=1\.0 must be > 1"),
        (clipping.cispo, {"cap": 0.5, "logp_BT": torch.zeros(1, 1)}, r"cap=0\.5 must be > 1"),
    ],
)
def test_wrong_bounds(fn, constants, message):
    with pytest.raises(ValueError, match=message):
        fn(ratio_BT=torch.ones(1, 1), advantage_BT=torch.ones(1, 1), **constants)
