"""Games of gymnasium in text: played by hand, by best play, and like each other in two processes."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pytest

from lit_agentrl.envs.adapters.base import PrivateGenerators
from lit_agentrl.envs.adapters.gymnasium import Gymnasium
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.checker import check_env
from lit_agentrl.envs.levels import find_levels, measure
from tests.conftest import load_task_yaml, thinned
from tests.envs.processes import printed_alike

GAMES: list[tuple[str, dict[str, Any]]] = [
    ("Blackjack-v1", {}),
    ("Taxi-v4", {"is_rainy": True, "fickle_passenger": True}),
    ("CartPole-v1", {}),
    ("FrozenLake-v1", {}),
    ("CliffWalkingSlippery-v1", {}),
    ("MountainCar-v0", {}),
]


def make(split: str, id: str, options: dict[str, Any]) -> Gymnasium:
    return Gymnasium(id=id, options=options, split=split)


@pytest.mark.parametrize(("id", "options"), thinned(GAMES))
def test_they_keep_the_contract(id: str, options: dict[str, Any]) -> None:
    check_env(partial(make, id=id, options=options), episodes=4)


def test_taxi_by_hand() -> None:
    env = Gymnasium()
    observation, _ = env.reset(seed=1)
    assert observation.splitlines()[3] == "|T: : : : |"
    assert observation.endswith("passenger : at green\ndestination : blue")
    assert env.step("pickup")[1] == -10
    observation, reward, *_ = env.step("East")
    assert reward == -1 and "| :T: : : |" in observation
    plan = env.optimal_actions(horizon=25)
    assert plan is not None and plan[-1] == "Dropoff"
    *before, last = [env.step(action) for action in plan]
    assert "passenger : in the taxi" in before[-1][0]
    assert last[1] == 20 and last[2] and last[4]["success"]


def test_best_play_of_blackjack_is_the_book_s() -> None:
    env = Gymnasium(id="Blackjack-v1")
    env.reset(seed=0)
    best = env._text
    for hand, shown, action in [
        ([10, 6], 6, 0),
        ([10, 6], 7, 1),
        ([10, 2], 3, 1),
        ([1, 7], 9, 1),
        ([1, 8], 9, 0),
    ]:
        best.game.player, best.game.dealer = hand, [shown, 10]
        assert best.plan_best(10) == [action], (hand, shown)
        assert best.plan_best(1) == [0], "what is not ended in time earns nothing"


def test_levels_of_the_shipped_limits() -> None:
    task = load_task_yaml("gymnasium")
    shipped = find_levels(task, "val")
    measured = measure(task, "val", 16, seed=0)
    assert (shipped.oracle_success, measured.oracle_success) == (1.0, 1.0)
    assert shipped.chance_success is not None and shipped.chance_success < 0.05 and shipped.episodes == 1000


def test_a_branch_draws_anew_and_is_saved_so() -> None:
    first, second = (Gymnasium(id="FrozenLake-v1") for _ in range(2))
    for env, noise in ((first, 1), (second, 2)):
        env.reset(seed=3, options={"noise_seed": noise})
        env.rekey(9)
    moves = ["Right", "Down"] * 2
    seen = [[env.step(move)[0] for move in moves if env._is_running] for env in (first, second)]
    assert seen[0] == seen[1]
    copy = Gymnasium(id="FrozenLake-v1")
    copy.load_state_dict(first.state_dict())
    assert copy.state_dict() == first.state_dict() and copy._observe() == first._observe()


def test_names_of_one_s_own() -> None:
    env = Gymnasium(id="CartPole-v1", actions=["left", "right"], success_reward=0.5)
    env.reset(seed=0)
    assert env.action_names() == ["left", "right"]
    while not (step := env.step("Left"))[2]:
        pass
    assert step[4]["success"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": "os:X-v0"}, "^id=os:X-v0 must be the id of a game, without a module$"),
        ({"id": "Nope-v0"}, r"^id=Nope-v0 with options={} cannot be made \(.*\); choose a game"),
        ({"options": {"wet": 1}}, r'^id=Taxi-v4 with options={"wet": 1} cannot be made .*unexpected keyword'),
        ({"id": "Pendulum-v1"}, "^id=Pendulum-v1 must be a game whose actions are numbered"),
        ({"actions": ["Up"]}, r"^actions=\[Up\] must be 6 names, one for each action of Taxi-v4$"),
        ({"id": "FrozenLake-v1", "options": {"map_name": None}}, "^options.map_name=None draws a map by chance"),
    ],
)  # fmt: skip
def test_what_cannot_be_played_is_told_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Gymnasium(**options)


def test_global_generators_are_lent_and_given_back() -> None:
    random.seed(5)
    np.random.seed(5)
    outside = random.getstate(), str(np.random.get_state())
    drawn = []
    for _ in range(2):
        generators = PrivateGenerators(3)
        with generators.install():
            first = random.random(), np.random.random()
        with generators.install():
            drawn.append((*first, random.random(), np.random.random()))
    assert drawn[0] == drawn[1] and len(set(drawn[0])) == 4
    assert outside == (random.getstate(), str(np.random.get_state()))


@pytest.mark.slow
@pytest.mark.sweep
def test_a_thousand_instances_look_alike_in_two_processes() -> None:
    script = (
        "from lit_agentrl.envs.adapters.gymnasium import Gymnasium as G\n"
        "for game in ('Taxi-v4', 'Blackjack-v1'):\n"
        "    for split in ('train', 'val'):\n"
        "        env = G(id=game, split=split)\n"
        "        for seed in range(500): print(env.reset(seed=seed), env.step(env.action_names()[seed % 2]))\n"
    )
    assert len(printed_alike(script)) > 100_000


def test_task() -> None:
    task = Task("cliff", partial(Gymnasium, id="CliffWalking-v1"), max_turns=4, max_actions=12)
    with pytest.raises(ValueError, match="max_solution=13"):
        task.make("train")
