"""Runs whose engine has weights of its own."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from lit_agentrl.cli.train import main as main_train
from tests.commands import SMALL, Refused


def given(name: str, *more: str) -> list[str]:
    target = f"engine._target_=tests.engines.given.{name}"
    return [*SMALL.split(), target, "engine.num_slots=8", *more]


@pytest.mark.slow
@pytest.mark.sweep
def test_a_run_gives_its_engine_each_version_and_logs_it(tmp_path: Path) -> None:
    main_train([*given("Given"), f"hydra.run.dir={tmp_path}"])
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["engine/staleness"]) for row in rows[1:]] == [0.0, 0.0]
    assert all(0 <= float(row["engine/sync_gap"]) < 1e-4 for row in rows[1:])


@pytest.mark.slow
@pytest.mark.sweep
def test_a_run_whose_engine_keeps_its_weights_ends_in_one_line(tmp_path: Path, refused: Refused) -> None:
    message = refused(" ".join([*given("Keeps"), f"hydra.run.dir={tmp_path}"]))
    assert "engine=Keeps, version 0 of the weights: log-probs of a fixed text differ" in message
    assert "engine.max_sync_gap=0.001" in message
