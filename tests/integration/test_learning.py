"""Every named algorithm learns the bandit with expected payoffs within a fixed budget."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lit_agentrl.cli.train import main as main_train
from tests.conftest import sampled
from tests.rl.test_algo_configs import ALGORITHMS, UNTRAINED

pytestmark = pytest.mark.usefixtures("one_thread")

DEFAULT = 20  # iterations of 16 groups of 8 episodes
# what learns from recorded data, whose online form stands for it, from a teacher, or from what this run does not play
RECORDED = {
    "sft", "rft", "dpo", "ipo", "simpo", "cpo", "orpo", "step_dpo", "dmpo", "tdpo", "spin", "dno", "rpo", "rrhf",
    "stable_alignment", "aot", "aot_unpaired", "kto", "qrpo", "iql", "cql", "ilql", "distill", "safe_rlhf",
}  # fmt: skip
ITERATIONS = {"starpo_s": 25}  # it trains on a quarter of the groups
# after plans replies are mostly invalid at first, and the safe arm is learnt; with values of turns it rises and falls
RISES = {"hrl_tar": ("return", 0.08), "archer": ("success", 0.1)}
RISE = 0.15  # of the share of test instances in which the better arm is taken; 0.14 at the start
# one of each family of objectives
OFTEN = ("online_dpo", "ppo", "rloo", "sppo", "starpo_s")
SMALL = [
    "env=bandit", "env.game.payoff=expected", "test.episodes=256", "val.episodes=8", "val.every=1000",
    "callbacks.transcripts.every=1000", "optim.lr=2e-4",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("name", sampled(sorted({*ALGORITHMS} - RECORDED - {*UNTRAINED}), OFTEN))
def test_the_better_arm_is_learnt(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    budget = ITERATIONS.get(name, DEFAULT)
    main_train([*SMALL, f"algo={name}", f"trainer.max_epochs={budget}", f"hydra.run.dir={folder}"])
    games = json.loads((folder / "summary.json").read_text())["games"]
    (game,) = [each for each in games if each["split"] == "test"]
    measure, rise = RISES.get(name, ("success", RISE))
    start, last = game["start"][measure], game["last"][measure]
    print(f"{name}: {start['mean']:.3f} -> {last['mean']:.3f} [{last['low']:.3f}, {last['high']:.3f}]")
    assert start["n"] == last["n"] == 256 and game["last"]["iteration"] == budget
    assert last["mean"] >= start["mean"] + rise
    assert last["low"] > start["high"]


def test_budgets_are_of_algorithms_that_exist() -> None:
    assert set(ITERATIONS) | set(RISES) | RECORDED <= set(ALGORITHMS)
