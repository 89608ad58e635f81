"""Keeping what an evaluation measured in its run folder, where that can be written."""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from lit_agentrl.config.errors import first_line
from lit_agentrl.files import write_atomic
from lit_agentrl.runs.run_folder import lock_folder


def can_keep(folder: Path) -> bool:
    """Whether a folder can be written; tells the user if it cannot, before anything is played."""
    try:
        above = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        with tempfile.NamedTemporaryFile(
            dir=above
        ):  # the folder itself is made when there is something to keep
            return True
    except OSError as error:
        _tell_not_kept(folder, error)
        return False


def keep(folder: Path, name: str, content: dict[str, Any]) -> Path | None:
    """The file that results are written to; None where that fails, as on a full disk, which the user is told."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with lock_folder(folder):  # others may evaluate the run beside this process
            target = _target(folder, name, content["config"])
            write_atomic(target, json.dumps(content, indent=2) + "\n")
    except (OSError, ValueError, KeyError, TypeError) as error:  # also of a damaged file of that name
        _tell_not_kept(folder / f"{name}.json", error)
        return None
    return target


def _target(folder: Path, name: str, config: Any) -> Path:
    """A file of its own for each set of options; repeating an evaluation rewrites its file."""
    for number in itertools.count(1):
        target = folder / f"{name}{'' if number == 1 else f'_{number}'}.json"
        if not target.exists() or json.loads(target.read_text())["config"] == config:
            return target
    raise AssertionError("unreachable: count() does not end")


def _tell_not_kept(path: Path, error: Exception) -> None:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
    print(f"warning: {path} cannot be written ({reason}): results are shown, and not kept", file=sys.stderr)
