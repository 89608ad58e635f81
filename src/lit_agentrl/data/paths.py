"""Find the folders and files of a data set."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lit_agentrl.checks import require_local
from lit_agentrl.data.episodes import open_folder
from lit_agentrl.data.row_folder import read_kind
from lit_agentrl.envs.tasks.tables import NAMES, READERS


def find_paths(names: Sequence[str]) -> list[Path]:
    """Find the folders and files of a data set.

    Raises:
        ValueError: one does not exist, or has another format.
    """
    for name in names:
        require_local("path", name)
    paths = [Path(name).expanduser() for name in names]
    for path in paths:
        if not os.path.exists(path):  # also of a name that is too long
            raise ValueError(f"path={path} is not there; looked for {path.absolute()}")
        if path.is_dir():
            if rows := read_kind(path):
                raise ValueError(f"path={path} is a folder of {rows}; name its file, {path / rows}.jsonl")
            if open_folder(path) is None:
                raise ValueError(f"path={path} is an empty folder; name one that lit-agentrl collect wrote")
        elif path.suffix not in READERS or not path.is_file():
            raise ValueError(
                f"path={path} must be a folder of lit-agentrl collect, or a file that ends in {NAMES}"
            )
    return paths
