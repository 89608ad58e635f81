"""The contract's own parts: seeds, splits, options, tasks, registration."""

from __future__ import annotations

import math
import subprocess
import sys

import gymnasium
import pytest

import lit_agentrl.envs  # noqa: F401  (registers the games)
from lit_agentrl.envs.base import Mixture, Task
from lit_agentrl.envs.games.bandit import Bandit
from lit_agentrl.envs.games.frozen_lake import FrozenLake
from lit_agentrl.envs.games.sokoban import Sokoban
from lit_agentrl.envs.splits import MAX_ATTEMPTS, draw_for_split, split_of, stable_hash

GAMES = [Sokoban, FrozenLake, Bandit]


@pytest.mark.parametrize("name", ["Sokoban", "FrozenLake", "Bandit", "BanditReversed"])
def test_gymnasium_makes_every_game(name):
    env = gymnasium.make(f"lit_agentrl/{name}-v0", split="val")
    observation, info = env.reset(seed=3)
    assert isinstance(observation, str) and info["instance_id"]
    assert env.unwrapped.split == "val"
    assert env.step("nonsense")[4]["action_is_valid"] is False


def test_the_package_imports_neither_torch_nor_lightning():
    heavy = ("torch", "lightning", "hydra")
    code = f"import lit_agentrl.envs, sys; print([name for name in {heavy} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_hashes_are_the_same_in_every_process():
    assert stable_hash("content") == 6387595798767195601
    assert stable_hash("content", purpose="split") != stable_hash("content")


@pytest.mark.parametrize(
    ("game", "split", "instance_id", "state_key"),
    [
        (Sokoban, "train", "Sokoban-23f6d357034ac44c", 1691538500688458326),
        (Sokoban, "test", "Sokoban-35b175b33571ed9a", 726767288319958717),
        (FrozenLake, "train", "FrozenLake-098fafb0075864ff", 100547251930726541),
        (FrozenLake, "test", "FrozenLake-72fca2e8d2491ed7", 3924535233661814422),
        (Bandit, "train", "Bandit-396710c9803ea539", 4861563657217988438),
        (Bandit, "test", "Bandit-7fd290f162958dc2", 3936763682233335456),
    ],
)
def test_instances_stay_what_they_were(game, split, instance_id, state_key):
    # Where this changes, levels.json and every trained policy's reference scores must be made anew.
    env = game(split=split)
    assert env.reset(seed=0)[1]["instance_id"] == instance_id
    assert env.state_key() == state_key


def test_split_shares_are_80_10_10():
    splits = [split_of(f"content {index}") for index in range(5000)]
    for split, share in (("train", 0.8), ("val", 0.1), ("test", 0.1)):
        assert splits.count(split) / 5000 == pytest.approx(share, abs=0.015)


def test_draw_for_split_gives_up_with_a_clear_error():
    attempts = []
    with pytest.raises(ValueError, match="no instance for split='val'"):
        draw_for_split(lambda attempt: attempts.append(attempt) or [], str, split="val")
    assert len(attempts) == MAX_ATTEMPTS


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("game", GAMES)
def test_no_instance_is_in_two_splits_over_2000_seeds(game):
    split_of_id = {}
    for split in ("train", "val", "test"):
        env = game(split=split)
        for seed in range(667):
            _, info = env.reset(seed=seed)
            assert split_of_id.setdefault(info["instance_id"], split) == split


def test_a_reset_without_a_seed_is_determined_by_the_one_before():
    def reset(*seeds):
        env = Bandit()
        return [env.reset(seed=seed)[1]["instance_id"] for seed in seeds]

    first = reset(3, None, None, None)
    assert first == reset(3, None, None, None) and len(set(first)) > 1
    assert reset(4, None, None, None)[1:] != first[1:] != reset(None, None, None)


@pytest.mark.parametrize("seed", [-1, 1.5, "3"])
def test_reset_refuses_what_is_no_seed(seed):
    with pytest.raises(ValueError, match="seed="):
        Bandit().reset(seed=seed)


def test_reset_refuses_unknown_options_and_bad_noise_seeds():
    with pytest.raises(ValueError, match="'noise_sed'"):
        Bandit().reset(seed=0, options={"noise_sed": 1})
    with pytest.raises(ValueError, match="noise_seed=-1"):
        Bandit().reset(seed=0, options={"noise_seed": -1})


