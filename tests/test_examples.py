"""The examples keep the contract, can be trained on, and stand in the README as they are."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from examples.own_env.letters import Letters
from examples.own_reward.progress import Progress
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.checker import check_env
from lit_agentrl.envs.levels import measure
from lit_agentrl.models.policy import load_nano
from tests.rewards.conftest import context, episode, turn

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "own_env"
OWN_REWARD = ROOT / "examples" / "own_reward"


@pytest.fixture(scope="module")
def task() -> Task:
    made: Task = instantiate(OmegaConf.load(EXAMPLE / "conf" / "env" / "letters.yaml"))
    return made


def test_game_keeps_the_contract(task: Task) -> None:
    check_env(task.make)


def test_levels_leave_room_to_learn(task: Task) -> None:
    levels = measure(task, "val", 64, seed=0)
    assert levels.oracle_success == 1.0
    assert 0.05 < levels.chance_success < 0.5


def test_game_played_by_hand() -> None:
    env = Letters()
    env.reset(seed=0)
    env.load_state_dict({**env.state_dict(), "game": {"cells": {"A": 0, "B": 5, "P": 2}, "goal": "A"}})
    assert env.optimal_actions(horizon=2) == ["Left", "Left"]
    assert env.optimal_actions(horizon=1) is None
    assert env.step("Up")[1] == -0.1  # the edge: nothing moves
    observation, reward, terminated, _, info = env.step("Left")
    assert (observation, reward, terminated) == ("go to A\nA P _ _\n_ B _ _\n_ _ _ _\n_ _ _ _", -0.1, False)
    assert not info["success"]
    _, reward, terminated, _, info = env.step("left")
    assert (reward, terminated, info["success"]) == (0.9, True, True)


def test_embedded_policy_can_read_the_game(task: Task) -> None:
    tokenizer = load_nano().tokenizer
    env = task.make("train")
    for seed in range(5):
        text = f"{task.name}\n{env.reset(seed=seed)[0]}"
        assert tokenizer.unk_token_id not in tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("file", ["letters.py", "conf/env/letters.yaml"])
def test_readme_shows_the_example_as_it_is(file: str) -> None:
    language = "python" if file.endswith(".py") else "yaml"
    block = f"```{language}\n{(EXAMPLE / file).read_text(encoding='utf-8')}```\n"
    assert block in (ROOT / "README.md").read_text(encoding="utf-8")


def test_a_part_with_a_network_learns_where_the_policy_succeeds() -> None:
    def made() -> Progress:
        part: Progress = instantiate(
            OmegaConf.load(OWN_REWARD / "conf/reward/progress.yaml").progress, weight=2.0
        )
        part.setup(context())
        return part

    episodes = [
        episode([turn(text="P near"), turn(text="P there")], success=True),
        episode([turn(text="P far"), turn(text="P lost")], member=1),
    ]
    part, fresh = made(), made()
    assert part.score(episodes, iteration=0) == fresh.score(episodes, iteration=0)
    for iteration in range(20):
        part.learn(episodes, iteration=iteration)
    (to_there, _), (to_lost, _) = part.score(episodes, iteration=20)
    start = [sum(row) for row in part.score(episodes, iteration=20)]
    assert start[0] < -0.9 and start[1] > -0.1, "an episode earns the chance that it began with, taken off"
    assert abs(to_there) < 0.1 and abs(to_lost) < 0.1  # what came of both was seen in their first states
    fresh.load_state_dict(part.state_dict())
    assert part.score(episodes, iteration=21) == fresh.score(episodes, iteration=21)


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["own_env env=letters", "own_reward reward=progress"])
def test_two_iterations_of_training(tmp_path: Path, choice: str) -> None:
    folder, option = choice.split()
    arguments = ["--config-dir", str(ROOT / "examples" / folder / "conf"), option, "experiment=quick"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *arguments, f"hydra.run.dir={tmp_path}"],
        cwd=tmp_path,  # not the repository: the game is found beside train.py
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((tmp_path / "metrics.csv").open(encoding="utf-8")))
    assert [row["iteration"] for row in rows] == ["0", "1", "2"]
    assert all(row["val/success"] for row in rows)
    documented = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    assert [
        name
        for name in rows[0]
        if name != "iteration" and not name.startswith("reward/") and f"`{name}`" not in documented
    ] == []
