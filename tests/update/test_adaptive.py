"""Coefficients that move, weights and choices of tokens, in a training step."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from lit_agentrl.models.heads import ValuesAndCosts
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.modules.policy import PolicyModule
from lit_agentrl.rl.credit import advantages, critic_advantages, value_loss
from lit_agentrl.rl.objective import coefficients
from lit_agentrl.rl.policy import aggregation, clipping, correction, costs, entropy, kl, kl_control, ratios
from lit_agentrl.update.critic import separate
from lit_agentrl.update.settings import OptimSettings
from tests.conftest import tiny_policy
from tests.update.conftest import algorithm, recorded, step

ADAM = OptimSettings(optimizer=torch.optim.Adam, lr=0.01)
BARE = {"ratio": partial(ratios.none), "clip": partial(clipping.none)}


def same(a, b, **tolerance):
    return all(torch.allclose(a[name], b[name], **tolerance) for name in b)


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize(
    "term", [kl.KLInLoss(estimator=kl.k3, coef=0.1), kl.KLInReward(estimator=kl.k1, coef=0.1)]
)
def test_a_controller_moves_the_coefficient_once_an_iteration(term):
    """No KL at the first iteration: below any target, so the coefficient is halved from the second on."""
    alg = algorithm(kl=replace(term), kl_controller=kl_control.PPOPenalty(target=1e3))
    module, _ = step(alg=alg, iterations=3, optim=ADAM)
    assert module.row["train/kl_coef"] == pytest.approx(0.025) and alg.kl.coef == pytest.approx(0.0125)
    fixed = algorithm(kl=replace(term))
    module, _ = step(alg=fixed, iterations=3, optim=ADAM)
    assert module.row["train/kl_coef"] == fixed.kl.coef == 0.1


def test_coefficients_lie_in_checkpoints():
    parts = {
        "kl": kl.KLInLoss(estimator=kl.k3, coef=0.1),
        "kl_controller": kl_control.PPOPenalty(target=1e3),
        "entropy": entropy.AdaptiveBonus(target=99.0, delta=0.01, max_coef=0.05),
    }
    module, _ = step(alg=algorithm(**parts), iterations=2, optim=ADAM)
    saved: dict = {}
    module.on_save_checkpoint(saved)
    assert saved["policy"]["coefficients"] == {"kl": pytest.approx(0.025), "entropy": pytest.approx(0.02)}
    parts["kl"], parts["entropy"] = replace(parts["kl"], coef=0.7), replace(parts["entropy"], coef=0.0)
    fresh = PolicyModule(
        tiny_policy(), objective=algorithm(**parts), update=module.updater.settings, optim=ADAM
    )
    fresh.trainer = module.trainer
    fresh.on_load_checkpoint(saved)
    assert coefficients(fresh.objective) == saved["policy"]["coefficients"]


def test_a_multiplier_follows_the_costs_of_the_iteration_and_lies_in_checkpoints():
    """Mean cost 1.5 over episodes of 1, 2, 1, 2 ...; lambda 2 acts, and is then 2 exp(0.1 x 2 x 1)."""
    rows = recorded()[1]
    last_BT = rows.is_turn_end_BT & (rows.turn_BT == rows.turn_BT.amax(1, keepdim=True))
    priced = replace(rows, cost_BT=last_BT * (1.0 + (rows.member_B % 2))[:, None])
    rule = costs.Lagrange(limit=0.5, coef=2.0)
    module, _ = step(priced, alg=algorithm(cost=rule))
    assert module.row["train/cost"] == pytest.approx(1.5) and module.row["train/cost_multiplier"] == 2.0
    saved: dict = {}
    module.on_save_checkpoint(saved)
    assert (
        saved["policy"]["coefficients"] == {"cost": rule.coef} == {"cost": pytest.approx(2 * math.exp(0.2))}
    )
    fresh = costs.Lagrange(limit=0.5, coef=2.0)
    other = PolicyModule(
        tiny_policy(), objective=algorithm(cost=fresh), update=module.updater.settings, optim=ADAM
    )
    other.trainer = module.trainer
    other.on_load_checkpoint(saved)
    assert fresh.coef == rule.coef


@pytest.mark.slow
@pytest.mark.sweep
def test_two_heads_learn_two_targets():
    priced = replace(recorded()[1], cost_BT=recorded()[1].is_turn_end_BT * 1.0)
    critic = partial(
        separate, loss=partial(value_loss.clipped_with_costs, clip=1e9), optim=ADAM, grad_clip=1e9,
        head=ValuesAndCosts(),
    )  # fmt: skip
    alg = algorithm(advantage=partial(critic_advantages.gae_token), cost=costs.Lagrange(limit=0.5))
    module, _ = step(priced, alg=alg, critic=critic, iterations=30, minibatches=2, optim=ADAM)
    assert 0 < module.row["critic/cost_explained_variance"] <= 1 and "critic/explained_variance" in module.row
    found = module.critic.name_columns(
        module.critic(module.network, tokens_BT=priced.tokens_BT, is_action_BT=priced.is_action_BT).detach()
    )
    assert set(found) == {"value_BT", "cost_value_BT"}
    assert not torch.equal(found["value_BT"], found["cost_value_BT"])


def test_the_kl_to_the_sampling_policy_is_measured_after_the_update():
    alg = algorithm(clip=partial(clipping.none), kl=kl.KLToOld(coef=1.0))
    policy = tiny_policy()
    module, _ = step(alg=alg, policy=policy, minibatches=3, optim=ADAM)
    batch = recorded()[1]
    with torch.no_grad():
        now = score_tokens(policy.network, tokens_BT=batch.tokens_BT, is_action_BT=batch.is_action_BT).logp_BT
    difference = (now - batch.sampler_logp_BT)[batch.is_action_BT]
    expected = float((difference.exp() - 1 - difference).mean())
    assert module.row["train/old_kl"] == pytest.approx(expected, rel=1e-3) and expected > 1e-4


@pytest.mark.slow
def test_the_penalty_acts_from_the_second_step_on():
    def change(coef, **update):
        parts = {"kl": kl.KLToOld(coef=coef)} if coef else {}
        return step(alg=algorithm(clip=partial(clipping.none), **parts), **update)[1]

    assert same(change(10.0), change(0.0), atol=1e-6)
    assert not same(change(10.0, epochs=2), change(0.0, epochs=2), atol=1e-4)


@pytest.mark.slow
def test_an_adaptive_bonus_follows_the_entropy_of_the_rollouts():
    high = entropy.AdaptiveBonus(target=99.0, delta=0.01, max_coef=0.05)
    module, change = step(alg=algorithm(entropy=high))
    assert module.row["train/entropy_coef"] == high.coef == 0.01
    assert same(change, step(alg=algorithm(entropy=partial(entropy.bonus, coef=0.01)))[1])
    low = entropy.AdaptiveBonus(target=1e-3, delta=0.01, max_coef=0.05, coef=0.05)
    module, change = step(alg=algorithm(entropy=low))
    assert module.row["train/entropy_coef"] == 0.0 and low.coef == pytest.approx(0.04)
    assert same(change, step()[1])


@pytest.mark.slow
def test_the_policy_loss_of_few_tokens():
    module, change = step(alg=algorithm(tokens=partial(entropy.top_entropy_quantile, share=0.25)))
    assert module.row["train/kept_token_share"] == pytest.approx(0.25, abs=0.02)
    assert module.row["train/advantage_skewness"]
    assert not same(change, step()[1], atol=1e-4)
    every = algorithm(tokens=partial(entropy.top_entropy_quantile, share=1.0))
    assert same(step(alg=every)[1], step()[1])


@pytest.mark.slow
def test_corrections_weight_what_the_engine_recorded_wrongly():
    """The recorded log-probs are 0.5 too low: the ratio is 1 all the same, and the weight exp(0.5)."""
    batch = recorded()[1]
    off = replace(batch, sampler_logp_BT=torch.where(batch.is_action_BT, batch.sampler_logp_BT - 0.5, 0.0))
    _, plain = step()

    def corrected(trajectories, rule):
        module, change = step(trajectories, alg=algorithm(correction=rule))
        assert module.row["train/ratio_max"] == pytest.approx(1, abs=1e-4)
        return change

    assert same(corrected(batch, partial(correction.truncated)), plain, rtol=1e-3, atol=1e-5)
    for rule, weight in (
        (partial(correction.truncated, cap=3.0), 1.6487),
        (partial(correction.truncated, cap=1.5), 1.5),
        (partial(correction.masked), 1.6487),
        (partial(correction.masked, high=1.5), 0.0),
    ):
        expected = {name: change * weight for name, change in plain.items()}
        assert same(corrected(off, rule), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (partial(correction.truncated, cap=0.5), r"cap=0\.5 must be finite and >= 1"),
        (partial(correction.masked, low=1.5), r"low=1\.5 must be in"),
    ],
)
def test_wrong_corrections(rule, message):
    with pytest.raises(ValueError, match=message):
        algorithm(correction=rule)


def test_the_greedy_baseline_is_taken_off():
    batch = recorded()[1]
    with_baseline = replace(batch, baseline_B=torch.full_like(batch.return_B, 2.0))
    alg = algorithm(advantage=partial(advantages.greedy), aggregate=partial(aggregation.token_mean), **BARE)
    shifted = replace(batch, return_B=batch.return_B - 2, baseline_B=torch.zeros_like(batch.return_B))
    assert same(step(with_baseline, alg=alg)[1], step(shifted, alg=alg)[1])
    none = replace(batch, baseline_B=torch.full_like(batch.return_B, torch.nan))
    assert all(float(change.abs().max()) == 0 for change in step(none, alg=alg)[1].values())


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"kl_controller": kl_control.PPOPenalty()}, r"kl_controller=PPOPenalty has no coefficient"),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit(parts, message):
    with pytest.raises(ValueError, match=message):
        algorithm(**parts)


@pytest.mark.slow
def test_the_reference_is_kept_in_the_precision_asked_for():
    alg = algorithm(kl=kl.KLInLoss(estimator=kl.k3, coef=0.1, reference_dtype="bfloat16"))
    module, change = step(alg=alg, epochs=2)
    assert {p.dtype for p in module.updater.networks.reference.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in module.network.parameters()} == {torch.float32}
    exact = step(alg=algorithm(kl=kl.KLInLoss(estimator=kl.k3, coef=0.1)), epochs=2)[1]
    assert same(change, exact, atol=0.02) and not same(change, exact, atol=1e-7)
    with pytest.raises(ValueError, match=r"reference_dtype=half is unknown; valid: null, float32"):
        kl.KLInLoss(estimator=kl.k3, coef=0.1, reference_dtype="half")
    with pytest.raises(ValueError, match=r"reference_dtype=float16 has no effect under algo/kl=loss_old"):
        kl.KLToOld(coef=0.1, reference_dtype="float16")
