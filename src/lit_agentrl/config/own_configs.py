"""Folders of configs that ``--config-dir`` names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lit_agentrl.config.errors import UserError
from lit_agentrl.paths import list_configs, name_config


def check_folders(folders: Sequence[str | Path]) -> None:
    """Refuse configs that Hydra would pass over without a word.

    Raises:
        UserError: a second folder, of which Hydra reads the last alone, or a file that is called as one of ours, which
            Hydra finds first.
    """
    if len(folders) > 1:
        raise UserError(
            f"--config-dir is given twice, as {folders[0]} and {folders[1]}; put what is in them into one folder"
        )
    for folder in map(Path, folders):
        for shipped in list_configs():
            name = name_config(shipped)
            if (folder / name).is_file() and (folder / name).read_bytes() != shipped.read_bytes():
                raise UserError(
                    f"--config-dir {folder}: {name} is also the name of a shipped file, which would be "
                    "taken; give yours another name"
                )
