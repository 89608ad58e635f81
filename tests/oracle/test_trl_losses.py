"""Policy losses against those of trl's trainers: value, gradient with respect to the log-probs, metrics.

trl averages over all rows of the batch, ours over those with a sampled token: where a batch holds rows
without one, our mean is scaled by the share of the others.  trl clamps no log-ratio, so these batches hold
none beyond 20 nats.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch

from lit_agentrl.rl.policy import aggregation, clipping, entropy, kl, ratios
from tests.oracle.batches import batches, filled, random_batch
from tests.oracle.losses import NORM, ours, with_gradient
from tests.oracle.oracles import load, trainer, trl_loss

pytestmark = pytest.mark.oracle

TOLERANCE = 1e-9
TRAINERS = {
    "GRPO": ("trl.trainer.grpo_trainer", "GRPOTrainer"),
    "RLOO": ("trl.trainer.rloo_trainer", "RLOOTrainer"),
    "GMPO": ("trl.experimental.gmpo", "GMPOTrainer"),
    "GSPO-token": ("trl.experimental.gspo_token", "GRPOTrainer"),
}
PER_ROW = aggregation.seq_mean_token_mean
# trl's loss_type, our aggregation, whether it averages over rows
TYPES = {
    "grpo": (PER_ROW, True),
    "bnpo": (aggregation.token_mean, False),
    "dapo": (aggregation.token_mean, False),
    "dr_grpo": (partial(aggregation.seq_mean_token_sum_norm, max_tokens=NORM), True),
}
HIGHER = partial(clipping.clip_higher, low=0.2, high=0.28)


def theirs(which: str, batch: Any, *, of_rows: bool = False, **settings: Any) -> Any:
    """Loss, gradient, and the trainer, whose metrics and state have been updated."""
    module, name = TRAINERS[which]
    compute_loss = getattr(load(module), name)._compute_loss
    made = trainer(max_completion_length=NORM, **{"epsilon_high": 0.28, **settings})
    advantage = batch["row_advantage_B"] if of_rows else filled(batch, "advantage_BT")

    def loss_of(logp_BT: Any) -> Any:
        return trl_loss(compute_loss, made, batch, logp_BT=logp_BT, advantage=advantage)

    return *with_gradient(loss_of, filled(batch, "logp_BT", 0.0)), made


def rows_with_tokens(batch: Any) -> float:
    return float(batch["is_action_BT"].any(1).double().mean())


def per_row(batch: Any) -> Any:
    return batch | {"advantage_BT": batch["row_advantage_BT"]}


@pytest.mark.parametrize("delta", [None, 1.5])
@pytest.mark.parametrize("level", ["token", "sequence", "sequence_token"])
@pytest.mark.parametrize("loss_type", TYPES)
def test_grpo_family(agree, loss_type, level, delta):
    """``delta``, the bound of INTELLECT-2, is our dual clip; it lies above 1 + epsilon_high."""
    aggregate, is_row_mean = TYPES[loss_type]
    which = "GSPO-token" if level == "sequence_token" else "GRPO"
    clip = HIGHER if delta is None else partial(clipping.dual, low=0.2, high=0.28, cap=delta)
    pair = (f"ratios.{level}", which)
    for seed, batch in batches():
        expected, gradient, made = theirs(
            which, batch, loss_type=loss_type, importance_sampling_level=level, args_delta=delta
        )
        value, slope, metrics = ours(batch, ratio=getattr(ratios, level), clip=clip, aggregate=aggregate)
        share = rows_with_tokens(batch) if is_row_mean else 1.0
        agree(value * share, expected, seed=seed, pair=pair, tolerance=TOLERANCE)
        agree(slope * share, gradient, seed=seed, pair=pair, tolerance=TOLERANCE)
        if delta is None:
            logged = made._metrics["train"]
            assert metrics["clip_share_low"] == pytest.approx(logged["clip_ratio/low_mean"][0])
            assert metrics["clip_share_high"] == pytest.approx(logged["clip_ratio/high_mean"][0])


@pytest.mark.parametrize("cap", [5.0, 1.3])
def test_cispo(agree, cap):
    clip = partial(clipping.cispo, cap=cap)
    for seed, batch in batches():
        expected, gradient, _ = theirs("GRPO", batch, loss_type="cispo", epsilon_high=cap)
        value, slope, _ = ours(batch, ratio=ratios.token, clip=clip, aggregate=aggregation.token_mean)
        pair = ("clipping.cispo", "GRPO")
        agree(value, expected, seed=seed, pair=pair, tolerance=TOLERANCE)
        agree(slope, gradient, seed=seed, pair=pair, tolerance=TOLERANCE)


def test_kl_in_the_loss(agree):
    """trl's k3 has no bounds; here it stays below our 10."""
    term = kl.KLInLoss(estimator=kl.k3, coef=0.04)
    for seed, batch in batches():
        batch["ref_logp_BT"] = batch["logp_BT"] + 0.3 * batch["value_BT"].clamp(-3, 3)
        expected, gradient, made = theirs("GRPO", batch, loss_type="bnpo", beta=0.04)
        value, slope, metrics = ours(
            batch, ratio=ratios.token, clip=HIGHER, aggregate=aggregation.token_mean, kl=term
        )
        pair = ("kl.KLInLoss", "GRPO")
        agree(value, expected, seed=seed, pair=pair, tolerance=TOLERANCE)
        agree(slope, gradient, seed=seed, pair=pair, tolerance=TOLERANCE)
        assert metrics["ref_kl"] == pytest.approx(made._metrics["train"]["kl"][0])


