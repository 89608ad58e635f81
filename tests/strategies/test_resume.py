"""Runs that continue on another number of processes; on the same, to the bit: `tests/integration/test_kills.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.integration.conftest import TINY, command, outcome, run

ONE = ["strategy=single", "trainer.devices=1"]
TWO = ["strategy=ddp", "trainer.devices=2"]


def _run(*overrides: str) -> None:
    done = run(command(*overrides))
    assert done.returncode == 0, done.stderr


def _start(folder: Path, layout: list[str], iterations: int) -> None:
    _run(
        *TINY,
        "trainer.accelerator=cpu",
        f"trainer.max_epochs={iterations}",
        f"hydra.run.dir={folder}",
        *layout,
    )


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one") / "straight"
    _start(folder, ONE, 3)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(ONE, TWO), (TWO, ONE)], ids=["1 to 2", "2 to 1"])
def test_another_number_of_processes_continues(
    before: list[str], after: list[str], straight: Path, tmp_path: Path
) -> None:
    """Within rounding of the run that stayed on one process, with the same episodes played."""
    _start(tmp_path / "moved", before, 2)
    _run(f"resume={tmp_path / 'moved'}", "trainer.max_epochs=3", *after)
    summary = json.loads((tmp_path / "moved" / "summary.json").read_text())
    assert summary["status"] == "completed" and summary["iterations"] == 3
    weights, rows = outcome(straight)
    moved_weights, moved_rows = outcome(tmp_path / "moved")
    for name, weight in weights.items():
        torch.testing.assert_close(moved_weights[name], weight, rtol=1e-5, atol=2e-5)
    assert len(rows) == len(moved_rows) == 4
    for row, moved in zip(rows, moved_rows, strict=True):
        for name in ("rollout/success", "rollout/return_mean", "rollout/action_tokens", "val/success"):
            assert float(row.get(name) or 0) == pytest.approx(float(moved.get(name) or 0), abs=1e-5), name
        for name in ("train/loss", "train/grad_norm"):
            assert float(row.get(name) or 0) == pytest.approx(float(moved.get(name) or 0), abs=1e-4), name
