"""Losses of the critic and explained variance."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.rl.binding import bind, tensor_names, try_out
from lit_agentrl.rl.credit.value_loss import ValueLoss, clipped, explained_variance, squared

NAN = float("nan")
MASK = torch.tensor([[True, True, True, True, True, False]])


@pytest.fixture
def tensors():
    """Old values 0, targets 1; the values moved by these steps.  Rubbish where nothing was sampled."""
    return {
        "value_BT": torch.tensor([[0.1, 0.5, -0.5, 0.2, 1.9, NAN]], requires_grad=True),
        "old_value_BT": torch.tensor([[0.0, 0, 0, 0, 0, NAN]]),
        "return_BT": torch.tensor([[1.0, 1, 1, 1, 1, NAN]]),
        "is_action_BT": MASK,
    }


def losses(fn, tensors, **constants) -> ValueLoss:
    return bind(partial(fn, **constants), tensors)


def gradient(loss, tensors):
    (grad,) = torch.autograd.grad(loss.loss_BT.sum(), tensors["value_BT"])
    return grad


def test_squared(tensors):
    loss = losses(squared, tensors)
    torch.testing.assert_close(loss.loss_BT, torch.tensor([[0.405, 0.125, 1.125, 0.32, 0.405, 0]]))
    torch.testing.assert_close(gradient(loss, tensors), torch.tensor([[-0.9, -0.5, -1.5, -0.8, 0.9, 0]]))
    assert not loss.is_clipped_BT.any() and "old_value_BT" not in tensor_names(squared)


def test_clipped_takes_the_larger_loss_and_stops_the_gradient_there(tensors):
    """Within; too far towards the target; too far from it; on the bound; past target but nearer to it."""
    loss = losses(clipped, tensors, clip=0.2)
    torch.testing.assert_close(loss.loss_BT, torch.tensor([[0.405, 0.32, 1.125, 0.32, 0.405, 0]]))
    assert loss.is_clipped_BT.tolist() == [[False, True, False, False, False, False]]
    grad = gradient(loss, tensors)
    assert grad[0, 1] == 0 and grad[0, 5] == 0
    torch.testing.assert_close(grad[0, [0, 2, 4]], torch.tensor([-0.9, -1.5, 0.9]))
    near = losses(clipped, tensors | {"value_BT": torch.tensor([[0.0, 0, 0, 0, 1.7, NAN]])}, clip=0.2)
    assert near.is_clipped_BT.tolist() == [[False, False, False, False, True, False]]


@pytest.mark.parametrize("clip", [2.0, float("inf")])
def test_a_wide_interval_is_the_squared_loss(tensors, clip):
    wide, plain = losses(clipped, tensors, clip=clip), losses(squared, tensors)
    torch.testing.assert_close(wide.loss_BT, plain.loss_BT)
    torch.testing.assert_close(gradient(wide, tensors), gradient(plain, tensors))
    assert not wide.is_clipped_BT.any()


def test_before_the_first_update_clipping_changes_nothing(tensors):
    old = tensors | {"old_value_BT": tensors["value_BT"].detach()}
    assert gradient(losses(clipped, old), old).equal(gradient(losses(squared, old), old))


@pytest.mark.parametrize("fn", [squared, clipped])
def test_only_targets_have_a_loss(tensors, fn):
    tensors["is_value_target_BT"] = torch.tensor([[False, True, False, False, True, True]])
    tensors["return_BT"][0, [0, 2, 3]] = NAN
    loss = losses(fn, tensors)
    everywhere = losses(fn, {n: t for n, t in tensors.items() if n != "is_value_target_BT"})
    assert loss.loss_BT[0, [0, 2, 3, 5]].eq(0).all()
    assert loss.loss_BT[0, [1, 4]].equal(everywhere.loss_BT[0, [1, 4]])
    grad = gradient(loss, tensors)
    assert grad[0, [0, 2, 3, 5]].eq(0).all() and grad[0, 4] != 0


@pytest.mark.parametrize("fn", [squared, clipped])
def test_only_the_value_carries_gradient(tensors, fn):
    others = [n for n in ("old_value_BT", "return_BT") if n in tensor_names(fn)]
    for name in others:
        tensors[name].requires_grad_()
    losses(fn, tensors).loss_BT.sum().backward()
    assert tensors["value_BT"].grad is not None and all(tensors[n].grad is None for n in others)


def test_no_tokens():
    empty = torch.zeros(2, 0)
    loss = squared(value_BT=empty, return_BT=empty, is_action_BT=empty.bool())
    assert loss.loss_BT.shape == loss.is_clipped_BT.shape == (2, 0)


def test_errors(tensors):
    for clip in (0.0, -0.2, NAN):
        with pytest.raises(ValueError, match=rf"clip={clip} must be > 0"):
            losses(clipped, tensors, clip=clip)
    with pytest.raises(ValueError, match="is_value_target_BT has dtype torch.int64"):
        losses(squared, tensors | {"is_value_target_BT": MASK.long()})
    for name in ("value_BT", "return_BT", "old_value_BT", "is_value_target_BT"):
        with pytest.raises(ValueError, match="T=3"):
            losses(clipped, tensors | {name: MASK[:, :3] if name.startswith("is_") else torch.zeros(1, 3)})
    with pytest.raises(ValueError, match="clipped needs old_value_BT"):
        losses(clipped, {n: t for n, t in tensors.items() if n != "old_value_BT"})
    for fn in (squared, clipped):
        try_out(
            "critic.loss", fn, ValueLoss, TrajectoryBatch.make_toy().to_dict()
        )  # every tensor is in the vocabulary


def test_explained_variance():
    ret = torch.tensor([[0.0, 1.0, 2.0, 3.0, NAN]])
    mask = torch.tensor([[True, True, True, True, False]])

    def explained(value, returns=ret, is_target=mask):
        return explained_variance(value_BT=value, return_BT=returns, is_value_target_BT=is_target).item()

    assert explained(ret) == 1 and explained(ret + 5) == 1
    assert explained(torch.full((1, 5), 0.3)) == pytest.approx(0, abs=1e-12)
    assert explained(torch.tensor([[0.0, 0.0, 2.0, 2.0, NAN]])) == pytest.approx(0.8)
    assert explained(-ret) == pytest.approx(-3)
    value = torch.tensor([[0.3, 0.1, 0.7, 0.2, NAN]])
    assert explained(value, torch.full((1, 5), 0.1)) == 0
    for few in (mask & False, mask & (ret == 2)):
        assert explained(value, is_target=few) == 0
    assert explained(value.flip(1), ret.flip(1), mask.flip(1)) == pytest.approx(explained(value))
    value.requires_grad_()
    assert not explained_variance(value_BT=value, return_BT=ret, is_value_target_BT=mask).requires_grad
    with pytest.raises(ValueError, match="return_BT has T=4"):
        explained(value.detach(), ret[:, :4])