@pytest.mark.parametrize(("loss_type", "coef"), [("bnpo", 0.01), ("dapo", 0.5)])
def test_entropy_bonus(agree, loss_type, coef):
    """trl's bonus is a mean over tokens whatever the loss type; ours follows algo/aggregate."""
    term, pair = partial(entropy.bonus, coef=coef), ("entropy.bonus", "GRPO")
    for seed, batch in batches():
        expected, gradient, _ = theirs(
            "GRPO", batch, loss_type=loss_type, _entropy_bonus_enabled=True, entropy_coef=coef
        )
        value, slope, _ = ours(
            batch, ratio=ratios.token, clip=HIGHER, aggregate=aggregation.token_mean, entropy=term
        )
        agree(value, expected, seed=seed, pair=pair, tolerance=TOLERANCE)
        agree(slope, gradient, seed=seed, pair=pair, tolerance=TOLERANCE)


def idle_rows(batch: Any) -> Any:
    """What rows without a sampled token add where trl's ratio is one per row: 1 times the advantage."""
    idle_B = ~batch["is_action_BT"].any(1)
    return -torch.where(idle_B, batch["row_advantage_B"], 0.0).mean()


@pytest.mark.parametrize(("low", "high"), [(0.4, 0.4), (0.1, 0.05)])
def test_gmpo(agree, low, high):
    clip = partial(clipping.log_wide, low=low, high=high)
    for seed, batch in batches():
        expected, gradient, made = theirs("GMPO", batch, of_rows=True, epsilon_low=low, epsilon_high=high)
        value, slope, metrics = ours(per_row(batch), ratio=ratios.token, clip=clip, aggregate=PER_ROW)
        share, pair = rows_with_tokens(batch), ("clipping.log_wide", "GMPO")
        agree(value * share + idle_rows(batch), expected, seed=seed, pair=pair, tolerance=TOLERANCE)
        agree(slope * share, gradient, seed=seed, pair=pair, tolerance=TOLERANCE)
        logged = made._metrics["train"]
        assert metrics["clip_share_low"] == pytest.approx(logged["clip_ratio/low_mean"][0])
        assert metrics["clip_share_high"] == pytest.approx(logged["clip_ratio/high_mean"][0])


@pytest.mark.parametrize(("positive", "negative"), [(1.0, 1.05), (0.5, 4.0)])
def test_sapo(agree, positive, negative):
    clip = partial(clipping.soft_gate, tau_positive=positive, tau_negative=negative)
    for seed, batch in batches():
        expected, gradient, _ = theirs(
            "GRPO", batch, loss_type="sapo", args_sapo_temperature_pos=positive,
            args_sapo_temperature_neg=negative,
        )  # fmt: skip
        value, slope, _ = ours(batch, ratio=ratios.token, clip=clip, aggregate=PER_ROW)
        share, pair = rows_with_tokens(batch), ("clipping.soft_gate", "GRPO")
        agree(value * share, expected, seed=seed, pair=pair, tolerance=TOLERANCE)
        agree(slope * share, gradient, seed=seed, pair=pair, tolerance=TOLERANCE)


def test_rloo(agree):
    """The plain product over the trajectory, clipped: one loss per row, so a mean over tokens is that loss."""
    for seed, batch in batches():
        expected, gradient, _ = theirs("RLOO", batch, of_rows=True)
        value, slope, _ = ours(per_row(batch), ratio=ratios.trajectory, clip=HIGHER, aggregate=PER_ROW)
        share, pair = rows_with_tokens(batch), ("ratios.trajectory", "RLOO")
        agree(value * share + idle_rows(batch), expected, seed=seed, pair=pair, tolerance=TOLERANCE)
        agree(slope * share, gradient, seed=seed, pair=pair, tolerance=TOLERANCE)


def test_limits_that_trl_lacks():
    """A log-ratio stops at 20 nats and k3 at 10, without gradient there; trl's grow on."""
    batch = random_batch(0, empty_rows=False)
    at = batch["is_action_BT"]
    batch["advantage_BT"] = torch.where(at, -1.0, torch.nan)
    batch["old_logp_BT"] = torch.where(at, -25.0, torch.nan)
    batch["logp_BT"] = torch.where(at, -3.0, torch.nan)
    expected, gradient, _ = theirs("GRPO", batch, loss_type="bnpo")
    value, slope, _ = ours(batch, ratio=ratios.token, clip=HIGHER, aggregate=aggregation.token_mean)
    assert float(expected) == pytest.approx(math.exp(22)) and gradient[at].gt(0).all()
    assert float(value) == pytest.approx(math.exp(20)) and slope.eq(0).all()

    batch["old_logp_BT"], batch["ref_logp_BT"] = batch["logp_BT"], batch["logp_BT"] + 4.0
    expected, gradient, _ = theirs("GRPO", batch, loss_type="bnpo", beta=1.0)
    value, slope, _ = ours(
        batch, ratio=ratios.token, clip=HIGHER, aggregate=aggregation.token_mean,
        kl=kl.KLInLoss(estimator=kl.k3, coef=1.0),
    )  # fmt: skip
    assert float(expected) == pytest.approx(1 + math.exp(4) - 5)
    assert float(value) == pytest.approx(1 + 10)
    count = int(at.sum())
    assert torch.allclose(slope[at], torch.tensor(1 / count))  # of the ratio alone
    assert torch.allclose(gradient[at], torch.tensor((1 + 1 - math.exp(4)) / count))
