"""GMPO's clip rule: hand-worked numbers, gradients, identities, invariance, errors."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.credit import advantages
from lit_agentrl.rl.policy import aggregation, clipping, ratios
from lit_agentrl.rl.policy.algorithm import Algorithm, policy_loss
from lit_agentrl.rl.policy.clipping import log_wide

SEQ = aggregation.seq_mean_token_mean
HUGE = {"low": 100.0, "high": 100.0}


def gmpo(ratio=ratios.token, **bounds) -> Algorithm:
    clip = partial(log_wide, **bounds)
    mix = Algorithm(name="gmpo", advantage=advantages.group_mean_std, ratio=ratio, clip=clip, aggregate=SEQ)
    mix.try_out(TrajectoryBatch.make_toy().to_dict())
    return mix


def with_advantage(batch):
    return batch | {"advantage_BT": bind(advantages.group_mean_std, batch).advantage_BT}


def loss_of(mix, tensors):
    weights = bind(mix.aggregate, tensors)
    total, metrics = policy_loss(mix, tensors=tensors, weight_BT=weights.weight_BT)
    return aggregation.divide(total, weights.denominator), metrics


def clipped(mix, tensors):
    """The rule itself on clean ratios."""
    return bind(mix.clip, tensors | {"ratio_BT": bind(mix.ratio, tensors)})


def gradient(mix, tensors):
    tensors = tensors | {"logp_BT": tensors["logp_BT"].clone().requires_grad_()}
    loss, _ = loss_of(mix, tensors)
    (grad_BT,) = torch.autograd.grad(loss, tensors["logp_BT"])
    return loss.detach(), grad_BT


@pytest.mark.parametrize(("bound", "expected"), [(0.4, -0.032747), (0.1, 0.00661)])
def test_losses(batch, bound, expected):
    loss, _ = loss_of(gmpo(low=bound, high=bound), with_advantage(batch))
    assert float(loss) == pytest.approx(expected, abs=1e-6)


def test_every_sampled_token_holds_the_loss_of_its_row(batch):
    tensors = with_advantage(batch)
    result = clipped(gmpo(low=0.1, high=0.1), tensors)
    # A1: .10 -.05 .30 .02, the .30 held at .10; A3 has an advantage of 0.
    expected = -0.999998 * torch.tensor((0.1 - 0.05 + 0.1 + 0.02) / 4).exp()
    sampled = result.loss_BT[0, batch["is_action_BT"][0]]
    torch.testing.assert_close(sampled, expected.expand(4), atol=1e-6, rtol=0)
    assert result.loss_BT[2].eq(0).all() and result.loss_BT[~batch["is_action_BT"]].eq(0).all()


def test_flags_mark_the_side_the_advantage_closes(batch):
    result = clipped(gmpo(low=0.12, high=0.1), with_advantage(batch))
    # Held at .1 where A > 0: .30 of A1, .20 of B1.  Held at -.12 where A < 0: -.30 of A2, -.40, -.25 of B3.
    # A3, with tokens beyond both, has A = 0.
    assert result.is_clipped_high_BT.nonzero().tolist() == [[0, 3], [3, 0]]
    assert result.is_clipped_low_BT.nonzero().tolist() == [[1, 0], [5, 0], [5, 6]]


def test_only_the_clipped_token_loses_its_gradient(batch):
    tensors = with_advantage(batch)
    _, grad_BT = gradient(gmpo(low=0.22, high=0.1), tensors)
    is_clipped_BT = torch.zeros_like(batch["is_action_BT"])
    is_clipped_BT[[0, 3, 1, 5, 5], [3, 0, 0, 0, 6]] = True
    is_free_BT = batch["is_action_BT"] & ~is_clipped_BT & (tensors["advantage_BT"] != 0)
    assert grad_BT[~is_free_BT].eq(0).all() and grad_BT[is_free_BT].ne(0).all()
    value_B = clipped(gmpo(low=0.22, high=0.1), tensors).loss_BT.sum(1) / batch["is_action_BT"].sum(1)
    expected_BT = (value_B / batch["is_action_BT"].sum(1) / 6)[:, None].expand(6, 7)
    torch.testing.assert_close(grad_BT[is_free_BT], expected_BT[is_free_BT])


def test_gradient_against_finite_differences(batch):
    tensors = with_advantage(batch)
    sampled = batch["is_action_BT"]

    def loss(logp_N):
        logp_BT = torch.full((6, 7), torch.nan).masked_scatter(sampled, logp_N)
        return loss_of(gmpo(low=0.22, high=0.12), tensors | {"logp_BT": logp_BT})[0]

    assert torch.autograd.gradcheck(loss, batch["logp_BT"][sampled].clone().requires_grad_())


def test_without_bounds_on_one_token_rows_it_is_no_clipping(batch):
    is_one_BT = torch.zeros_like(batch["is_action_BT"])
    is_one_BT[:, 0] = True  # every row of the example samples its first token
    tensors = with_advantage(batch | {"is_action_BT": is_one_BT})
    ours, grad_BT = gradient(gmpo(**HUGE), tensors)
    plain = Algorithm(
        name="plain",
        advantage=advantages.group_mean_std,
        ratio=ratios.token,
        clip=clipping.none,
        aggregate=SEQ,
    )
    expected, expected_grad_BT = gradient(plain, tensors)
    torch.testing.assert_close(ours, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(grad_BT, expected_grad_BT, atol=1e-12, rtol=0)


@pytest.mark.parametrize("ratio", [ratios.token, ratios.sequence, ratios.sequence_token])
def test_without_bounds_it_is_the_unclipped_sequence_ratio(batch, ratio):
    tensors = with_advantage(batch)
    ours, grad_BT = gradient(gmpo(ratio=ratio, **HUGE), tensors)
    gspo = Algorithm(
        name="gspo",
        advantage=advantages.group_mean_std,
        ratio=ratios.sequence,
        clip=clipping.none,
        aggregate=SEQ,
    )
    expected, expected_grad_BT = gradient(gspo, tensors)
    torch.testing.assert_close(ours, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(grad_BT, expected_grad_BT, atol=1e-12, rtol=0)


def test_the_ratio_axis_is_not_ignored(batch):
    tensors = with_advantage(batch)
    token, _ = loss_of(gmpo(low=0.1, high=0.1), tensors)
    sequence, _ = loss_of(gmpo(ratio=ratios.sequence, low=0.1, high=0.1), tensors)
    assert abs(float(token - sequence)) > 1e-3
    with pytest.raises(ValueError, match=r"^clip\.low=0\.4 never acts"):
        gmpo(ratio=ratios.none)


def test_advantages_that_differ_in_a_row_count_by_their_mean(batch):
    tensors = batch | {"advantage_BT": torch.where(batch["is_action_BT"], torch.arange(7.0), torch.nan)}
    mean_B = torch.where(batch["is_action_BT"], torch.arange(7.0), 0).sum(1) / batch["is_action_BT"].sum(1)
    mean_BT = torch.where(batch["is_action_BT"], mean_B[:, None], torch.nan)
    ours, expected = clipped(gmpo(), tensors), clipped(gmpo(), tensors | {"advantage_BT": mean_BT})
    torch.testing.assert_close(ours.loss_BT, expected.loss_BT)
    assert ours.loss_BT[0, 0] != 0


def test_row_order_padding_and_micro_batches_do_not_matter(batch):
    mix, tensors = gmpo(low=0.1, high=0.1), with_advantage(batch)
    loss, grad_BT = gradient(mix, tensors)
    order = torch.tensor([4, 0, 5, 2, 3, 1])
    shuffled, shuffled_grad_BT = gradient(mix, {n: v[order] for n, v in tensors.items()})
    torch.testing.assert_close(shuffled, loss, atol=1e-12, rtol=0)
    torch.testing.assert_close(shuffled_grad_BT, grad_BT[order], atol=1e-12, rtol=0)
    filling = {torch.bool: False, torch.int32: -1}
    padded = {
        n: torch.nn.functional.pad(v, (0, 3), value=filling.get(v.dtype, torch.nan)) if v.dim() == 2 else v
        for n, v in tensors.items()
    }
    padded_loss, padded_grad_BT = gradient(mix, padded)
    torch.testing.assert_close(padded_loss, loss, atol=1e-12, rtol=0)
    torch.testing.assert_close(padded_grad_BT[:, :7], grad_BT, atol=1e-12, rtol=0)
    weights = bind(SEQ, tensors)
    parts = [
        policy_loss(mix, tensors={n: v[p] for n, v in tensors.items()}, weight_BT=weights.weight_BT[p])[0]
        for p in (slice(0, 1), slice(1, 6))
    ]
    torch.testing.assert_close(aggregation.divide(sum(parts), weights.denominator), loss, atol=1e-12, rtol=0)


def test_filling_rows_and_garbage_ratios(batch):
    tensors = with_advantage(batch)
    ratio_BT = torch.where(batch["is_action_BT"], bind(ratios.token, tensors), torch.nan).requires_grad_()
    is_action_BT = batch["is_action_BT"].clone()
    is_action_BT[0] = False
    trajectory_B = torch.tensor([1, 1, 2, 3, 4, 5])  # the first row is filling for the second
    result = log_wide(
        ratio_BT=ratio_BT,
        advantage_BT=tensors["advantage_BT"],
        is_action_BT=is_action_BT,
        trajectory_B=trajectory_B,
    )
    result.loss_BT.sum().backward()
    assert result.loss_BT[0].eq(0).all() and result.loss_BT.isfinite().all()
    assert ratio_BT.grad is not None and ratio_BT.grad.isfinite().all() and ratio_BT.grad[1].abs().sum() > 0


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"low": 0.0}, r"low=0\.0 must be > 0"),
        ({"high": -0.4}, r"high=-0\.4 must be > 0"),
        ({"high": float("nan")}, r"high=nan must be > 0"),
    ],
)
def test_wrong_bounds(bounds, message):
    with pytest.raises(ValueError, match=message):
        gmpo(**bounds)


def test_wrong_tensors(batch):
    tensors = with_advantage(batch) | {"ratio_BT": torch.ones(6, 7)}
    with pytest.raises(ValueError, match="needs each trajectory in one row"):
        bind(log_wide, tensors | {"trajectory_B": torch.tensor([0, 0, 2, 3, 4, 5])})
    with pytest.raises(ValueError, match="advantage_BT has B=5"):
        bind(log_wide, tensors | {"advantage_BT": torch.ones(5, 7)})
    with pytest.raises(ValueError, match="log_wide needs trajectory_B"):
        bind(log_wide, {n: v for n, v in tensors.items() if n != "trajectory_B"})
