"""The last good checkpoint of a run whose numbers are no longer finite: kept, and named."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lit_agentrl.checks import NotFinite
from lit_agentrl.config.errors import first_line
from lit_agentrl.strategies.checkpoint_io import (
    CheckpointError,
    progress_of,
    remove_checkpoint,
)


def name_good_checkpoint(error: Exception, cause: NotFinite, folder: Path, *, is_writing: bool) -> None:
    """Adds to an error's line which checkpoint is the last one of use.

    Where ``last.ckpt`` holds the weights at fault already, its predecessor takes its place.

    Args:
        error: what is raised in the end.
        cause: says which weights are of no use.
        folder: of the run.
        is_writing: whether this process may move files; of several, only the first may.
    """
    checkpoints = folder / "checkpoints"
    last, before, best = checkpoints / "last.ckpt", checkpoints / "last.ckpt.prev", checkpoints / "best.ckpt"
    found = {path: _progress(path) for path in (last, before, best)}
    good = {
        path: seen["iterations"] for path, seen in found.items() if seen and seen["version"] < cause.version
    }
    note = "there is no checkpoint of before" if is_writing else ""
    if good:
        path = max(good, key=lambda each: good[each])
        if path == before:
            if is_writing:
                remove_checkpoint(last)
                os.rename(before, last)
            path = last
        note = f"the last good checkpoint is {path}, of iteration {max(good.values())}"
    if note:
        error.args = (f"{first_line(error)}; {note}", *error.args[1:])


def _progress(path: Path) -> dict[str, Any] | None:
    """Iterations and optimizer steps of a checkpoint; None where there is none that can be read."""
    if not path.exists():
        return None
    try:
        saved = progress_of(path)
        return {
            "version": saved["policy"]["version"],
            "iterations": saved["callbacks"]["Totals"]["counts"]["iterations"],
        }
    except (CheckpointError, KeyError):
        return None
