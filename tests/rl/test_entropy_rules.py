"""Adaptive entropy coefficient, and tokens chosen by entropy."""

from __future__ import annotations

import math

import pytest
import torch

from lit_agentrl.rl.policy.entropy import AdaptiveBonus, top_entropy_quantile

ADAPTIVE = {"target": 0.5, "delta": 0.01, "max_coef": 0.025}


def test_the_coefficient_follows_the_entropy():
    rule, seen = AdaptiveBonus(**ADAPTIVE), []
    for entropy in (0.4, 0.5, 0.3, 0.2, 0.6, 0.7, 0.8, 0.9, 0.1):
        rule.update(entropy, 10)
        seen.append(rule.coef)
    assert seen == pytest.approx([0.01, 0.02, 0.025, 0.025, 0.015, 0.005, 0, 0, 0.01])


@pytest.mark.parametrize(("entropy", "weight"), [(0.4, 0.02), (0.5, 0.02), (0.51, 0.0)])
def test_it_acts_only_at_or_below_the_target(batch, entropy, weight):
    rule = AdaptiveBonus(**ADAPTIVE, coef=0.01 if weight else 0.025)
    rule.update(entropy, 10)
    entropy_BT = entropies(batch)
    loss_BT = rule(entropy_BT=entropy_BT, is_action_BT=batch["is_action_BT"])
    expected_BT = torch.where(batch["is_action_BT"], -weight * entropy_BT, 0)
    torch.testing.assert_close(torch.where(batch["is_action_BT"], loss_BT, 0), expected_BT)


def test_an_entropy_that_is_not_finite_changes_nothing():
    rule = AdaptiveBonus(**ADAPTIVE, coef=0.02)
    for entropy in (math.nan, math.inf):
        rule.update(entropy, 10)
        assert rule.coef == 0.02 and rule.is_low


@pytest.mark.parametrize("key", ["target", "delta", "max_coef"])
@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf])
def test_constants_must_be_positive(key, value):
    with pytest.raises(ValueError, match=rf"{key}={value} must be finite and > 0"):
        AdaptiveBonus(**{**ADAPTIVE, key: value})


def test_wrong_coefficients():
    with pytest.raises(ValueError, match=r"max_coef=0\.005 must be >= delta=0\.01"):
        AdaptiveBonus(**{**ADAPTIVE, "max_coef": 0.005})
    for coef in (-0.001, 0.03, math.nan):
        with pytest.raises(ValueError, match=rf"coef={coef} must be in \[0, max_coef=0"):
            AdaptiveBonus(**ADAPTIVE, coef=coef)


def entropies(batch):
    """24 different entropies, 1 to 24, in no order; garbage elsewhere."""
    entropy_BT = torch.full((6, 7), torch.nan)
    entropy_BT[batch["is_action_BT"]] = 1.0 + torch.arange(24.0) * 7 % 24
    return entropy_BT


@pytest.mark.parametrize(("share", "kept"), [(1.0, 24), (0.5, 12), (0.29, 6), (0.25, 6), (0.2, 4), (0.01, 1)])
def test_the_highest_entropies_are_kept(batch, share, kept):
    entropy_BT, is_action_BT = entropies(batch), batch["is_action_BT"]
    is_kept_BT = top_entropy_quantile(sampler_entropy_BT=entropy_BT, is_action_BT=is_action_BT, share=share)
    assert is_kept_BT.dtype == torch.bool and is_kept_BT.shape == (6, 7)
    assert sorted(entropy_BT[is_kept_BT].tolist()) == list(range(25 - kept, 25))


def test_shares_that_floating_point_rounds_down():
    is_action_BT = torch.ones(1, 100, dtype=torch.bool)
    entropy_BT = torch.arange(100.0)[None]
    is_kept_BT = top_entropy_quantile(sampler_entropy_BT=entropy_BT, is_action_BT=is_action_BT, share=0.29)
    assert is_kept_BT.sum() == 29


def test_row_order_padding_and_ties(batch):
    entropy_BT, is_action_BT = entropies(batch).round(decimals=-1), batch["is_action_BT"]  # 0, 10, 20
    whole = top_entropy_quantile(sampler_entropy_BT=entropy_BT, is_action_BT=is_action_BT, share=0.25)
    # Six tokens are asked for; all ten at 20 (entropies 15 to 24) tie for them.
    assert whole.equal(is_action_BT & (entropy_BT == 20)) and whole.sum() > 6
    order = torch.tensor([4, 0, 5, 2, 3, 1])
    shuffled = top_entropy_quantile(
        sampler_entropy_BT=entropy_BT[order], is_action_BT=is_action_BT[order], share=0.25
    )
    assert shuffled.equal(whole[order])
    pad = torch.nn.functional.pad
    padded = top_entropy_quantile(
        sampler_entropy_BT=pad(entropy_BT, (0, 3), value=99.0),
        is_action_BT=pad(is_action_BT, (0, 3)),
        share=0.25,
    )
    assert padded[:, :7].equal(whole) and not padded[:, 7:].any()


def test_one_token_and_none():
    entropy_BT = torch.tensor([[torch.nan, 0.3]], requires_grad=True)
    is_action_BT = torch.tensor([[False, True]])
    one = top_entropy_quantile(sampler_entropy_BT=entropy_BT, is_action_BT=is_action_BT, share=0.2)
    assert one.equal(is_action_BT)
    none = top_entropy_quantile(
        sampler_entropy_BT=entropy_BT, is_action_BT=torch.zeros(1, 2).bool(), share=0.2
    )
    assert none.shape == (1, 2) and not none.any()
    empty = top_entropy_quantile(
        sampler_entropy_BT=torch.zeros(0, 2), is_action_BT=torch.zeros(0, 2).bool(), share=0.2
    )
    assert empty.shape == (0, 2)


@pytest.mark.parametrize("share", [0.0, -0.2, 1.1, math.nan])
def test_wrong_shares(share):
    with pytest.raises(ValueError, match=rf"share={share} must be in \(0, 1\]"):
        top_entropy_quantile(
            sampler_entropy_BT=torch.ones(1, 1), is_action_BT=torch.ones(1, 1).bool(), share=share
        )


def test_wrong_tensors(batch):
    entropy_BT, is_action_BT = entropies(batch), batch["is_action_BT"]
    with pytest.raises(ValueError, match="is_action_BT has B=5"):
        top_entropy_quantile(sampler_entropy_BT=entropy_BT, is_action_BT=is_action_BT[:5], share=0.5)
    entropy_BT[0, 0] = torch.nan
    with pytest.raises(ValueError, match="entropy_BT is NaN at a sampled token"):
        top_entropy_quantile(sampler_entropy_BT=entropy_BT, is_action_BT=is_action_BT, share=0.5)
