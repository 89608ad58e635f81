"""Shared functions of campaigns: runs that continue after interruptions, and stored results."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lit_agentrl.api import Result, train
from lit_agentrl.files import write_atomic

Outcome = Mapping[str, Any]


def finish_run(folder: Path, options: Sequence[str], *, config_dir: Path | str | None = None) -> Result:
    """Run these options to the end, continuing from where an earlier run was stopped.

    Args:
        folder: folder of the run.
        options: options of ``train.py``.
        config_dir: further configs, as in ``--config-dir``.
    """
    if not (folder / ".hydra" / "config.yaml").exists():
        return train(*options, config_dir=config_dir, folder=folder)
    run = Result(folder)  # a killed run has an error; a run ended by a callback has none
    is_done = (folder / "summary.json").exists() and not run.summary.get("error")
    return run if is_done else run.resume(trust_run=True)


def read_or_measure(record: Path, measure: Callable[[], Outcome]) -> Outcome:
    """Return the stored result, or call ``measure`` and store its result in ``record``."""
    if not record.exists():
        write_atomic(record, json.dumps(measure()))
    stored: Outcome = json.loads(record.read_text())
    return stored


def make_campaign_parser(
    description: str,
    seeds: Sequence[int],
    *,
    further: Sequence[int] = (),
    folder: str = "stores finished work",
) -> argparse.ArgumentParser:
    """Make a parser with the options of every campaign.

    Args:
        description: one-line description.
        seeds: default seeds.
        further: other permitted seeds.
        folder: help text of the folder.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--folder", type=Path, required=True, help=folder)
    parser.add_argument("--seeds", type=int, nargs="+", choices=[*seeds, *further], default=list(seeds))
    parser.add_argument("options", nargs="*", help="further options of every run, behind --")
    return parser