def test_step_needs_a_reset():
    with pytest.raises(gymnasium.error.ResetNeeded):
        Bandit().step("Dragon")


def test_noise_differs_by_noise_seed_alone():
    env = FrozenLake(success_rate=0.4)
    paths = {}
    for noise_seed in (0, 1, 2, 3, 0, 1, 2, 3):
        env.reset(seed=5, options={"noise_seed": noise_seed})
        path = []
        for action in ["Up", "Left", "Down", "Right"] * 2:
            observation, _, terminated, _, _ = env.step(action)
            path.append(observation)
            if terminated:
                break
        assert paths.setdefault(noise_seed, path) == path
    assert len({str(path) for path in paths.values()}) > 1


@pytest.mark.parametrize(
    ("game", "options", "message"),
    [
        (Sokoban, {"split": "dev"}, "split='dev'"),
        (Sokoban, {"size": 4}, "size=4"),
        (Sokoban, {"num_boxes": 6}, "num_boxes=6"),
        (Sokoban, {"num_boxes": 1.0}, "num_boxes=1.0"),
        (Sokoban, {"min_solution": 0}, "min_solution=0"),
        (Sokoban, {"min_solution": 5, "max_solution": 4}, "max_solution=4"),
        (Sokoban, {"wall_share": 0.7}, "wall_share=0.7"),
        (Sokoban, {"view": "picture"}, "view=picture"),
        (Sokoban, {"vocab": "runes"}, "vocab=runes"),
        (FrozenLake, {"size": 1}, "size=1"),
        (FrozenLake, {"frozen_share": 0.3}, "frozen_share=0.3"),
        (FrozenLake, {"success_rate": 0}, "success_rate=0"),
        (FrozenLake, {"min_solution": 7}, "min_solution=7"),
        (FrozenLake, {"view": "picture"}, "view=picture"),
        (Bandit, {"payoff": "mean"}, "payoff=mean"),
        (
            Bandit,
            {"low_reward": 0.25},
            "low_reward=0.25 must be below high_reward=1 times high_probability=0.25",
        ),
        (Bandit, {"high_reward": -1}, "high_reward=-1 must be a finite number > 0"),
        (Bandit, {"high_reward": math.inf}, "high_reward=inf must be a finite number > 0"),
        (Bandit, {"high_probability": 1.2}, "high_probability=1.2"),
    ],
)
def test_bad_game_options_are_named(game, options, message):
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        game(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "name="),
        ({"name": "../x"}, "name=../x must be a text without slashes"),
        ({"game": "sokoban"}, "game=sokoban"),
        ({"max_turns": 0}, "max_turns=0"),
        ({"max_actions": True}, "max_actions=true"),
        ({"max_actions_per_turn": 11}, "max_actions_per_turn=11"),
        ({"invalid_penalty": 0.1}, "invalid_penalty=0.1"),
    ],
)
def test_bad_limits_are_named(options, message):
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        Task(**{"name": "bandit", "game": Bandit, **options})


def test_action_budget_is_what_both_limits_allow():
    assert Task("bandit", Bandit).action_budget == 10
    assert Task("bandit", Bandit, max_turns=3, max_actions_per_turn=2).action_budget == 6


def test_solutions_longer_than_the_budget_are_refused():
    task = Task("sokoban", Sokoban, max_turns=3, max_actions_per_turn=3)
    with pytest.raises(ValueError, match=r"game\.max_solution=10 .* from 1 to 9"):
        task.make("train")


def test_only_text_games_make_a_task():
    with pytest.raises(ValueError, match="subclass of World"):
        Task("list", lambda split: [split]).make("train")


def test_mixture_shares():
    assert Mixture({"sokoban": 3, "bandit": 1}).shares == {"sokoban": 0.75, "bandit": 0.25}


@pytest.mark.parametrize("weights", [{}, {"sokoban": 0.0}, {"sokoban": -1}, {"sokoban": float("nan")}])
def test_mixture_refuses_bad_weights(weights):
    with pytest.raises(ValueError, match=r"weights"):
        Mixture(weights)
