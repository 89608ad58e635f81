"""Training on vLLM's episodes, from the command line: the very curve of a run on the native engine's."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lit_agentrl.cli.evaluate import main as evaluate
from lit_agentrl.cli.train import main

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.vllm

SMALL = (
    "algo=grpo", "env=bandit", "trainer.max_epochs=3", "rollout.prompts=2", "rollout.members=4", "val.episodes=4",
    "test.episodes=4", "trainer.accelerator=cpu",
)  # fmt: skip


def curve(folder: Path) -> list[dict[str, Any]]:
    with (folder / "metrics.csv").open() as file:
        return [row for row in csv.DictReader(file) if row.get("rollout/success")]


def test_a_run_is_that_of_the_native_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {}
    for engine in ("native", "vllm"):
        main([*SMALL, f"engine={engine}", f"hydra.run.dir={tmp_path / engine}"])
        rows[engine] = curve(tmp_path / engine)
    assert len(rows["vllm"]) == len(rows["native"]) == 3
    for ours, theirs in zip(rows["native"], rows["vllm"], strict=True):
        for name in (
            "rollout/success",
            "rollout/return_mean",
            "rollout/entropy",
            "train/loss",
            "train/grad_norm",
        ):
            assert float(theirs[name]) == pytest.approx(float(ours[name]), abs=1e-4), name
        assert float(theirs["engine/sync_gap"]) < 1e-4
    capsys.readouterr()
    evaluate([f"run={tmp_path / 'vllm'}", "episodes=4"])  # nothing in the folder is code of the user's
    assert "success" in capsys.readouterr().out


def test_training_processes_have_an_engine_each(tmp_path: Path) -> None:
    rows = {}
    for engine in ("native", "vllm"):
        options = [*SMALL, "strategy=ddp", "trainer.devices=2", f"engine={engine}", "trainer.max_epochs=2"]
        options.remove("trainer.max_epochs=3")
        folder = tmp_path / engine
        done = subprocess.run(
            [sys.executable, "train.py", *options, f"hydra.run.dir={folder}"],
            cwd=ROOT, capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
        assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr[-2000:]
        rows[engine] = curve(folder)
    for ours, theirs in zip(rows["native"], rows["vllm"], strict=True):
        assert float(theirs["rollout/success"]) == float(ours["rollout/success"])
        assert float(theirs["train/grad_norm"]) == pytest.approx(float(ours["train/grad_norm"]), abs=1e-4)
        assert float(theirs["engine/sync_gap"]) < 1e-4


def test_workers_have_an_engine_each(tmp_path: Path) -> None:
    common = [
        *SMALL[:2],
        "trainer.max_epochs=1",
        *SMALL[3:],
        "engine=vllm",
        "engine.num_slots=8",
        "worker.share=1",
    ]
    rows = []
    for worker in ("none", "process"):
        main([*common, f"worker={worker}", f"hydra.run.dir={tmp_path / worker}"])
        rows.append(curve(tmp_path / worker)[0])
    for name in ("rollout/success", "rollout/return_mean", "rollout/entropy", "train/loss"):
        assert rows[0][name] == rows[1][name], name
