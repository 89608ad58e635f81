"""GVPO: hand-worked numbers, and a policy gradient equal to that of the squared error."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from lit_agentrl.rl import advantages, aggregation, clipping, ratios
from lit_agentrl.rl.algorithm import Algorithm, policy_loss
from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.gvpo import gvpo, gvpo_loss


def loss_gradient(tensors, beta=0.1):
    tensors = tensors | {"logp_BT": tensors["logp_BT"].clone().requires_grad_()}
    loss = bind(partial(gvpo_loss, beta=beta), tensors)
    (grad_BT,) = torch.autograd.grad(loss, tensors["logp_BT"])
    return loss.detach(), grad_BT


def policy_gradient(tensors, beta=0.1, aggregate=aggregation.seq_mean_token_sum, micro_batches=1):
    """Advantages from the whole batch, then micro-batches that need not hold whole groups."""
    mix = Algorithm(
        name="gvpo",
        advantage=partial(gvpo, beta=beta),
        ratio=ratios.none,
        clip=clipping.none,
        aggregate=aggregate,
    )
    tensors = tensors | {"advantage_BT": bind(mix.advantage, tensors).advantage_BT}
    tensors["logp_BT"] = tensors["logp_BT"].clone().requires_grad_()
    weights, total = bind(aggregate, tensors), torch.zeros(())
    for rows in torch.arange(len(tensors["logp_BT"])).tensor_split(micro_batches):
        part = {name: tensor[rows] for name, tensor in tensors.items()}
        total = total + policy_loss(mix, tensors=part, weight_BT=weights.weight_BT[rows])[0]
    aggregation.divide(total, weights.denominator).backward()
    return tensors["logp_BT"].grad


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
    assert float(bind(gvpo_loss, batch)) == pytest.approx(0.152731, abs=1e-6)
    for rows, expected in [(slice(0, 3), 0.113724), (slice(3, 6), 0.191738)]:
        group = {name: tensor[rows] for name, tensor in batch.items()}
        assert float(bind(partial(gvpo_loss, beta=0.1), group)) == pytest.approx(expected, abs=1e-6)


def test_the_gradient_is_that_of_a_constant_mean_or_not(batch):
    sampled = batch["is_action_BT"]

    def full(logp_N):  # the formula, mean and all, written out for the two groups of three
        logp_BT = torch.zeros(6, 7).masked_scatter(sampled, logp_N)
        old_BT = torch.where(sampled, batch["old_logp_BT"], 0)
        score = 0.1 * (logp_BT - old_BT).sum(1).reshape(2, 3)
        goal = batch["return_B"].reshape(2, 3)
        gap = score - score.mean(1, keepdim=True) - (goal - goal.mean(1, keepdim=True))
        return (gap.square().sum(1) / 4).mean()

    logp_N = batch["logp_BT"][sampled].clone().requires_grad_()
    assert torch.autograd.gradcheck(full, logp_N)
    (expected,) = torch.autograd.grad(full(logp_N), logp_N)
    _, grad_BT = loss_gradient(batch)
    torch.testing.assert_close(grad_BT[sampled], expected, atol=1e-12, rtol=0)
    assert grad_BT[~sampled].eq(0).all() and expected.abs().min() > 1e-4


@pytest.mark.parametrize("beta", [0.1, 0.7])
def test_the_policy_gradient_is_that_of_the_loss(batch, beta):
    for tensors in (batch, *map(ragged, range(5))):
        _, expected = loss_gradient(tensors, beta)
        assert expected.abs().max() > 1e-3
        count = len(tensors["trajectory_B"][tensors["is_action_BT"].any(1)].unique())
        for parts in (1, 3, len(expected)):
            mean = policy_gradient(tensors, beta, micro_batches=parts)
            torch.testing.assert_close(mean, expected, atol=1e-9, rtol=0)
        total = policy_gradient(tensors, beta, aggregation.token_sum)
        torch.testing.assert_close(total, count * expected, atol=1e-9, rtol=0)


def test_on_the_sampling_policy_it_is_scaled_leave_one_out(batch):
    tensors = batch | {"logp_BT": batch["old_logp_BT"]}
    ours = bind(partial(gvpo, beta=0.3), tensors).advantage_BT
    torch.testing.assert_close(ours, 0.3 * bind(advantages.loo, tensors).advantage_BT)


def test_off_policy_it_is_leave_one_out_of_what_the_policy_has_not_learnt_yet(batch):
    delta_BT = torch.where(batch["is_action_BT"], batch["logp_BT"] - batch["old_logp_BT"], 0)
    rest = batch | {"return_B": batch["return_B"] - 0.3 * delta_BT.sum(1)}
    ours = bind(partial(gvpo, beta=0.3), batch).advantage_BT
    torch.testing.assert_close(ours, 0.3 * bind(advantages.loo, rest).advantage_BT)


def test_the_optimum_has_no_loss_and_no_gradient(batch):
    length_B1 = batch["is_action_BT"].sum(1, keepdim=True)
    goal_BT = batch["old_logp_BT"] + batch["return_B"][:, None] / (0.1 * length_B1)
    loss, grad_BT = loss_gradient(batch | {"logp_BT": goal_BT})
    assert float(loss) < 1e-20 and grad_BT.abs().max() < 1e-12


def test_row_order_and_padding_do_not_matter():
    tensors = ragged(0)
    loss, grad_BT = loss_gradient(tensors)
    advantage_BT = bind(gvpo, tensors).advantage_BT
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
        other_advantage_BT = bind(gvpo, other).advantage_BT
        torch.testing.assert_close(other_advantage_BT[:, :6], advantage_BT[back], atol=1e-12, rtol=0)


def test_groups_of_one_and_unscorable_trajectories(batch):
    batch["group_B"] = torch.tensor([0, 1, 1, 2, 2, 2])
    batch["return_B"][1] = torch.nan  # group 1 is left with one
    loss, grad_BT = loss_gradient(batch)
    advantage_BT = bind(gvpo, batch).advantage_BT
    assert grad_BT[:3].eq(0).all() and advantage_BT[:3].eq(0).all() and grad_BT[3].abs().sum() > 0
    assert float(loss) == pytest.approx(0.191738 / 3, abs=1e-6)  # three groups, two of them without a loss
    batch["return_B"][:] = torch.nan
    loss, grad_BT = loss_gradient(batch)
    assert float(loss) == 0 and grad_BT.eq(0).all() and bind(gvpo, batch).advantage_BT.eq(0).all()


def test_gradients_flow_through_the_log_prob_alone(batch):
    names = ("logp_BT", "old_logp_BT", "return_B")
    tensors = batch | {name: batch[name].clone().requires_grad_() for name in names}
    bind(gvpo_loss, tensors).backward()
    assert tensors["logp_BT"].grad.isfinite().all() and tensors["old_logp_BT"].grad is None
    assert tensors["return_B"].grad is None
    assert not bind(gvpo, tensors).advantage_BT.requires_grad


def test_single_precision_stays_single(batch):
    tensors = {n: v.float() if v.is_floating_point() else v for n, v in batch.items()}
    assert bind(gvpo_loss, tensors).dtype == torch.float32
    assert bind(gvpo, tensors).advantage_BT.dtype == torch.float32


@pytest.mark.parametrize("fn", [gvpo_loss, gvpo])
def test_wrong_inputs(batch, fn):
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
