"""What trl does with entropies: a coefficient that follows them, and a choice of tokens."""

from __future__ import annotations

import math
import random

import pytest
import torch

from lit_agentrl.rl.policy import entropy
from tests.oracle.batches import batches, filled, mask
from tests.oracle.oracles import load, trainer, trl_loss

pytestmark = pytest.mark.oracle

EXACT = 1e-9
TRAINER = ("trl.trainer.grpo_trainer", "GRPOTrainer")


def test_adaptive_coefficient(agree):
    """Walks of 6 steps from a random coefficient: the next one, and the weight of the bonus in the loss."""
    compute_loss = getattr(load(TRAINER[0]), TRAINER[1])._compute_loss
    pair = ("entropy.AdaptiveBonus", "GRPO")
    for seed, batch in batches():
        rng = random.Random(seed)
        coef = rng.choice([0.0, 0.004, 0.02])
        rule = entropy.AdaptiveBonus(target=0.4, delta=0.005, max_coef=0.02, coef=coef)
        weight = 0.0  # trl's first step knows no entropy yet; from then on it goes by the last step's
        made = trainer(
            loss_type="bnpo", _entropy_bonus_enabled=True, use_adaptive_entropy=True, entropy_coef=coef,
            _last_world_entropy=math.inf, _entropy_window_stats=None, args_entropy_target=rule.target,
            args_entropy_coef_delta=rule.delta, args_entropy_coef_max=rule.max_coef, args_entropy_coef_min=0.0,
        )  # fmt: skip
        plain = trainer(loss_type="bnpo")
        logp_BT, advantage_BT = filled(batch, "logp_BT", 0.0), filled(batch, "advantage_BT", 0.0)
        first_BT = batch["entropy_BT"]
        for _ in range(6):
            batch["entropy_BT"] = first_BT * rng.uniform(0.2, 2)
            mean = float(batch["entropy_BT"][batch["is_action_BT"]].mean())
            without, found = (
                trl_loss(compute_loss, one, batch, logp_BT=logp_BT, advantage=advantage_BT)
                for one in (plain, made)
            )
            agree(without - weight * mean, found, seed=seed, pair=pair, tolerance=EXACT)
            rule.update(mean, num_tokens=int(batch["is_action_BT"].sum()))
            one = {"entropy_BT": torch.ones(1, 1), "is_action_BT": torch.ones(1, 1, dtype=torch.bool)}
            weight = -float(rule(**one))
            agree(
                torch.tensor(rule.coef),
                torch.tensor(made.entropy_coef),
                seed=seed,
                pair=pair,
                tolerance=EXACT,
            )


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75, 1.0])
def test_top_entropy_quantile(agree, share):
    """Both keep the tokens of highest entropy; trl takes those above a quantile, which may be one more."""
    get_mask = getattr(load(TRAINER[0]), TRAINER[1]).get_high_entropy_mask
    pair = ("entropy.top_entropy_quantile", "get_high_entropy_mask")
    num_equal = 0
    for seed, batch in batches():
        batch["entropy_BT"] = batch["entropy_BT"].float().double()  # trl compares in float32
        theirs = get_mask(trainer(), filled(batch, "entropy_BT"), mask(batch), 1 - share)
        mine = entropy.top_entropy_quantile(
            sampler_entropy_BT=batch["entropy_BT"], is_action_BT=batch["is_action_BT"], share=share
        )
        count = int(batch["is_action_BT"].sum())
        assert int(mine.sum()) == max(1, math.floor(share * count))
        assert int(theirs.sum()) == count - math.ceil((count - 1) * (1 - share))
        extra = int(theirs.sum()) - int(mine.sum())
        assert extra in (0, 1)
        num_equal += extra == 0
        if extra:  # the lowest of trl's tokens is the one we leave out
            lowest = batch["entropy_BT"].masked_fill(~theirs, math.inf).min()
            theirs = theirs & (batch["entropy_BT"] != lowest)
        agree(mine.double(), theirs.double(), seed=seed, pair=pair, tolerance=0.0)
    assert num_equal > 20
