"""What is said of a run that was stopped before its last iteration."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lit_agentrl.report import summary as reports
from lit_agentrl.runs.finished import note_if_unfinished


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of eight iterations that was killed in the sixth; its summary is that of its start."""
    write_summary(tmp_path, status="stopped", error="killed before the end", iterations=0)
    (tmp_path / "checkpoints").mkdir()
    return tmp_path


def write_summary(folder: Path, **fields: object) -> None:
    summary = {
        "version": 1, "status": "completed", "error": None, "warnings": [], "command": "train", "seed": 0,
        "versions": {}, "git_revision": None, "games": [], "held_out": {}, "monitored": None, "iterations": 8,
        "planned_iterations": 8, "episodes": 1, "action_tokens": 1, "prefilled_tokens": 1, "seconds": {},
        "engine": {}, "saves": None, "peak_memory_bytes": 1, "threads": 2, **fields,
    }  # fmt: skip
    reports.write(folder / "summary.json", summary)  # type: ignore[arg-type]


def save(folder: Path, best: int | None) -> None:
    states = {
        "Totals": {"counts": {"iterations": 5}},
        "BestCheckpoint[val/success,max]": {"best_score": 0.25, "best_iteration": best},
    }
    torch.save({"callbacks": states}, folder / "checkpoints" / "last.ckpt")


def test_an_unfinished_run_is_told_with_its_best_weights(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(folder, best=4)
    note_if_unfinished(folder)
    assert capsys.readouterr().out == (
        "the run has 5 of 8 iterations (killed before the end); its best weights so far (checkpoint=best) are those "
        "of iteration 4, val/success 0.25\n"
    )
    save(folder, best=None)
    note_if_unfinished(folder)
    assert capsys.readouterr().out.endswith("; none of its weights has been judged yet\n")


def test_nothing_is_said_of_a_completed_run_or_one_without_a_summary(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(folder, best=4)
    write_summary(folder)
    note_if_unfinished(folder)
    (folder / "summary.json").unlink()
    note_if_unfinished(folder)
    assert capsys.readouterr().out == ""
