"""Policy losses and aggregation against verl's: value, gradient with respect to the log-probs, metrics."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from lit_agentrl.rl.policy import aggregation, clipping, ratios
from tests.oracle.batches import batches, filled, mask, random_batch
from tests.oracle.losses import MODES, NORM, aggregated, ours, with_gradient
from tests.oracle.oracles import load

pytestmark = pytest.mark.oracle

TOLERANCE = 1e-7  # verl adds 1e-8 to token counts
NEVER = 1e9  # verl's "vanilla" always has the dual clip
GSPO = partial(clipping.clip_higher, low=0.05, high=0.08)
TOKEN_MEAN, SEQUENCE_MEAN = aggregation.token_mean, aggregation.seq_mean_token_mean

# verl's name, its bounds; our ratio and clip
LOSSES = {
    "symmetric": ("vanilla", (0.2, 0.2, NEVER), ratios.token, clipping.symmetric),
    "higher": ("vanilla", (0.2, 0.28, NEVER), ratios.token, clipping.clip_higher),
    "dual": ("vanilla", (0.2, 0.2, 3.0), ratios.token, clipping.dual),
    "tight": ("vanilla", (0.1, 0.3, 1.35), ratios.token, partial(clipping.dual, low=0.1, high=0.3, cap=1.35)),
    "gspo": ("gspo", (0.05, 0.08, NEVER), ratios.sequence_token, GSPO),
    # the weight has no lower bound with us, as in the paper: with low = 1 verl has none either
    "cispo": ("cispo", (1.0, 4.0, NEVER), ratios.token, clipping.cispo),
    "cispo_tight": ("cispo", (1.0, 0.3, NEVER), ratios.token, partial(clipping.cispo, cap=1.3)),
}


def verl_config(mode, low, high, cap):
    return load("verl.workers.config").ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio=low, clip_ratio_low=low,
        clip_ratio_high=high, clip_ratio_c=cap, loss_agg_mode=mode,
        global_batch_info={"loss_scale_factor": NORM},
    )  # fmt: skip


def theirs(verl, loss, batch, mode, bounds=(0.2, 0.2, NEVER), advantage="advantage_BT"):
    """Loss, gradient and metrics; finite garbage where nothing was sampled."""
    metrics = {}

    def loss_of(logp_BT):
        value, found = verl.get_policy_loss_fn(loss)(
            filled(batch, "old_logp_BT", -1.0), logp_BT, filled(batch, advantage), mask(batch), mode,
            verl_config(mode, *bounds),
        )  # fmt: skip
        metrics.update(found)
        return value

    return *with_gradient(loss_of, filled(batch, "logp_BT", -1.3)), metrics


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", LOSSES)
def test_losses(verl, agree, case, mode):
    """Log-ratios beyond 20 nats included: both sides clamp, except in GSPO."""
    loss, bounds, ratio, clip = LOSSES[case]
    is_gspo = loss == "gspo"
    named = ratio if is_gspo else getattr(clip, "func", clip)
    pair = (f"{named.__module__.rsplit('.', 1)[1]}.{named.__name__}", loss)
    for seed, batch in batches(extreme=not is_gspo):
        expected, gradient, found = theirs(verl, loss, batch, mode, bounds)
        value, slope, metrics = ours(batch, ratio=ratio, clip=clip, aggregate=MODES[mode])
        agree(value, expected, seed=seed, pair=pair, tolerance=TOLERANCE)
        agree(slope, gradient, seed=seed, pair=pair, tolerance=TOLERANCE)
        if loss == "vanilla":
            # verl counts tokens held by its dual clip apart from those held by the two others
            shares = metrics["clip_share_low"] + metrics["clip_share_high"]
            expected_shares = found["actor/pg_clipfrac"] + found["actor/pg_clipfrac_lower"]
            assert shares == pytest.approx(expected_shares, abs=TOLERANCE)
            if not is_far(batch):
                assert metrics["approx_kl"] == pytest.approx(found["actor/ppo_kl"], abs=TOLERANCE)


def is_far(batch):
    """Whether a log-ratio exceeds 20 nats: verl's metric is clamped there, ours is not."""
    return bool((batch["logp_BT"] - batch["old_logp_BT"])[batch["is_action_BT"]].abs().max() > 20)


