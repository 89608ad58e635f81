"""Tiny complete runs, in this process and in processes that can be killed."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lit_agentrl.cli.train import main as main_train
from lit_agentrl.strategies import sharded_io
from tests.conftest import ROOT

TINY = [
    "env=bandit", "rollout.prompts=4", "rollout.members=4", "rollout.max_reply_tokens=24",
    "rollout.max_context_tokens=128", "val.episodes=8", "val.every=2", "test.episodes=0", "engine.num_slots=16",
    "callbacks.transcripts.every=2",
]  # fmt: skip


def command(*overrides: str) -> list[str]:
    return [sys.executable, str(ROOT / "train.py"), *overrides]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}


def launch(folder: Path, *overrides: str) -> list[str]:
    return command(*TINY, f"hydra.run.dir={folder}", *overrides)


def run(arguments: list[str], timeout: float = 600.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=timeout
    )


def checkpoint_of(folder: Path, name: str = "last.ckpt") -> dict[str, Any]:
    """What a checkpoint of a run holds, also where it is a folder."""
    path = folder / "checkpoints" / name
    held: dict[str, Any] = sharded_io.load(path) if path.is_dir() else torch.load(path, weights_only=True)
    return held


def outcome(folder: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, str]]]:
    """Final weights and the deterministic columns of every row."""
    weights: dict[str, torch.Tensor] = checkpoint_of(folder)["state_dict"]
    with (folder / "metrics.csv").open(newline="") as file:
        rows = [
            {key: value for key, value in row.items() if not key.startswith(("time/", "speed/", "worker/"))}
            for row in csv.DictReader(file)
        ]
    return weights, rows


def assert_equal_runs(first: Path, second: Path) -> None:
    weights_a, rows_a = outcome(first)
    weights_b, rows_b = outcome(second)
    assert rows_a == rows_b
    assert weights_a.keys() == weights_b.keys()
    for name, weight in weights_a.items():
        assert torch.equal(weight, weights_b[name]), name


def assert_the_same_twice(given: Sequence[str], folder: Path) -> None:
    """Two runs of these options are equal, and no episode of them failed."""
    for name in ("first", "second"):
        main_train([*given, f"hydra.run.dir={folder / name}"])
    assert_equal_runs(folder / "first", folder / "second")
    _, rows = outcome(folder / "first")
    assert not any(float(row["rollout/failed"] or 0) for row in rows)
