"""The squared error of GVPO: hand-worked numbers, and its gradient."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.credit import advantages
from lit_agentrl.rl.policy.gvpo import gvpo_loss


def with_advantage(tensors):
    return tensors | {"advantage_BT": bind(advantages.group_mean, tensors).advantage_BT}


def loss_gradient(tensors, beta=0.1):
    """The sum over groups and its gradient, with the advantage of the paper."""
    tensors = with_advantage(tensors) | {"logp_BT": tensors["logp_BT"].clone().requires_grad_()}
    loss = bind(partial(gvpo_loss, beta=beta), tensors)
    (grad_BT,) = torch.autograd.grad(loss, tensors["logp_BT"])
    return loss.detach(), grad_BT


def ragged(seed: int) -> dict[str, torch.Tensor]:
    """Groups of 1, 2, 3 and 4 trajectories, some of two rows, one unscorable, one without sampled tokens."""
    generator = torch.Generator().manual_seed(seed)
    trajectory_B = torch.tensor([5, 0, 1, 1, 2, 3, 4, 6, 6, 7, 8, 9])
    group_S = torch.tensor([0, 3, 3, 7, 7, 7, 9, 9, 9, 9])
    return_S = torch.randn(10, generator=generator)
    return_S[4] = torch.nan
    is_action_BT = torch.rand(12, 6, generator=generator) < 0.6
    is_action_BT[:, 0] = True
    is_action_BT[10] = False
    noise = {n: torch.randn(12, 6, generator=generator) for n in ("logp_BT", "old_logp_BT")}
    return {
        **{name: torch.where(is_action_BT, value, torch.nan) for name, value in noise.items()},
        "is_action_BT": is_action_BT,
        "return_B": return_S[trajectory_B],
        "group_B": group_S[trajectory_B],
        "trajectory_B": trajectory_B,
    }


def test_loss(batch):
    assert float(loss_gradient(batch)[0]) / 2 == pytest.approx(0.152731, abs=1e-6)
    for rows, expected in [(slice(0, 3), 0.113724), (slice(3, 6), 0.191738)]:
        group = {name: tensor[rows] for name, tensor in batch.items()}
        assert float(loss_gradient(group)[0]) == pytest.approx(expected, abs=1e-6)


def test_the_gradient_is_that_of_a_constant_mean_or_not(batch):
    sampled = batch["is_action_BT"]

    def full(logp_N):  # the formula, mean and all, written out for the two groups of three
        logp_BT = torch.zeros(6, 7).masked_scatter(sampled, logp_N)
        old_BT = torch.where(sampled, batch["old_logp_BT"], 0)
        score = 0.1 * (logp_BT - old_BT).sum(1).reshape(2, 3)
        goal = batch["return_B"].reshape(2, 3)
        gap = score - score.mean(1, keepdim=True) - (goal - goal.mean(1, keepdim=True))
        return (gap.square().sum(1) / 4).sum()

    logp_N = batch["logp_BT"][sampled].clone().requires_grad_()
    assert torch.autograd.gradcheck(full, logp_N)
    (expected,) = torch.autograd.grad(full(logp_N), logp_N)
    _, grad_BT = loss_gradient(batch)
    torch.testing.assert_close(grad_BT[sampled], expected, atol=1e-12, rtol=0)
    assert grad_BT[~sampled].eq(0).all() and expected.abs().min() > 1e-4


def test_on_the_sampling_policy_it_has_the_gradient_of_scaled_leave_one_out(batch):
    _, grad_BT = loss_gradient(batch | {"logp_BT": batch["old_logp_BT"]}, beta=0.3)
    loo_BT = bind(advantages.loo, batch).advantage_BT
    torch.testing.assert_close(grad_BT, -0.3 * loo_BT / 3)  # groups of three: N / (N - 1) is theirs


def test_the_optimum_has_no_loss_and_no_gradient(batch):
    length_B1 = batch["is_action_BT"].sum(1, keepdim=True)
    goal_BT = batch["old_logp_BT"] + batch["return_B"][:, None] / (0.1 * length_B1)
    loss, grad_BT = loss_gradient(batch | {"logp_BT": goal_BT})
    assert float(loss) < 1e-20 and grad_BT.abs().max() < 1e-12


def test_a_trajectory_without_sampled_tokens_keeps_its_advantage():
    tensors = {
        "logp_BT": torch.zeros(3, 1, dtype=torch.float64), "old_logp_BT": torch.zeros(3, 1, dtype=torch.float64),
        "is_action_BT": torch.tensor([[True], [True], [False]]),
        "return_B": torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64),
        "group_B": torch.zeros(3, dtype=torch.long), "trajectory_B": torch.arange(3),
    }  # fmt: skip
    loss, grad_BT = loss_gradient(tensors, beta=1.0)
    # A = (-1, 0, 1), S = 0: (1 + 0 + 1) / (2 * 2), and the errors less their mean, (1, 0, -1) / 2
    assert float(loss) == 0.5 and grad_BT[:, 0].tolist() == [0.5, 0.0, 0.0]


def test_row_order_and_padding_do_not_matter():
    tensors = ragged(0)
    loss, grad_BT = loss_gradient(tensors)
    order = torch.tensor([11, 3, 0, 7, 2, 8, 1, 10, 4, 6, 5, 9])
    shuffled = {name: tensor[order] for name, tensor in tensors.items()}
    shuffled["group_B"] = 90 - 7 * shuffled["group_B"]
    padded = {
        n: torch.nn.functional.pad(v, (0, 3), value=False if v.dtype == torch.bool else torch.nan)
        if v.dim() == 2
        else v
        for n, v in tensors.items()
    }
    for other, back in ((shuffled, order), (padded, torch.arange(12))):
        other_loss, other_grad_BT = loss_gradient(other)
        torch.testing.assert_close(other_loss, loss, atol=1e-12, rtol=0)
        torch.testing.assert_close(other_grad_BT[:, :6], grad_BT[back], atol=1e-12, rtol=0)


def test_groups_of_one_and_unscorable_trajectories(batch):
    batch["group_B"] = torch.tensor([0, 1, 1, 2, 2, 2])
    batch["return_B"][1] = torch.nan  # group 1 is left with one
    loss, grad_BT = loss_gradient(batch)
    assert grad_BT[:3].eq(0).all() and grad_BT[3].abs().sum() > 0
    assert float(loss) == pytest.approx(0.191738, abs=1e-6)  # three groups, two of them without a loss
    batch["return_B"][:] = torch.nan
    loss, grad_BT = loss_gradient(batch)
    assert float(loss) == 0 and grad_BT.eq(0).all()


def test_gradients_flow_through_the_log_prob_alone(batch):
    names = ("logp_BT", "old_logp_BT", "return_B")
    tensors = batch | {name: batch[name].clone().requires_grad_() for name in names}
    bind(gvpo_loss, with_advantage(tensors)).backward()
    assert tensors["logp_BT"].grad.isfinite().all() and tensors["old_logp_BT"].grad is None
    assert tensors["return_B"].grad is None


def test_single_precision_stays_single(batch):
    tensors = {n: v.float() if v.is_floating_point() else v for n, v in batch.items()}
    assert bind(gvpo_loss, with_advantage(tensors)).dtype == torch.float32


def test_wrong_inputs(batch):
    fn, batch = gvpo_loss, with_advantage(batch)
    for beta in (0, -0.1, float("nan")):
        with pytest.raises(ValueError, match=rf"beta={beta} must be finite and > 0"):
            bind(partial(fn, beta=beta), batch)
    with pytest.raises(ValueError, match="old_logp_BT has B=5"):
        bind(fn, batch | {"old_logp_BT": batch["old_logp_BT"][:5]})
    with pytest.raises(ValueError, match="return_B has B=5"):
        bind(fn, batch | {"return_B": batch["return_B"][:5]})
    with pytest.raises(ValueError, match="differs between rows of one trajectory"):
        bind(fn, batch | {"trajectory_B": torch.tensor([0, 0, 2, 3, 4, 5])})
    with pytest.raises(ValueError, match="needs logp_BT, which this run does not provide"):
        bind(fn, {name: tensor for name, tensor in batch.items() if name != "logp_BT"})
