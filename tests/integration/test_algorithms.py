"""Every named algorithm runs over many turns; `test_learning` has each of them learn in one."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from lit_agentrl.cli.train import main as main_train
from lit_agentrl.models.policy import NANO_FOLDER
from lit_agentrl.report import summary as reports
from tests.conftest import sampled
from tests.rl.test_algo_configs import ALGORITHMS, UNTRAINED

SMALL = [
    "rollout.prompts=4", "rollout.members=4", "rollout.max_context_tokens=400", "val.episodes=4", "val.every=3",
    "test.episodes=0", "engine.num_slots=16", "trainer.max_epochs=3", "callbacks.transcripts.every=3",
]  # fmt: skip

# of each kind that no other test of whole runs has; every algorithm's loss is pinned in tests/golden
OFTEN = (
    "arpo_replay", "dapo", "eepo", "ghpo", "gigpo", "kto", "mcts_ppo", "nash_md", "ppo_turn", "safe_rlhf", "step_dpo",
    "training_free_grpo", "tree_grpo", "ufo",
)  # fmt: skip
OPTIONS = {
    "ufo": ["env=sokoban", "env.max_turns=1", "env.max_actions_per_turn=10"],
    "safe_rlhf": ["env=frozen_lake", "env.game.thin_share=0.3"],
    "distill": ["env=sokoban", f"reference.path={NANO_FOLDER}"],
}


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("name", sampled(ALGORITHMS, OFTEN))
def test_three_iterations(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    # what few episodes leave to train on may be nothing for the algorithms that drop uniform groups
    game = OPTIONS.get(name, ["env=sokoban"])
    update = [] if name in UNTRAINED else ["update.minibatches=2"]
    main_train([*SMALL, *update, f"algo={name}", *game, f"hydra.run.dir={folder}"])
    assert reports.read(folder / "summary.json")["status"] == "completed"
    start, *iterations = rows(folder)
    assert len(iterations) == 3
    for row in iterations:
        if name not in UNTRAINED and not row.get("train/skipped_steps"):
            assert math.isfinite(float(row["train/loss"])) and float(row["train/grad_norm"]) < 1e4


@pytest.mark.slow
@pytest.mark.sweep
def test_a_critic_and_further_waves_in_a_whole_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    main_train(
        [
            *SMALL, "update.minibatches=2", "algo=ppo", "filter=dynamic_sampling", "env=bandit",
            "critic.warmup_iterations=1", "algo.structure.max_waves=3", f"hydra.run.dir={folder}",
        ]
    )  # fmt: skip
    iterations = rows(folder)[1:]
    waves = [float(row["rollout/waves"]) for row in iterations]
    assert max(waves) > 1 and all(1 <= count <= 3 for count in waves)
    episodes = [float(row["rollout/episodes"]) for row in iterations]
    assert episodes == [16 * count for count in waves]
    trained = [row for row in iterations if not row.get("train/skipped_steps")]
    assert trained and all(math.isfinite(float(row["critic/explained_variance"])) for row in trained)


@pytest.mark.slow
def test_critic_and_advantage_must_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, message in (
        (["algo=ppo", "critic=none"], "algo.advantage of ppo needs the values of a critic"),
        (
            ["algo=grpo", "critic=shared"],
            "critic=shared needs an algorithm that reads the values",
        ),
    ):
        with pytest.raises(SystemExit):
            main_train([*SMALL, *options, f"hydra.run.dir={tmp_path / 'refused'}"])
        assert message in capsys.readouterr().err
        assert not (tmp_path / "refused").exists()
