"""Losses, gradient norms and largest ratios are those that were stored when the algorithm was reviewed."""

from __future__ import annotations

import pytest

from lit_agentrl.rl.binding import tensor_names
from tests.conftest import thinned
from tests.golden.curves import ITERATIONS, curve, load
from tests.rl.ragged import mix
from tests.rl.test_algo_configs import ALGORITHMS, UNTRAINED

# float64 on one thread repeats to 1e-10; other processors and libraries add in another order
TOLERANCE = 1e-6
AGAIN = "if the change is meant: python -m tests.golden.curves"


@pytest.mark.parametrize("name", thinned(ALGORITHMS, one_in=6))
def test_curve(name):
    assert name in load(), f"{name} has no curve; python -m tests.golden.curves"
    stored, now = load()[name], curve(name)
    assert now.keys() == stored.keys(), f"{AGAIN} {name}"
    for key, values in stored.items():
        assert len(values) == ITERATIONS
        assert now[key] == pytest.approx(values, rel=TOLERANCE, abs=1e-9), f"{key}: {AGAIN} {name}"


def test_no_curve_is_stale():
    assert set(load()) == set(ALGORITHMS), "python -m tests.golden.curves"


def test_curves_tell_algorithms_apart():
    """Of two that are alike one differs in what is played or paid, but for GSPO-token and ILQL.

    The first is GSPO where advantages are equal within a trajectory, the second imitates, and learns values beside it.
    """
    curves = load()
    losses = {name: tuple(found["train/loss"]) for name, found in curves.items() if found}
    alike = {frozenset((a, b)) for a in losses for b in losses if a != b and losses[a] == losses[b]}
    known = (
        ("gspo", "gspo_token"),
        ("ppo", "ufo"),
        ("arpo", "ghpo"),
        ("eepo", "grpo_lambda"),
        ("eepo", "grpo"),
        ("grpo", "grpo_lambda"),
        ("ilql", "sft"),
    )
    assert alike <= {frozenset(pair) for pair in known}


@pytest.mark.slow
@pytest.mark.sweep
def test_ratios_leave_one():
    for name, found in load().items():
        if name in UNTRAINED:
            assert not found
            continue
        assert found["train/grad_norm"][0] > 0
        if "train/ratio_max" in found:  # a mix with a ratio
            assert (max(found["train/ratio_max"]) > 1.1) == (
                "old_logp_BT" in tensor_names(mix(name).ratio)
            ), name
