"""Storage of evaluation results in the run folder, if it is writable."""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from lit_agentrl.config.errors import get_first_line
from lit_agentrl.files import write_atomic
from lit_agentrl.runs.run_folder import lock_folder


def can_write(folder: Path) -> bool:
    """Check, before anything is played, whether a folder is writable; warn if it is not."""
    try:
        parent = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        with tempfile.NamedTemporaryFile(dir=parent):  # keep() creates the folder itself, for results
            return True
    except OSError as error:
        _warn_not_written(folder, error)
        return False


def write_results(folder: Path, name: str, content: dict[str, Any]) -> Path | None:
    """Write results to a file and return its path.

    If that fails, as on a full disk, warn the user and return None.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with lock_folder(folder):  # other processes may evaluate the same run
            target = _find_target(folder, name, content["config"])
            write_atomic(target, json.dumps(content, indent=2) + "\n")
    except (OSError, ValueError, KeyError, TypeError) as error:  # also from a damaged file of that name
        _warn_not_written(folder / f"{name}.json", error)
        return None
    return target


def _find_target(folder: Path, name: str, config: Any) -> Path:
    """Find the file for a set of options; repeating an evaluation overwrites its file."""
    for number in itertools.count(1):
        target = folder / f"{name}{'' if number == 1 else f'_{number}'}.json"
        if not target.exists() or json.loads(target.read_text())["config"] == config:
            return target
    raise AssertionError("unreachable: count() does not end")


def _warn_not_written(path: Path, error: Exception) -> None:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else get_first_line(error)
    print(f"warning: {path} cannot be written ({reason}): results are shown but not saved", file=sys.stderr)
