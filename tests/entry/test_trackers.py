"""W&B and MLflow in a run that is killed and goes on: each iteration once, all in the run folder."""

from __future__ import annotations

import json
import os
import shlex
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lit_agentrl.cli.train import main as main_train
from lit_agentrl.report.table import Metrics
from tests.entry.conftest import SMALL, files

ITERATIONS = 30


def records(path: Path) -> Iterator[Any]:
    """What an offline file of W&B holds: records in blocks of 32 KiB, as LevelDB writes its log."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""


def read(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


@pytest.mark.slow
@pytest.mark.sweep
def test_a_killed_run_stands_once_in_both(in_empty_folder: Path) -> None:
    home = in_empty_folder / "home"
    home.mkdir()
    asked = shlex.split(SMALL.replace("max_epochs=2", f"max_epochs={ITERATIONS}"))
    asked = [option for option in asked if option != "test.episodes=0"]
    asked += ["test.episodes=2", "logger=[wandb,mlflow]", "hydra.run.dir=run"]
    run = subprocess.Popen(
        [sys.executable, "-m", "lit_agentrl", "train", *asked],
        env={
            **os.environ,
            "HOME": str(home),
            "MLFLOW_TRACKING_URI": "file:elsewhere",
            "WANDB_MODE": "online",
        },
    )
    table = Path("run/metrics.csv")
    while run.poll() is None and len(Metrics.read(table)) < 4:
        time.sleep(0.02)
    assert run.poll() is None
    run.kill()
    run.wait()
    assert {path.name for path in in_empty_folder.iterdir()} == {"home", "run"}
    assert {file.parent.name for file in files(home)} <= {
        "matplotlib"
    }  # of matplotlib, which torchmetrics imports
    main_train(["resume=run"])

    rows = Metrics.read(table)
    (file,) = Path("run").glob("wandb/offline-run-*/*.wandb")
    found = list(records(file))
    history = [read(record.history.item) for record in found if record.history.item]
    assert [row["_step"] for row in history] == list(range(ITERATIONS + 1))
    success = [row.get("val/success") for row in history]
    assert success == rows["val/success"] and history[0]["val/oracle"] == 1
    (config,) = [read(record.config.update) for record in found if "seed" in read(record.config.update)]
    assert config["algo.advantage"] == "group_mean_std"
    scores = [read(record.summary.update) for record in found]
    assert any("test/bandit/last/success_low" in each and each["status"] == "completed" for each in scores)

    database = sqlite3.connect("run/mlflow/mlflow.db")
    assert database.execute("SELECT name, status FROM runs").fetchall() == [("run", "FINISHED")]
    asked_for = "SELECT step, value FROM metrics WHERE key = 'rollout/return_mean' ORDER BY step"
    assert database.execute(asked_for).fetchall() == list(enumerate(rows["rollout/return_mean"]))[1:]
    keys = {key for (key,) in database.execute("SELECT key FROM latest_metrics")}
    assert {"scores/test/bandit/last/success_high", "scores/val/bandit/chance/success", "val/chance"} <= keys
    assert ("seed", "0") in database.execute("SELECT key, value FROM params").fetchall()
