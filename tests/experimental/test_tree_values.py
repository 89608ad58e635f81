"""A critic beside pairs in the update: it learns values of the tree, and the policy does not notice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from lit_agentrl.experimental.tree_steps import tree, tree_state
from lit_agentrl.rl.binding import bind
from tests.rl.ragged import fresh
from tests.update.bare import build, elsewhere, float64, gradient, off_policy, step

VALUELESS = ("targets=none", "ranking=none")


@pytest.fixture(autouse=True, scope="module")
def double() -> Iterator[None]:
    with float64():
        yield


def stepped(*changes, critic="separate", **update):
    module = elsewhere(build(fresh("svpo", *changes), critic=critic, **update))
    step(module, off_policy())
    return module


def of_policy(module):
    return {
        name: grad.clone()
        for name, parameter in module.named_parameters()
        if name.startswith("network") and (grad := parameter.grad) is not None
    }


def columns():
    batch = off_policy()
    return {name: getattr(batch, name) for name in batch.__dataclass_fields__}


def test_the_critic_learns_the_values_of_the_tree():
    """Its loss is the mean squared error by hand, and the ranking that of the values at last tokens."""
    module = elsewhere(build(fresh("svpo")))
    tensors = columns() | {
        "value_BT": module.updater.networks.compute_values(columns())
    }  # of before the step
    step(module, off_policy())
    found = bind(tree, tensors)
    at_N = found.is_value_target_BT
    error_N = (tensors["value_BT"] - found.return_BT)[at_N]
    assert module.row["critic/loss"] == pytest.approx(0.5 * error_N.square().mean().item())
    assert module.row["critic/value"] == pytest.approx(tensors["value_BT"][at_N].mean().item())
    pairs = bind(tree_state, tensors)
    units, apart = pairs.units, []
    for chosen, rejected in zip(pairs.chosen_P.tolist(), pairs.rejected_P.tolist(), strict=True):
        places = [units.place_A[units.unit_A == unit] for unit in (chosen, rejected)]
        if min(map(len, places)) > 1:
            good, bad = (tensors["value_BT"].flatten()[place[-1]].item() for place in places)
            apart.append(good - bad)
    assert len(apart) > 2
    assert module.row["critic/ranking"] == pytest.approx(sum(max(0, 0.1 - gap) for gap in apart) / len(apart))
    assert module.row["critic/ranked_rightly"] == pytest.approx(sum(gap > 0 for gap in apart) / len(apart))


def test_a_critic_of_its_own_leaves_the_policys_gradient_and_a_shared_one_does_not():
    without, beside = of_policy(stepped(*VALUELESS)), of_policy(stepped())
    assert without and without.keys() == beside.keys()
    for name, grad in without.items():
        torch.testing.assert_close(beside[name], grad, rtol=1e-9, atol=1e-12)
    shared = of_policy(stepped(critic="shared"))
    assert any(not torch.allclose(shared[name], grad, rtol=1e-3) for name, grad in without.items())


def test_the_ranking_reaches_the_critic():
    plain, ranked, twice = (
        torch.cat([p.grad.flatten() for p in stepped(*changes).critic.parameters()])
        for changes in (["ranking=none"], [], ["ranking.coef=2.0"])
    )
    assert (ranked - plain).norm() > 1e-3
    torch.testing.assert_close(twice - plain, 2 * (ranked - plain))


@pytest.mark.parametrize("budget", [1, 60])
def test_micro_batches_and_padding_change_nothing(budget):
    whole = gradient(stepped(tokens_per_microbatch=10**6))
    torch.testing.assert_close(gradient(stepped(tokens_per_microbatch=budget)), whole, rtol=1e-9, atol=1e-12)
