"""What campaigns of many runs share: a run that is finished however often it was ended, and what is kept of it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lit_agentrl.api import Result, train
from lit_agentrl.files import write_atomic

Outcome = Mapping[str, Any]


def finished(folder: Path, options: Sequence[str], *, config_dir: Path | str | None = None) -> Result:
    """A run of these options to its end, continued where it was ended before.

    Args:
        folder: of the run.
        options: of ``train.py``.
        config_dir: further configs, as ``--config-dir``.
    """
    if not (folder / ".hydra" / "config.yaml").exists():
        return train(*options, config_dir=config_dir, folder=folder)
    run = Result(folder)  # one that was killed has an error; one that a callback ended has none
    is_done = (folder / "summary.json").exists() and not run.summary.get("error")
    return run if is_done else run.resume(trust_run=True)


def kept(record: Path, find: Callable[[], Outcome]) -> Outcome:
    """What ``find`` gave, now or when the file ``record`` was written."""
    if not record.exists():
        write_atomic(record, json.dumps(find()))
    read: Outcome = json.loads(record.read_text())
    return read


def campaign_parser(
    description: str,
    seeds: Sequence[int],
    *,
    further: Sequence[int] = (),
    folder: str = "keeps what was done",
) -> argparse.ArgumentParser:
    """What every campaign can be told.

    Args:
        description: a line.
        seeds: those that are run where none is named.
        further: seeds that may be named beside them.
        folder: what the folder is.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--folder", type=Path, required=True, help=folder)
    parser.add_argument("--seeds", type=int, nargs="+", choices=[*seeds, *further], default=list(seeds))
    parser.add_argument("options", nargs="*", help="further options of every run, behind --")
    return parser
