"""Costs within a limit: worked numbers, identities, and what is refused."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from lit_agentrl.rl.credit import advantages, critic_advantages
from lit_agentrl.rl.credit.value_loss import clipped, clipped_with_costs
from lit_agentrl.rl.policy import aggregation, clipping, kl, ratios
from lit_agentrl.rl.policy.algorithm import Algorithm
from lit_agentrl.rl.policy.costs import COEF_MIN, Lagrange, as_rewards, mean_cost
from tests.rl.ragged import fresh, ragged

COSTS = [[1.0, 0.0], [0.5, 0.5], [0.0, 2.0], [0.0, 0.0], [1.0], [0.0, 0.25]]  # of the turns of each row


def with_costs(batch, costs=COSTS):
    cost_BT = torch.full_like(batch["reward_BT"], torch.nan)
    cost_BT[batch["is_action_BT"]] = 0.0
    cost_BT[batch["is_turn_end_BT"]] = torch.tensor([each for row in costs for each in row])
    return {**batch, "cost_BT": cost_BT}


def mixed(cost, advantage=advantages.group_mean, **parts) -> Algorithm:
    return Algorithm(
        name="test", advantage=partial(advantage), ratio=ratios.token, aggregate=partial(aggregation.token_mean),
        clip=partial(clipping.symmetric, epsilon=0.2), cost=cost, **parts,
    )  # fmt: skip


def test_the_multiplier_by_hand():
    """log 2 + 0.1 x 2 x (0.4 - 0.1): up by 0.06; then down by 0.1 x 2.12367 x 0.1."""
    rule = Lagrange(limit=0.1, coef=2.0, rate=0.1)
    assert rule.update(0.4, 99) == {"train/cost_multiplier": 2.0}
    assert rule.coef == pytest.approx(2 * math.exp(0.06))
    rule.update(0.0, 99)
    assert rule.coef == pytest.approx(2 * math.exp(0.06 - 0.1 * 2 * math.exp(0.06) * 0.1))
    before = rule.coef
    rule.update(0.1, 99)
    assert rule.coef == pytest.approx(before), "at the limit it stands still"
    rule.update(math.nan, 99)
    assert rule.coef == pytest.approx(before), "nothing was measured"


def test_the_multiplier_stays_within_its_bounds():
    rule = Lagrange(limit=0.0, coef=10.0, rate=1e9, max_coef=20.0)
    rule.update(1e9, 1)
    assert rule.coef == pytest.approx(20.0)
    rule.update(-1e9, 1)
    assert rule.coef == pytest.approx(COEF_MIN)


def test_group_relative_costs_by_hand(batch):
    """Costs of group 0 are 1, 1, 2 and of group 1 are 0, 1, .25; lambda 3."""
    found = mixed(Lagrange(limit=0.1, coef=3.0)).prepare(with_costs(batch))
    first = batch["is_action_BT"].int().argmax(1)
    reward = torch.tensor([0.5, -0.5, 0, 0.366667, 0.366667, -0.733333])
    cost = torch.tensor([-1 / 3, -1 / 3, 2 / 3, -5 / 12, 7 / 12, -1 / 6])
    torch.testing.assert_close(
        found["advantage_BT"][torch.arange(6), first], (reward - 3 * cost) / 4, atol=1e-6, rtol=0
    )
    assert found["advantage_BT"][~batch["is_action_BT"]].abs().sum() == 0
    assert float(found["cost"]) == pytest.approx((1 + 1 + 2 + 0 + 1 + 0.25) / 6)


def test_the_algorithm_moves_its_multiplier():
    rule = Lagrange(limit=0.1)
    algorithm = mixed(rule)
    assert algorithm.terms() == [rule] and algorithm.needs("cost_BT") and not algorithm.needs("cost_value_BT")
    assert mixed(None).terms() == [] and not mixed(None).needs("cost_BT")
    assert algorithm.requirements.all_groups and not mixed(None).requirements.all_groups
    assert fresh("safe_rlhf").needs("cost_value_BT")


def test_without_a_weight_it_is_the_algorithm_of_rewards(batch):
    tiny = mixed(Lagrange(limit=0.1, coef=1e-12)).prepare(with_costs(batch))
    torch.testing.assert_close(tiny["advantage_BT"], mixed(None).prepare(batch)["advantage_BT"])


@pytest.mark.parametrize("rule", [critic_advantages.gae_token, critic_advantages.gae_turn])
def test_two_critics_are_one_of_the_weighed_points(rule):
    """An estimator without whitening is linear: weighing advantages is weighing rewards and values."""
    tensors, coef = ragged(3), 1.7
    both = mixed(Lagrange(limit=0.1, coef=coef), partial(rule, whiten=False)).prepare(tensors)
    weighed = {
        name: (tensors[name] - coef * tensors[of]) / (1 + coef)
        for name, of in (("reward_BT", "cost_BT"), ("value_BT", "cost_value_BT"))
    }
    one = mixed(None, partial(rule, whiten=False)).prepare({**tensors, **weighed})
    torch.testing.assert_close(both["advantage_BT"], one["advantage_BT"])
    points = mixed(None, partial(rule, whiten=False)).prepare(tensors)
    assert torch.equal(both["return_BT"], points["return_BT"]), "the critic of rewards learns what it did"
    costs = {"reward_BT": tensors["cost_BT"], "value_BT": tensors["cost_value_BT"]}
    alone = mixed(None, partial(rule, whiten=False)).prepare({**tensors, **costs})
    torch.testing.assert_close(both["cost_return_BT"], alone["return_BT"])


def test_a_kl_weighs_the_same_whatever_the_multiplier():
    """It is taken off rewards and added to costs, so lambda leaves it: A = (A_R - lambda A_C) / (1 + lambda)."""
    tensors = ragged(4) | {"cost_BT": 0 * ragged(4)["cost_BT"], "reward_BT": 0 * ragged(4)["reward_BT"]}
    tensors["return_B"] = 0 * tensors["return_B"]
    term = kl.KLInReward(estimator=kl.k1, coef=0.3)
    found = [mixed(Lagrange(limit=0.1, coef=coef), kl=term).prepare(tensors) for coef in (0.01, 9.0)]
    torch.testing.assert_close(found[0]["advantage_BT"], found[1]["advantage_BT"])
    assert found[0]["advantage_BT"].abs().sum() > 0


def test_a_trajectory_of_several_rows_counts_once_and_an_unscorable_one_not(batch):
    tensors = with_costs(batch) | {"trajectory_B": torch.tensor([0, 0, 1, 2, 3, 4])}
    tensors["return_B"] = torch.where(torch.arange(6) == 5, torch.nan, batch["return_B"])
    assert float(mean_cost(tensors)) == pytest.approx((2 + 2 + 0 + 1) / 4)
    totals = -as_rewards(tensors)["return_B"]
    assert totals[:5].tolist() == [2, 2, 2, 0, 1] and bool(totals[5].isnan())
    nothing = tensors | {"return_B": torch.full((6,), torch.nan)}
    assert bool(mean_cost(nothing).isnan())


def test_the_loss_of_two_values_is_the_sum(batch):
    rows = ragged(5)
    value = {"value_BT": rows["value_BT"], "old_value_BT": rows["q_BT"], "return_BT": rows["entropy_BT"]}
    costs = {"value_BT": rows["cost_value_BT"], "old_value_BT": rows["logp_BT"], "return_BT": rows["cost_BT"]}
    rest = {"is_action_BT": rows["is_action_BT"], "clip": 0.2}
    both = clipped_with_costs(
        **value, **{"old_cost_value_BT" if n == "old_value_BT" else f"cost_{n}": t for n, t in costs.items()}, **rest
    )  # fmt: skip
    one, other = clipped(**value, **rest), clipped(**costs, **rest)
    torch.testing.assert_close(both.loss_BT, one.loss_BT + other.loss_BT)
    assert torch.equal(both.is_clipped_BT, one.is_clipped_BT | other.is_clipped_BT)


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"limit": math.nan}, "limit=nan must be finite"),
        ({"limit": 0.1, "coef": 0.0}, r"coef=0.0 must be finite and > 0"),
        ({"limit": 0.1, "rate": -1.0}, r"rate=-1.0 must be finite and > 0"),
        ({"limit": 0.1, "coef": 30.0}, "coef=30.0 must be at most max_coef=20.0"),
    ],
)
def test_constants_out_of_range(constants, message):
    with pytest.raises(ValueError, match=message):
        Lagrange(**constants)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("sft", "cost=lagrange"),
            "has no effect, because this algo/advantage uses no rewards: use algo/cost=none",
        ),
        (("cql", "cost=lagrange"), "takes q_BT, which describes rewards: use algo/cost=none"),
    ],
)
def test_an_advantage_that_means_nothing_of_costs(options, message):
    with pytest.raises(Exception, match=message):
        fresh(*options)