@pytest.mark.parametrize("ratio", [ratios.sequence, ratios.sequence_token])
def test_gspo(verl, agree, ratio):
    """With one advantage per row both forms of the ratio are verl's."""
    pair = (f"ratios.{ratio.__name__}", "gspo")
    for seed, batch in batches():
        expected, gradient, _ = theirs(
            verl, "gspo", batch, "seq-mean-token-mean", (0.05, 0.08, NEVER), "row_advantage_BT"
        )
        tensors = batch | {"advantage_BT": batch["row_advantage_BT"]}
        value, slope, _ = ours(tensors, ratio=ratio, clip=GSPO, aggregate=SEQUENCE_MEAN)
        agree(value, expected, seed=seed, pair=pair, tolerance=TOLERANCE)
        agree(slope, gradient, seed=seed, pair=pair, tolerance=TOLERANCE)


def test_limit_of_the_gspo_ratio(verl):
    """verl stops s at e^10 and takes its gradient; ours clamps log-ratios at 20 nats, token by token."""
    batch = random_batch(0, empty_rows=False)
    batch["logp_BT"] = batch["old_logp_BT"] + 12.0
    batch["advantage_BT"] = torch.where(batch["is_action_BT"], -1.0, torch.nan)
    expected, gradient, _ = theirs(verl, "gspo", batch, "seq-mean-token-mean", (0.05, 0.08, NEVER))
    value, slope, _ = ours(batch, ratio=ratios.sequence_token, clip=GSPO, aggregate=SEQUENCE_MEAN)
    assert float(expected) == pytest.approx(math.exp(10)) and gradient.eq(0).all()
    assert float(value) == pytest.approx(math.exp(12)) and slope[batch["is_action_BT"]].ne(0).all()


@pytest.mark.parametrize(("low", "high"), [(0.4, 0.4), (0.1, 0.05)])
def test_gmpo(verl, agree, low, high):
    """verl averages over all rows, we over those with a sampled token."""
    clip = partial(clipping.log_wide, low=low, high=high)
    pair = ("clipping.log_wide", "geo_mean")
    for seed, batch in batches():
        expected, gradient, _ = theirs(
            verl, "geo_mean", batch, "token-mean", (low, high, NEVER), "row_advantage_BT"
        )
        share = float(batch["is_action_BT"].any(1).double().mean())
        # advantages that differ within a row: ours uses their mean, also for the side on which to clip
        zero_sum_BT = torch.where(batch["turn_BT"] % 2 == 0, 1.0, -1.0)
        zero_sum_BT = zero_sum_BT - _row_mean(zero_sum_BT, batch)
        tensors = batch | {"advantage_BT": batch["row_advantage_BT"] + zero_sum_BT}
        value, slope, _ = ours(tensors, ratio=ratios.token, clip=clip, aggregate=SEQUENCE_MEAN)
        agree(value * share, expected, seed=seed, pair=pair, tolerance=TOLERANCE)
        agree(slope * share, gradient, seed=seed, pair=pair, tolerance=TOLERANCE)


def test_sapo(verl, agree):
    """At the temperatures of the paper, which are the defaults of both."""
    pair = ("clipping.soft_gate", "sapo")
    for seed, batch in batches():
        expected, gradient, _ = theirs(verl, "sapo", batch, "seq-mean-token-mean")
        value, slope, _ = ours(batch, ratio=ratios.token, clip=clipping.soft_gate, aggregate=SEQUENCE_MEAN)
        agree(value, expected, seed=seed, pair=pair, tolerance=TOLERANCE)
        agree(slope, gradient, seed=seed, pair=pair, tolerance=TOLERANCE)


