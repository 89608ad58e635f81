"""Find the last good checkpoint of a run whose numbers became infinite or NaN."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lit_agentrl.checks import NotFinite
from lit_agentrl.config.errors import get_first_line
from lit_agentrl.strategies.checkpoint_io import (
    CheckpointError,
    load_progress,
    remove_checkpoint,
)


def name_good_checkpoint(error: Exception, cause: NotFinite, folder: Path, *, is_writing: bool) -> None:
    """Append the last good checkpoint to the message of an error.

    If ``last.ckpt`` already holds the bad weights, its predecessor replaces it.

    Args:
        error: the error that is finally raised.
        cause: the error with the number of optimizer steps from which on the weights are bad.
        folder: the run folder.
        is_writing: whether this process may move files; of several processes, only the first may.
    """
    checkpoints = folder / "checkpoints"
    last, previous, best = (
        checkpoints / "last.ckpt",
        checkpoints / "last.ckpt.prev",
        checkpoints / "best.ckpt",
    )
    progress = {path: _read_progress(path) for path in (last, previous, best)}
    good_iterations = {
        path: saved["iterations"]
        for path, saved in progress.items()
        if saved and saved["version"] < cause.version
    }
    note = "there is no earlier checkpoint" if is_writing else ""
    if good_iterations:
        path = max(good_iterations, key=lambda candidate: good_iterations[candidate])
        if path == previous:
            if is_writing:
                remove_checkpoint(last)
                os.rename(previous, last)
            path = last
        contents = ", which holds only the weights" if path == best else ""
        iteration = max(good_iterations.values())
        note = f"the last good checkpoint is {path}, of iteration {iteration}{contents}"
    if note:
        error.args = (f"{get_first_line(error)}; {note}", *error.args[1:])


def _read_progress(path: Path) -> dict[str, Any] | None:
    """Return the iterations and optimizer steps of a checkpoint; None if it is unreadable."""
    if not path.exists():
        return None
    try:
        saved = load_progress(path)
        return {
            "version": saved["policy"]["version"],
            "iterations": saved["callbacks"]["Totals"]["counts"]["iterations"],
        }
    except (CheckpointError, KeyError):
        return None
