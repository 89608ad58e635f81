"""Runs whose policy reads less than the whole episode."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from lit_agentrl.callbacks.transcript_lines import read
from lit_agentrl.cli.evaluate import main as main_evaluate
from lit_agentrl.cli.train import main as main_train
from lit_agentrl.episode import Segment
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import Scheduler
from lit_agentrl.rollout.workers import inline
from lit_agentrl.text.context import Window

SMALL = [
    "env=frozen_lake", "rollout.prompts=2", "rollout.members=4", "rollout.max_context_tokens=400",
    "val.episodes=2", "val.every=1", "test.episodes=0", "engine.num_slots=8", "trainer.accelerator=cpu",
    "~callbacks.progress",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.sweep
def test_a_window_from_training_to_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def spied(rules: Rules, *args: Any) -> Scheduler:
        made.append(rules.context)
        return Scheduler(rules, *args)

    monkeypatch.setattr(inline, "Scheduler", spied)
    folder = tmp_path / "run"
    options = ["trainer.max_epochs=1", "algo=gigpo", "context=window", "context.turns=1"]
    main_train([*SMALL, *options, f"hydra.run.dir={folder}"])
    trained = len(made)
    main_evaluate([f"run={folder}", "episodes=2", "split=val"])
    assert len(made) > trained and set(made) == {Window(1)}
    with (folder / "metrics.csv").open(newline="") as file:
        row = list(csv.DictReader(file))[-1]
    assert float(row["train/logp_gap"]) < 1e-5 and float(row["speed/prefill_reuse"]) < 0.9
    turns = [turn for _, e in read(folder / "transcripts" / "train.jsonl") for turn in e.turns]
    assert any(Segment.PAST in turn.prefix_segments for turn in turns)


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize(
    ("algo", "context"), [("gigpo", "window"), ("loop", "single"), ("ppo_turn", "window")]
)
def test_algorithms_on_rows_of_one_turn(algo: str, context: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = [f"algo={algo}", f"context={context}", f"hydra.run.dir={folder}"]
    main_train([*SMALL, *options, "update.minibatches=2", "trainer.max_epochs=2"])
    with (folder / "metrics.csv").open(newline="") as file:
        row = list(csv.DictReader(file))[-1]
    assert float(row["train/logp_gap"]) < 1e-5 and float(row["train/grad_norm"]) > 0
