"""What kills leave between the writes of a run, and what ``resume=`` makes of it."""

from __future__ import annotations

import csv
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Trainer

from lit_agentrl.cli.train import main as main_train
from lit_agentrl.report import summary as reports
from tests.commands import Refused, contents

pytestmark = pytest.mark.usefixtures("in_empty_folder")


def left(folder: Path) -> dict[str, Any]:
    """What a run left, but what the clock says."""
    with (folder / "metrics.csv").open(newline="") as file:
        rows = [
            {name: cell for name, cell in row.items() if not name.startswith(("time/", "speed/"))}
            for row in csv.DictReader(file)
        ]
    summary = reports.read(folder / "summary.json")
    scores = {name: summary[name] for name in ("status", "error", "games", "iterations", "episodes")}  # type: ignore[literal-required]
    lines = {path.name: path.read_text() for path in (folder / "transcripts").iterdir()}
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if "tensorboard" not in str(path)}
    return {"rows": rows, **scores, **lines, "names": names}


def stop_before_the_first_checkpoint(folder: Path, *, iteration: int) -> None:
    """As a kill leaves the folder of a finished run of two iterations that was that far."""
    shutil.rmtree(folder / "checkpoints")
    shutil.rmtree(folder / "hf")
    lines = (folder / "transcripts" / "val.jsonl").read_text().splitlines(keepends=True)
    if iteration == 0:  # in the first write of all
        for name in ("metrics.csv", "summary.json", "transcripts/train.jsonl"):
            (folder / name).unlink()
        (folder / "transcripts" / "val.jsonl").write_text(lines[0][: len(lines[0]) // 2])
        return
    rows = (folder / "metrics.csv").read_text().splitlines(keepends=True)
    (folder / "metrics.csv").write_text("".join(rows[:3]) + rows[3][:9])
    (folder / "metrics.csv.tmp").write_text("half")
    (folder / "transcripts" / "val.jsonl").write_text(lines[0])
    summary = reports.read(folder / "summary.json")
    reports.write(folder / "summary.json", {**summary, "status": "stopped", "iterations": 0})


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("iteration", [0, 1])
def test_a_run_that_was_killed_before_its_first_checkpoint_starts_over(
    finished_run: Path, run_copy: Path, caplog: pytest.LogCaptureFixture, iteration: int
) -> None:
    stop_before_the_first_checkpoint(run_copy, iteration=iteration)
    with caplog.at_level(logging.WARNING):
        main_train([f"resume={run_copy}"])
    assert left(run_copy) == left(finished_run)
    file = "val.jsonl" if iteration == 0 else "metrics.csv"
    (told,) = [
        text for text in caplog.messages if "dropped an incomplete line of an interrupted write" in text
    ]
    assert file in told


def stop_at_the_end(folder: Path) -> None:
    """Leave the folder as a run that was killed while its last weights were measured."""
    summary = reports.read(folder / "summary.json")
    reports.write(folder / "summary.json", {**summary, "status": "stopped", "error": "killed before the end"})


@pytest.mark.slow
def test_a_line_torn_in_the_last_measurement_goes_and_none_is_doubled(
    finished_run: Path, run_copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = run_copy / "transcripts" / "val.jsonl"
    start, *last = file.read_text().splitlines(keepends=True)
    # an earlier version went on behind what was torn
    file.write_text(start + last[0][:40] + "".join(last) + last[0][:50])
    stop_at_the_end(run_copy)
    main_train([f"resume={run_copy}"])
    assert left(run_copy) == left(finished_run)
    assert any("val.jsonl: dropped an incomplete line" in text for text in caplog.messages)


def completed(folder: Path) -> None:
    """As it is."""


def stopped(folder: Path) -> None:
    summary = reports.read(folder / "summary.json")
    reports.write(folder / "summary.json", {**summary, "status": "stopped", "iterations": 0})


@pytest.mark.slow
@pytest.mark.parametrize("end", [completed, stopped])
def test_a_run_whose_checkpoints_are_gone_is_left_alone(
    refused: Refused, run_copy: Path, end: Callable[[Path], None]
) -> None:
    end(run_copy)
    for file in (run_copy / "checkpoints").glob("last.ckpt*"):
        file.unlink()
    before = contents(run_copy)
    message = refused(f"resume={run_copy}")
    assert "has no checkpoints/last.ckpt to continue from, though it has logged 2 iterations" in message
    assert contents(run_copy) == before


@pytest.mark.slow
def test_a_best_checkpoint_in_place_of_the_last_is_refused(refused: Refused, run_copy: Path) -> None:
    shutil.copy(run_copy / "checkpoints" / "best.ckpt", run_copy / "checkpoints" / "last.ckpt")
    stop_at_the_end(run_copy)
    message = refused(f"resume={run_copy}")
    assert "last.ckpt holds weights alone, as best.ckpt does, and cannot be continued" in message


@pytest.mark.slow
def test_a_best_checkpoint_that_is_gone_is_told(run_copy: Path) -> None:
    (run_copy / "checkpoints" / "best.ckpt").unlink()
    stop_at_the_end(run_copy)
    with pytest.warns(UserWarning, match=r"best\.ckpt was deleted"):
        main_train([f"resume={run_copy}"])
    assert reports.read(run_copy / "summary.json")["status"] == "completed"


@pytest.mark.slow
def test_the_summary_of_a_run_that_goes_on_does_not_say_that_it_is_over(
    run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[dict[str, Any]] = []

    def killed(*_: object, **__: object) -> None:
        found.append(json.loads((run_copy / "summary.json").read_text()))
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "fit", killed)
    with pytest.raises(SystemExit):
        main_train([f"resume={run_copy}", "trainer.max_epochs=3"])
    (summary,) = found
    assert (summary["status"], summary["error"]) == ("stopped", "killed before the end")
    assert (summary["iterations"], summary["planned_iterations"]) == (2, 3)
    assert all(game["start"] for game in summary["games"] if game["split"] == "val")
