"""Whole losses against hand-worked numbers; splits, padding, gradient flow, metrics, errors."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.credit import advantages
from lit_agentrl.rl.objective import add_metrics, metric_values
from lit_agentrl.rl.policy import aggregation, clipping, entropy, kl, ratios
from lit_agentrl.rl.policy.algorithm import Algorithm, policy_loss
from lit_agentrl.rl.policy.penalties import shape_rewards

LINEAR = partial(clipping.symmetric, epsilon=0.2)
HIGHER = clipping.clip_higher
SEQ = aggregation.seq_mean_token_mean
GRPO, LOO = advantages.group_mean_std, advantages.loo
LOSSES = [
    (GRPO, ratios.token, LINEAR, aggregation.token_mean, 0.112255),
    (GRPO, ratios.token, LINEAR, SEQ, -0.010906),
    (GRPO, ratios.token, LINEAR, aggregation.seq_mean_token_sum, 0.44902),
    (
        advantages.group_mean,
        ratios.token,
        LINEAR,
        partial(aggregation.seq_mean_token_sum_norm, max_tokens=7),
        0.041499,
    ),
    (GRPO, ratios.token, partial(HIGHER, low=0.2, high=0.28), aggregation.token_mean, 0.108407),
    (GRPO, ratios.token, partial(HIGHER, low=0.15, high=0.25), aggregation.token_mean, 0.116551),
    (GRPO, ratios.token, partial(HIGHER, low=0.2, high=0.3), SEQ, -0.016102),  # DELTA
    (GRPO, ratios.token, partial(clipping.dual, cap=1.3), aggregation.token_mean, 0.106526),
    (GRPO, ratios.sequence, partial(HIGHER, low=3e-4, high=4e-4), SEQ, -0.000213),
    (GRPO, ratios.sequence, partial(HIGHER, low=0.05, high=0.05), SEQ, -0.024806),
    (GRPO, ratios.sequence_token, partial(HIGHER, low=0.05, high=0.05), SEQ, -0.024806),
    (LOO, ratios.token, LINEAR, SEQ, -0.008393),
    (LOO, ratios.turn, LINEAR, aggregation.seq_mean_turn_mean, -0.038753),
    (LOO, ratios.trajectory, LINEAR, SEQ, -0.084963),
]
AGGREGATES = [
    aggregation.token_mean,
    aggregation.token_sum,
    aggregation.seq_mean_token_mean,
    aggregation.seq_mean_token_sum,
    partial(aggregation.seq_mean_token_sum_norm, max_tokens=5),
    aggregation.turn_mean,
    aggregation.seq_mean_turn_mean,
]


def loss_of(batch, advantage, ratio, clip, aggregate):
    mix = Algorithm(name="test", advantage=advantage, ratio=ratio, clip=clip, aggregate=aggregate)
    tensors = batch | {"advantage_BT": bind(advantage, batch).advantage_BT}
    weights = bind(aggregate, tensors)
    total, _ = policy_loss(mix, tensors=tensors, weight_BT=weights.weight_BT)
    return aggregation.divide(total, weights.denominator)


@pytest.mark.parametrize(("advantage", "ratio", "clip", "aggregate", "expected"), LOSSES)
def test_losses(batch, advantage, ratio, clip, aggregate, expected):
    assert float(loss_of(batch, advantage, ratio, clip, aggregate)) == pytest.approx(expected, abs=1e-6)


def random_batch(num_rows: int = 8, num_tokens: int = 9) -> dict[str, torch.Tensor]:
    """Four groups of two; row 3 holds no sampled token; garbage wherever a token was not sampled."""
    generator = torch.Generator().manual_seed(0)
    is_action_BT = torch.rand(num_rows, num_tokens, generator=generator) < 0.6
    is_action_BT[3] = False
    names = ("logp_BT", "old_logp_BT", "ref_logp_BT", "entropy_BT", "advantage_BT")
    noise = {name: torch.randn(num_rows, num_tokens, generator=generator) for name in names}
    return {
        **{name: torch.where(is_action_BT, 0.3 * value - 1, torch.nan) for name, value in noise.items()},
        "is_action_BT": is_action_BT,
        "turn_BT": torch.arange(num_tokens).repeat(num_rows, 1) // 3,
        "trajectory_B": torch.arange(num_rows),
        "group_B": torch.arange(num_rows) // 2,
    }


def full_mix(ratio=ratios.token, clip=HIGHER, aggregate=SEQ) -> Algorithm:
    return Algorithm(
        name="test",
        advantage=GRPO,
        ratio=ratio,
        clip=clip,
        aggregate=aggregate,
        kl=kl.KLInLoss(estimator=kl.k3, coef=0.1),
        entropy=partial(entropy.bonus, coef=0.1),
    )


def step(mix, batch, micro_batches, ranks):
    """Loss, gradient and metrics when ``ranks`` lists of rows are each cut into micro-batches."""
    batch = batch | {name: batch[name].clone().requires_grad_() for name in ("logp_BT", "entropy_BT")}
    total, denominator, metrics = torch.zeros(()), None, {}
    for rows in ranks:
        local = {name: tensor[rows] for name, tensor in batch.items()}
        weights = bind(mix.aggregate, local)
        if weights.denominator is not None:
            denominator = weights.denominator + (0 if denominator is None else denominator)
        for piece in torch.arange(len(rows)).tensor_split(micro_batches):
            tensors = {name: tensor[piece] for name, tensor in local.items()}
            part, sums = policy_loss(mix, tensors=tensors, weight_BT=weights.weight_BT[piece])
            total, metrics = total + part, add_metrics(metrics, sums)
    loss = aggregation.divide(total, denominator)
    loss.backward()
    return loss.detach(), batch["logp_BT"].grad, batch["entropy_BT"].grad, metric_values(metrics)


@pytest.mark.parametrize("ratio", [ratios.token, ratios.turn, ratios.sequence])
@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_splitting_changes_nothing(ratio, aggregate):
    mix, batch = full_mix(ratio=ratio, aggregate=aggregate), random_batch()
    whole = step(mix, batch, 1, [list(range(8))])
    splits = [
        (2, [list(range(8))]),
        (8, [list(range(8))]),
        (1, [[0, 1], [2, 3, 4, 5, 6, 7]]),
        (2, [[5, 3], [7, 0, 1, 2], [6, 4]]),
    ]
    for micro_batches, ranks in splits:
        loss, logp_grad, entropy_grad, metrics = step(mix, batch, micro_batches, ranks)
        torch.testing.assert_close(loss, whole[0], atol=1e-9, rtol=0)
        torch.testing.assert_close(logp_grad, whole[1], atol=1e-9, rtol=0)
        torch.testing.assert_close(entropy_grad, whole[2], atol=1e-9, rtol=0)
        assert metrics == pytest.approx(whole[3], abs=1e-9)


def test_padding_changes_nothing():
    mix, batch = full_mix(), random_batch()
    loss, grad, _, metrics = step(mix, batch, 1, [list(range(8))])
    fill = {torch.bool: False, torch.int64: -1}
    padded = {
        name: torch.cat([v, torch.full((8, 4), fill.get(v.dtype, torch.nan)).to(v.dtype)], 1)
        if v.dim() == 2
        else v
        for name, v in batch.items()
    }
    padded_loss, padded_grad, _, padded_metrics = step(mix, padded, 1, [list(range(8))])
    torch.testing.assert_close(padded_loss, loss, atol=1e-12, rtol=0)
    torch.testing.assert_close(padded_grad[:, :9], grad, atol=1e-12, rtol=0)
    assert padded_grad[:, 9:].eq(0).all() and padded_metrics == pytest.approx(metrics)


@pytest.mark.parametrize("clip", [HIGHER, clipping.cispo, clipping.dual])
def test_only_log_probs_and_entropies_carry_gradient(clip):
    batch = random_batch()
    for name in ("logp_BT", "old_logp_BT", "ref_logp_BT", "entropy_BT", "advantage_BT"):
        batch[name].requires_grad_()
    mix = full_mix(clip=clip)
    total, metrics = policy_loss(mix, tensors=batch, weight_BT=bind(SEQ, batch).weight_BT)
    total.backward()
    assert batch["old_logp_BT"].grad is None and batch["ref_logp_BT"].grad is None
    assert batch["advantage_BT"].grad is None
    for name in ("logp_BT", "entropy_BT"):
        grad = batch[name].grad
        assert grad.isfinite().all() and grad[~batch["is_action_BT"]].eq(0).all() and grad.abs().sum() > 0
    assert not any(value.requires_grad for value in metrics.values())


def test_metrics(batch):
    tensors = batch | {"advantage_BT": bind(GRPO, batch).advantage_BT, "entropy_BT": batch["logp_BT"].abs()}
    mix = Algorithm(name="grpo", advantage=GRPO, ratio=ratios.token, clip=LINEAR, aggregate=SEQ)
    _, sums = policy_loss(mix, tensors=tensors, weight_BT=bind(SEQ, batch).weight_BT)
    deltas = torch.where(batch["is_action_BT"], batch["logp_BT"] + 1, 0)
    values = metric_values(sums)
    assert values["approx_kl"] == pytest.approx(-float(deltas.sum()) / 24)
    assert values["ratio_max"] == pytest.approx(float(deltas.max().exp()))
    # Above 1.2 where the advantage is positive: .30 of A1, .20 of B1.
    assert values["clip_share_high"] == pytest.approx(2 / 24)
    # Below 0.8 where it is negative: -.30 of A2, -.40 and -.25 of B3.
    assert values["clip_share_low"] == pytest.approx(3 / 24)
    assert values["entropy"] == pytest.approx(1 - float(deltas.sum()) / 24)
    assert values["ref_kl"] == pytest.approx(0.024929, abs=1e-6)


def test_kl_in_the_reward_shapes_tokens_and_returns(batch):
    mix = Algorithm(
        name="rloo",
        advantage=LOO,
        ratio=ratios.none,
        clip=clipping.none,
        aggregate=aggregation.seq_mean_token_sum,
        kl=kl.KLInReward(estimator=kl.k1, coef=0.05),
    )
    assert mix.needs("ref_logp_BT")
    shaped = shape_rewards(mix.kl, tensors=batch)
    expected = torch.tensor([0.98, -0.02, 0.47, 0.99, 0.985, -0.125])
    torch.testing.assert_close(shaped["return_B"], expected, atol=1e-6, rtol=0)
    tokens_B = torch.where(batch["is_action_BT"], shaped["reward_BT"], 0).sum(1)
    torch.testing.assert_close(tokens_B, expected, atol=1e-6, rtol=0)
    batch |= {"trajectory_B": torch.tensor([0, 0, 2, 3, 4, 5]), "return_B": torch.zeros(6)}
    assert shape_rewards(mix.kl, tensors=batch)["return_B"][:2].tolist() == pytest.approx([-0.04, -0.04])
    assert shape_rewards(full_mix().kl, tensors=batch) == {}


def test_needs_are_read_from_signatures():
    plain = Algorithm(name="grpo", advantage=GRPO, ratio=ratios.token, clip=LINEAR, aggregate=SEQ)
    assert not plain.needs("ref_logp_BT") and not plain.needs("entropy_BT")
    assert not plain.requirements.whole_trajectories
    assert plain.requirements.min_members == 2
    full = full_mix(ratio=ratios.sequence)
    assert full.needs("ref_logp_BT") and full.needs("entropy_BT") and full.requirements.whole_trajectories
    assert replace(plain, advantage=advantages.mc_return).requirements.min_members == 1
    assert replace(plain, advantage=partial(GRPO, singleton="raw")).requirements.min_members == 1


def test_wrong_mixes_are_named():
    plain = Algorithm(name="grpo", advantage=GRPO, ratio=ratios.token, clip=LINEAR, aggregate=SEQ)
    with pytest.raises(ValueError, match=r"^clip\.epsilon=0\.2 never acts"):
        replace(plain, ratio=ratios.none).try_out(TrajectoryBatch.make_toy().to_dict())
    with pytest.raises(ValueError, match=r"low=2 must be in"):
        replace(plain, clip=partial(HIGHER, low=2)).try_out(TrajectoryBatch.make_toy().to_dict())
    with pytest.raises(ValueError, match=r"kl=.* must say in `place` where it acts"):
        replace(plain, kl=kl.k3)


def test_missing_tensors_are_named(batch):
    plain = Algorithm(name="grpo", advantage=GRPO, ratio=ratios.token, clip=LINEAR, aggregate=SEQ)
    weight_BT = bind(SEQ, batch).weight_BT
    with pytest.raises(ValueError, match="policy_loss needs advantage_BT"):
        policy_loss(plain, tensors=batch, weight_BT=weight_BT)
    tensors = batch | {"advantage_BT": bind(GRPO, batch).advantage_BT}
    with pytest.raises(ValueError, match="bonus needs entropy_BT"):
        policy_loss(full_mix(), tensors=tensors, weight_BT=weight_BT)
    with pytest.raises(ValueError, match="is_action_BT has B=6, but weight_BT has B=5"):
        policy_loss(plain, tensors=tensors, weight_BT=weight_BT[:5])