def test_limit_of_the_gmpo_ratio(verl):
    """A loss with A < 0 has no upper clip: verl goes on to any ratio, ours to 20 nats per token."""
    batch = random_batch(0, empty_rows=False)
    batch["logp_BT"] = batch["old_logp_BT"] + 22.0
    batch["advantage_BT"] = torch.where(batch["is_action_BT"], -1.0, torch.nan)
    expected, gradient, _ = theirs(verl, "geo_mean", batch, "token-mean", (0.4, 0.4, NEVER))
    value, slope, _ = ours(batch, ratio=ratios.token, clip=clipping.log_wide, aggregate=SEQUENCE_MEAN)
    assert float(expected) == pytest.approx(math.exp(22)) and gradient[batch["is_action_BT"]].gt(0).all()
    assert float(value) == pytest.approx(math.exp(20)) and slope.eq(0).all()


def _row_mean(x_BT, batch):
    """(B, 1), over sampled tokens."""
    is_action_BT = batch["is_action_BT"]
    total_B1 = torch.where(is_action_BT, x_BT, 0.0).sum(1, keepdim=True)
    return total_B1 / is_action_BT.sum(1, keepdim=True).clamp(min=1)


def test_policy_gradient(verl, agree):
    """GPG's ``-logp A`` has the gradient of our ratio ``none``, whose value is ``-A``."""
    pair = ("ratios.none", "gpg")
    for seed, batch in batches(extreme=True):
        _, gradient, _ = theirs(verl, "gpg", batch, "token-mean")
        value, slope, _ = ours(batch, ratio=ratios.none, clip=clipping.none, aggregate=TOKEN_MEAN)
        agree(slope, gradient, seed=seed, pair=pair, tolerance=TOLERANCE)
        assert float(value) == pytest.approx(-float(batch["advantage_BT"][batch["is_action_BT"]].mean()))


def test_lower_bound_of_cispo(verl):
    """verl can hold the weight up from below; the paper bounds it from above only, and so do we."""
    batch = random_batch(0, empty_rows=False)
    batch["logp_BT"] = batch["old_logp_BT"] - 1.0
    _, gradient, _ = theirs(verl, "cispo", batch, "token-sum", (0.2, 4.0, NEVER))
    _, slope, _ = ours(batch, ratio=ratios.token, clip=clipping.cispo, aggregate=aggregation.token_sum)
    advantage_BT = filled(batch, "advantage_BT", 0.0)
    assert torch.allclose(gradient, -0.8 * advantage_BT)
    assert torch.allclose(slope, -math.exp(-1) * advantage_BT)


@pytest.mark.parametrize("mode", MODES)
def test_aggregation(verl, agree, mode):
    """Any loss per token; whole, and as verl's micro-batches with the counts of the whole batch."""
    aggregate = MODES[mode]
    pair = (f"aggregation.{getattr(aggregate, 'func', aggregate).__name__}", "agg_loss")
    for seed, batch in batches():
        loss_BT, rows = filled(batch, "value_BT"), len(batch["return_B"])
        counts = {
            "batch_num_tokens": mask(batch).sum(),
            "global_batch_size": batch["is_action_BT"].any(1).sum(),
            "loss_scale_factor": NORM,
        }
        value, slope = with_gradient(lambda x, b=batch: aggregated(x, aggregate, b), batch["value_BT"])
        whole, gradient = with_gradient(
            lambda x, b=batch: verl.agg_loss(x, mask(b), mode, loss_scale_factor=NORM), loss_BT
        )
        parts = [
            verl.agg_loss(loss_BT[piece], mask(batch)[piece], mode, **counts)
            for piece in (slice(0, rows // 2), slice(rows // 2, rows))
        ]
        agree(value, whole, seed=seed, pair=pair, tolerance=TOLERANCE)
        agree(slope, gradient, seed=seed, pair=pair, tolerance=TOLERANCE)
        agree(value, sum(parts), seed=seed, pair=pair, tolerance=TOLERANCE)


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_without_sampled_tokens(verl, mode):
    """0 with us, so that a rank with nothing to do can take the step; 0 / 0 in verl except for plain sums."""
    batch = random_batch(0)
    batch["is_action_BT"] = torch.zeros_like(batch["is_action_BT"])
    assert aggregated(batch["value_BT"], MODES[mode], batch) == 0
    loss = verl.agg_loss(filled(batch, "value_BT"), mask(batch), mode)
    assert loss == 0 if mode == "token-sum" else loss.isnan()
