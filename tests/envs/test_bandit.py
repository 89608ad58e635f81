"""The bandit: payoffs, meanings, arm order."""

from __future__ import annotations

import numpy as np
import pytest

from lit_agentrl.envs.games.bandit import RISKY_NAMES, SAFE_NAMES, Bandit


def arms(env: Bandit) -> tuple[str, str]:
    """The safe-sounding and the risky-sounding name of the running instance."""
    names = env.action_names()
    return next(n for n in names if n in SAFE_NAMES), next(n for n in names if n in RISKY_NAMES)


def test_names():
    assert len(set(SAFE_NAMES)) == len(set(RISKY_NAMES)) == 16
    assert not set(SAFE_NAMES) & set(RISKY_NAMES)
    assert all(name.isalpha() for name in SAFE_NAMES + RISKY_NAMES)


def test_observation_names_both_arms_in_either_order():
    env, is_safe_first = Bandit(), []
    for seed in range(200):
        observation, _ = env.reset(seed=seed)
        first, second = env.action_names()
        assert observation == f"{first} or {second} ?"
        is_safe_first.append(first in SAFE_NAMES)
    assert 70 < sum(is_safe_first) < 130


def pairs(thought: str) -> list[tuple[str, ...]]:
    words = thought.split()
    return [tuple(words[:2]), tuple(words[2:])]


@pytest.mark.parametrize("is_reversed", [False, True])
def test_golden_choices(is_reversed):
    env = Bandit(reverse_meanings=is_reversed, payoff="expected")
    env.reset(seed=1)
    safe, risky = arms(env)
    high, low = (safe, risky) if is_reversed else (risky, safe)
    assert env.optimal_actions(horizon=1) == [high]
    assert {f"{high} risky", f"{low} steady"} == {" ".join(pair) for pair in pairs(env.best_thought())}
    start = env.state_dict()
    _, reward, terminated, _, info = env.step(low.lower())
    assert (reward, terminated, info["success"]) == (0.15, True, False)
    assert info["reward_parts"] == {"payoff": 0.15} and env.optimal_actions(horizon=1) is None
    env.load_state_dict(start)
    _, reward, terminated, _, info = env.step(high)
    assert (reward, terminated, info["success"]) == (0.25, True, True)


def test_an_unknown_name_leaves_the_choice_open():
    env = Bandit()
    env.reset(seed=1)
    absent = next(name for name in RISKY_NAMES if name not in env.action_names())
    _, reward, terminated, _, info = env.step(absent)
    assert (reward, terminated, info["action_is_valid"]) == (0.0, False, False)
    assert env.step(arms(env)[0])[2]


def test_sampled_payoffs_are_drawn_per_member():
    env, payoffs = Bandit(), []
    for noise_seed in range(2000):
        env.reset(seed=3, options={"noise_seed": noise_seed})
        payoffs.append(env.step(arms(env)[1])[1])
    assert set(payoffs) == {0.0, 1.0}
    assert np.mean(payoffs) == pytest.approx(0.25, abs=0.03)


def test_every_name_occurs_in_training():
    env, seen = Bandit(), set()
    for seed in range(500):
        env.reset(seed=seed)
        seen |= set(env.action_names())
    assert seen == set(SAFE_NAMES + RISKY_NAMES)


def test_rules_tell_of_reversed_meanings():
    assert "what it suggests" in Bandit().rules and "opposite" not in Bandit().rules
    assert "opposite of what it suggests" in Bandit(reverse_meanings=True).rules
