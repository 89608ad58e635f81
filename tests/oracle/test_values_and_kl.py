"""Critic losses, KL estimators and controllers, entropies and log-probs against verl's."""

from __future__ import annotations

import random
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.credit import value_loss
from lit_agentrl.rl.policy import aggregation, entropy, kl, kl_control
from tests.oracle.batches import NUM_BATCHES, VOCABULARY, batches, filled, mask
from tests.oracle.losses import MODES, NORM, aggregated, with_gradient

pytestmark = pytest.mark.oracle

EXACT = 1e-9
TOLERANCE = 1e-7  # verl adds 1e-8 to token counts
SINGLE = 2e-6  # log-probs are computed in float32


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("clip", [0.2, 0.5, None])
def test_value_loss(verl, agree, clip, mode):
    ours = value_loss.squared if clip is None else partial(value_loss.clipped, clip=clip)
    pair = ("value_loss.squared" if clip is None else "value_loss.clipped", "compute_value_loss")
    for seed, batch in batches():
        is_clipped_BT = None

        def mine(value_BT, batch=batch):
            nonlocal is_clipped_BT
            found = bind(ours, batch | {"value_BT": value_BT})
            is_clipped_BT = found.is_clipped_BT
            return aggregated(found.loss_BT, MODES[mode], batch)

        def theirs(value_BT, batch=batch):
            return verl.compute_value_loss(
                value_BT, filled(batch, "return_BT"), filled(batch, "old_value_BT"), mask(batch),
                1e9 if clip is None else clip, mode, loss_scale_factor=NORM,
            )[0]  # fmt: skip

        value, slope = with_gradient(mine, batch["value_BT"])
        expected, gradient = with_gradient(theirs, filled(batch, "value_BT"))
        agree(value, expected, seed=seed, pair=pair, tolerance=TOLERANCE)
        agree(slope, gradient, seed=seed, pair=pair, tolerance=TOLERANCE)


def test_share_of_clipped_values(verl, agree):
    pair = ("value_loss.clipped", "compute_value_loss")
    for seed, batch in batches():
        _, share = verl.compute_value_loss(
            *(filled(batch, name) for name in ("value_BT", "return_BT", "old_value_BT")), mask(batch), 0.2
        )
        is_clipped_BT = bind(value_loss.clipped, batch).is_clipped_BT
        mine = is_clipped_BT[batch["is_action_BT"]].double().mean()
        agree(mine, share, seed=seed, pair=pair, tolerance=TOLERANCE)


@pytest.mark.parametrize("estimator", [kl.k1, kl.k2, kl.k3, kl.k1_plus, kl.k3_plus])
def test_kl_estimators(verl, agree, estimator):
    """Bounds included: some log-ratios are beyond 20 nats, some k3 beyond 10."""
    theirs = estimator.__name__.replace("_plus", "+")
    pair = (f"kl.{estimator.__name__}", "kl_penalty")
    for seed, batch in batches(extreme=True):
        ref_BT = filled(batch, "ref_logp_BT", 0.0)
        term = kl.KLInLoss(estimator=estimator, coef=0.1)

        def mine(logp_BT, term=term, batch=batch):
            return bind(term, batch | {"logp_BT": logp_BT}).square().sum()  # a weight of its own per token

        def other(logp_BT, batch=batch, ref_BT=ref_BT):
            found_BT = 0.1 * verl.kl_penalty(logp_BT, ref_BT, theirs)
            return torch.where(batch["is_action_BT"], found_BT, 0.0).square().sum()

        value, slope = with_gradient(mine, batch["logp_BT"])
        expected, gradient = with_gradient(other, filled(batch, "logp_BT", 0.0))
        agree(value, expected, seed=seed, pair=pair, tolerance=EXACT)
        agree(slope, gradient, seed=seed, pair=pair, tolerance=EXACT)


def test_adaptive_kl_controller(verl, agree):
    """Walks of 30 updates; no update sees more tokens than the horizon."""
    pair = ("kl_control.Ziegler", "AdaptiveKLController")
    for seed in range(NUM_BATCHES):
        rng = random.Random(seed)
        target, horizon = rng.uniform(0.01, 6), rng.uniform(1e3, 1e5)
        coef = rng.uniform(1e-3, 0.5)
        theirs = verl.AdaptiveKLController(coef, target, horizon)
        ours = kl_control.Ziegler(target=target, horizon=horizon)
        for _ in range(30):
            current, steps = rng.uniform(-0.5, 3) * target, rng.randint(1, int(horizon))
            theirs.update(current, steps)
            coef = ours.update(coef, current, steps)
            agree(
                torch.tensor(coef), torch.tensor(float(theirs.value)), seed=seed, pair=pair, tolerance=EXACT
            )


def test_more_tokens_than_the_horizon(verl):
    """verl's coefficient turns negative at 5 horizons; ours changes by a fifth at most."""
    theirs = verl.AdaptiveKLController(0.1, 1.0, 100)
    theirs.update(0.0, 600)
    assert theirs.value == pytest.approx(-0.02)
    assert kl_control.Ziegler(target=1.0, horizon=100).update(0.1, 0.0, 600) == pytest.approx(0.08)


class Given(torch.nn.Module):
    """A network of which nothing is left but its logits: the head hands on what it reads."""

    def __init__(self, logits):
        super().__init__()
        self.logits, self.head = logits, torch.nn.Identity()

    def get_output_embeddings(self):
        return self.head

    def forward(self, **_):
        return SimpleNamespace(logits=self.head(self.logits))


def scored(batch, seed):
    """Random logits, and what `score_tokens` makes of them; the first column cannot be an action."""
    generator = torch.Generator().manual_seed(seed)
    rows, num_tokens = batch["is_action_BT"].shape
    logits = 2 * torch.randn(rows, num_tokens, VOCABULARY, generator=generator)
    tokens_BT = torch.randint(VOCABULARY, (rows, num_tokens + 1), generator=generator)
    is_action_BT = torch.nn.functional.pad(batch["is_action_BT"], (1, 0))

    found = score_tokens(Given(logits), tokens_BT=tokens_BT, is_action_BT=is_action_BT, with_entropy=True)
    return logits, tokens_BT[:, 1:], found


def test_log_probs(verl, agree):
    pair = ("models.logprobs.score_tokens", "logprobs_from_logits_v2")
    for seed, batch in batches():
        logits, labels_BT, found = scored(batch, seed)
        expected = verl.verl_F.logprobs_from_logits_v2(logits, labels_BT)
        expected = torch.where(batch["is_action_BT"], expected, 0.0)
        agree(found.logp_BT[:, 1:].double(), expected, seed=seed, pair=pair, tolerance=SINGLE)


def test_entropy(verl, agree):
    pair = ("entropy.bonus", "compute_entropy_loss")
    for seed, batch in batches():
        logits, _, found = scored(batch, seed)
        tensors = batch | {"entropy_BT": found.entropy_BT[:, 1:].double()}
        term_BT = bind(partial(entropy.bonus, coef=0.01), tensors)
        mine = aggregated(term_BT, aggregation.token_mean, batch)
        expected = -0.01 * verl.compute_entropy_loss(logits, mask(batch))
        agree(mine, expected, seed=seed, pair=pair, tolerance=SINGLE)
