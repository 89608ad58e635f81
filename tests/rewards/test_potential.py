"""Potential-based shaping: the sum that no policy can change, and where the potential comes from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_agentrl.envs.base import Task
from lit_agentrl.rewards.shaping.potential import Potential, StepsToGoal
from tests.conftest import load_task_yaml
from tests.rewards.conftest import episode, turn
from tests.rollout.conftest import Count

PHI = st.lists(st.floats(-20, 20), min_size=1, max_size=8)


@given(PHI, st.floats(0.1, 1.0))
def test_the_discounted_sum_is_minus_the_first_potential(phi, discount):
    part = Potential(discount=discount, weight=2.0)
    part.name = "potential"
    played = episode([turn(probes={"potential": value}) for value in phi])
    [points] = part.apply([[0.0] * len(phi)], [played], iteration=0)
    assert sum(discount**k * p for k, p in enumerate(points)) == pytest.approx(-2 * phi[0], abs=1e-9)


def test_by_hand():
    part = Potential(discount=0.5)
    played = episode([turn(probes={"part": value}) for value in (-3.0, -2.0)])
    assert part.score([played], iteration=0) == [[0.5 * -2 + 3, 0.0 + 2]]


@pytest.mark.parametrize("name", ["sokoban", "frozen_lake", "bandit"])
def test_steps_to_goal_rise_along_best_play(name):
    task = load_task_yaml(name)
    env, phi = task.make("train"), StepsToGoal(scale=0.5)
    if name == "frozen_lake":
        env = task.game(split="train", success_rate=1.0)
    observation, _ = env.reset(seed=3)
    before = env.state_dict()
    values, is_over = [phi(env, observation)], False
    assert env.state_dict() == before  # measuring changes nothing, noise included
    while not is_over:
        best = env.optimal_actions(horizon=2 * env.max_solution)
        observation, _, is_over, _, _ = env.step(best[0])
        if not is_over:
            values.append(phi(env, observation))
    assert np.allclose(np.diff(values), 0.5) and values[-1] == -0.5


def test_what_can_no_longer_be_solved_counts_most():
    env = Count()  # knows no best play
    env.reset(seed=0)
    assert StepsToGoal(scale=1.0)(env, "") == -2.0 * env.max_solution


def test_games_are_tried_before_anything_is_played():
    task, env = Task(name="count", game=Count), Count()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="^of=StepsToGoal needs optimal actions, and count has none"):
        Potential().check_game(task, env, "P 0")
    Potential(of=lambda env, observation: float(len(observation))).check_game(task, env, "P 0")
    part = Potential(of=lambda env, observation: float("nan"))
    with pytest.raises(ValueError, match="^of=nan must be"):
        part.check_game(task, env, "P 0")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Potential(discount=0), "discount=0 must be in"),
        (lambda: Potential(discount=1.1), "discount=1.1 must be in"),
        (lambda: Potential(of=3), "of=3 must be a function"),
        (lambda: StepsToGoal(scale=-1), "^scale=-1 must be > 0"),
    ],
)
def test_options_are_refused(make, message):
    with pytest.raises(ValueError, match="^" + message):
        make()
