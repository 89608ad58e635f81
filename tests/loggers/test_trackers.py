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
from lit_agentrl.loggers.mlflow import MLflowLog
from lit_agentrl.loggers.wandb import WandbLog
from lit_agentrl.report.table import Metrics
from tests.commands import SMALL, files

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


def killed_and_resumed(logger: Any, again: Any) -> None:
    """Two launches of a run: the second repeats iteration 3, of which no checkpoint was left."""
    logger.rewind(-1)
    logger.log_hyperparams({"seed": 0, "rounds": 3})
    for step in range(4):
        logger.log_metrics({"a/b": float(step)}, step)
    again.rewind(2)
    again.log_hyperparams({"seed": 0, "rounds": 5})
    for step in range(3, 6):
        again.log_metrics({"a/b": float(step)}, step)


def table(folder: Path) -> None:
    folder.mkdir()
    (folder / "metrics.csv").write_text("iteration,a/b\n0,0.0\n1,1.0\n2,2.0\n", encoding="utf-8")


@pytest.mark.slow
def test_a_run_on_an_mlflow_server_shows_each_iteration_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'server.db'}")
    table(tmp_path / "run")
    killed_and_resumed(MLflowLog(tmp_path / "run"), MLflowLog(tmp_path / "run"))
    assert [path.name for path in (tmp_path / "run/mlflow").iterdir()] == ["run_id"]
    database = sqlite3.connect(tmp_path / "server.db")
    asked_for = "SELECT step, value FROM metrics WHERE key = 'a/b' ORDER BY step"
    assert database.execute(asked_for).fetchall() == [(step, float(step)) for step in range(6)]
    assert database.execute("SELECT name FROM runs").fetchall() == [("run",)]
    assert database.execute("SELECT value FROM params WHERE key = 'rounds'").fetchall() == [("3",)]
    assert database.execute("SELECT value FROM tags WHERE key = 'resumed.rounds'").fetchall() == [("5",)]


@pytest.mark.slow
def test_an_mlflow_run_that_begins_again_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    table(tmp_path / "run")
    first, second = MLflowLog(tmp_path / "run"), MLflowLog(tmp_path / "run")
    first.log_metrics({"a/b": 7.0}, 0)
    second.rewind(-1)
    second.log_metrics({"a/b": 1.0}, 0)
    database = sqlite3.connect(tmp_path / "run/mlflow/mlflow.db")
    asked_for = "SELECT value FROM metrics JOIN runs USING (run_uuid) WHERE lifecycle_stage = 'active'"
    assert database.execute(asked_for).fetchall() == [(1.0,)]


class FakeRun:
    """A run of W&B on a server, which ignores rows of steps that it has."""

    rows: dict[str, dict[int, Any]] = {}

    def __init__(self, id: str | None, **options: Any) -> None:
        self.id = id or "a1b2c3d4"
        self.options = options
        self.config = self.summary = {}
        (Path(options["dir"]) / "wandb" / f"run-20260101_000000-{self.id}").mkdir(exist_ok=True)

    def log(self, row: dict[str, Any], step: int, commit: bool) -> None:
        self.rows.setdefault(self.id, {}).setdefault(step, row)

    def finish(self, exit_code: int) -> None:
        pass


@pytest.mark.slow
def test_a_run_on_wandb_goes_on_under_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setattr(FakeRun, "rows", {})
    asked: list[dict[str, Any]] = []

    def init(**options: Any) -> FakeRun:
        asked.append(options)
        made = FakeRun(**options)
        made.config = type("Config", (), {"update": lambda *_, **__: None})()  # type: ignore[assignment]
        return made

    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    table(tmp_path / "run")
    killed_and_resumed(WandbLog(tmp_path / "run"), WandbLog(tmp_path / "run"))
    assert [(each["id"], each["resume"]) for each in asked] == [(None, "allow"), ("a1b2c3d4", "allow")]
    assert {step: row["a/b"] for step, row in FakeRun.rows["a1b2c3d4"].items()} == {
        n: float(n) for n in range(6)
    }
    assert asked[0]["settings"].mode != "offline"


@pytest.mark.parametrize(
    ("key", "mode", "is_live"),
    [
        ("", None, False),
        ("k", None, True),
        ("k", "offline", False),
        ("k", "disabled", False),
        ("", "online", False),
    ],
)
def test_wandb_is_live_where_a_key_is_set(
    key: str, mode: str | None, is_live: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_API_KEY", key)
    monkeypatch.setenv("WANDB_MODE", mode) if mode else monkeypatch.delenv("WANDB_MODE", raising=False)
    assert WandbLog(tmp_path).is_live is is_live
