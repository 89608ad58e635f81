"""Run folders, read as untrusted data; damaged files are reported, not raised."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from lit_agentrl.checks import escape_unprintable
from lit_agentrl.report import outcomes, summary, sweep
from lit_agentrl.report.page import regimes
from lit_agentrl.report.table import Metrics

_T = TypeVar("_T")
MAX_BYTES = 64 * 2**20  # largest file that is read
_MAX_SETTINGS = 20_000  # guards against YAML references that expand without end
_MAX_EVALUATIONS = 1000  # most evaluation files that are read
_MAX_DEPTH = 8  # levels of folders that are searched below a given one
NOT_COMPARED = (  # settings that may differ between runs of one experiment
    "seed", "resume", "eval_cache", "traceback", "run_dir", "logger", "callbacks.iteration_log",
    "callbacks.transcripts", "callbacks.progress", "callbacks.last",
)  # fmt: skip
_SHARED = ("seed", "experiment", "trainer.accelerator")  # options that never distinguish cells


@dataclass(frozen=True)
class Run:
    """A run as described by its folder.

    Attributes:
        folder: path of the run folder, which may be missing.
        name: display name, the end of that path.
        status: completed, stopped, collapsed or failed; ``unfinished`` without a summary; ``not started``.
        error: one line, if there is an error.
        settings: the composed config, flattened, without `NOT_COMPARED`; None if it is not known.
        overrides: overrides as they were typed.
        scores: its summary; None if there is none.
        metrics: its curves.
        solved: whether each task was solved, by (game, split, stage); empty if that was not recorded.
        thoughts: information of thoughts by game and stage, from evaluations with diagnostics.
    """

    folder: Path
    name: str
    status: str
    error: str | None = None
    settings: Mapping[str, str] | None = None
    overrides: tuple[str, ...] = ()
    scores: summary.Summary | None = None
    metrics: Metrics = field(default_factory=lambda: Metrics([]))
    solved: Mapping[tuple[str, str, str], Sequence[bool | None]] = field(default_factory=dict)
    thoughts: Mapping[tuple[regimes.Setting, str], regimes.ThoughtInformation] = field(default_factory=dict)

    @property
    def seed(self) -> int | None:
        """The seed of the run; None without a summary."""
        return None if self.scores is None else self.scores["seed"]

    @property
    def options(self) -> tuple[str, ...]:
        """Its sorted overrides, except those that never distinguish cells."""
        return tuple(sorted(override for override in self.overrides if override.split("=")[0] not in _SHARED))

    @property
    def command(self) -> str:
        """The command that started it; empty without a summary."""
        return "" if self.scores is None else self.scores["command"]


def load(roots: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Load the runs in these folders, each once, and list the damaged files.

    Args:
        roots: run folders, folders of sweeps, or folders that contain such folders.

    Returns:
        The runs, and a line about every damaged file.

    Raises:
        ValueError: a root is not a folder, or contains no run.
    """
    runs: dict[Path, Run] = {}
    damaged: list[str] = []
    for root in roots:
        if not root.is_dir():
            value = str(root).partition("=")[2]  # such as RUN of runs=RUN
            hint = (
                f"write {value} alone"
                if value and Path(value).is_dir()
                else "give run folders, or folders of sweeps"
            )
            raise ValueError(f"{root} is not a folder; {hint}")
        before = len(runs), len(damaged)
        folders = list(_find_run_folders(root))
        for folder in folders:
            if folder.resolve() not in runs:
                runs[folder.resolve()] = _read_run(folder, root, damaged)
        for run in _list_runs_without_folder(root, folders, damaged):
            runs.setdefault(run.folder, run)
        if not folders and before == (len(runs), len(damaged)):
            raise ValueError(
                f"{root} contains no run: neither summary.json nor .hydra/config.yaml, nor {sweep.FILE}"
            )
    return list(runs.values()), damaged


def load_ended(roots: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Load the runs that completed or collapsed, and list what is left out.

    Returns:
        The runs, and a line about every damaged file and every run that is left out.
    """
    runs, damaged = load(roots)
    ended = [run for run in runs if run.status in ("completed", "collapsed") and run.seed is not None]
    return ended, [*damaged, *(f"{run.name} is omitted: {run.status}" for run in runs if run not in ended)]


def _find_run_folders(root: Path) -> Iterator[Path]:
    """Yield the run folders in or below a root.

    Folders below a run folder are not searched, and links are not followed.
    """
    for text, below, files in os.walk(root):
        folder = Path(text)
        if "summary.json" in files or (folder / ".hydra" / "config.yaml").is_file():
            below.clear()
            yield folder
        if len(folder.relative_to(root).parts) >= _MAX_DEPTH:
            below.clear()
        below.sort(key=_get_order)


def _get_order(name: str) -> tuple[int, str]:
    """Return a folder's sort key: its run's number in the sweep, then its name."""
    number = re.search(r"^\d+(?=_|$)|(?<=_)\d+$", name)
    return (int(number[0]) if number else -1, name)


def _read_text(path: Path) -> str | None:
    """Read a file as text; None if it does not exist.

    Raises:
        ValueError: the path is not a file, or the file is too large.
        OSError: the file cannot be read.
    """
    if not path.exists() and not path.is_symlink():
        return None
    if not path.is_file():
        raise ValueError("it is not a file")
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES // 2**20} MiB")
    return path.read_text(encoding="utf-8", errors="replace")


def _describe_error(path: Path, error: Exception) -> str:
    why = str(error).splitlines()[0] if str(error) else type(error).__name__
    return escape_unprintable(f"{path}: {why.removeprefix(f'{path}: ')[:300]}")


_READ_ERRORS = (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError, yaml.YAMLError)


def _read_run(folder: Path, root: Path, damaged: list[str]) -> Run:
    def parse_file(path: Path, parse: Callable[[str], _T], otherwise: _T) -> _T:
        try:
            text = _read_text(path)
            return otherwise if text is None else parse(text)
        except _READ_ERRORS as error:
            damaged.append(_describe_error(path, error))
            return otherwise

    hydra, metrics_file, summary_file = folder / ".hydra", folder / "metrics.csv", folder / "summary.json"
    scores = parse_file(summary_file, lambda _: summary.read(summary_file), None)
    no_thoughts: dict[tuple[regimes.Setting, str], regimes.ThoughtInformation] = {}
    thoughts = dict(no_thoughts)
    for path in sorted(folder.glob("evaluations/*.json"))[:_MAX_EVALUATIONS]:
        thoughts |= parse_file(path, regimes.parse, no_thoughts)
    status, error = ("unfinished", None) if scores is None else (scores["status"], scores["error"])
    return Run(
        folder,
        folder.name if folder == root else str(folder.relative_to(root.parent)),
        status,
        error,
        parse_file(hydra / "config.yaml", lambda text: flatten_settings(yaml.safe_load(text)), None),
        parse_file(hydra / "overrides.yaml", lambda text: tuple(map(str, yaml.safe_load(text) or ())), ()),
        scores,
        parse_file(metrics_file, lambda _: _read_curves(metrics_file), Metrics([])),
        parse_file(folder / outcomes.FILE, outcomes.parse, {}),
        thoughts,
    )


def _read_curves(path: Path) -> Metrics:
    metrics = Metrics.read(path)
    if any(None in row or row.get("iteration") is None for row in metrics.rows):
        raise ValueError("a row is incomplete, or has no iteration")
    return metrics


def _list_runs_without_folder(root: Path, folders: Sequence[Path], damaged: list[str]) -> Iterator[Run]:
    """Yield the runs that a sweep lists but that have no folder.

    They failed at once, or were never started.  Sweeps are searched in the root and up to two levels below.
    """
    known_folders = {folder.resolve() for folder in folders}
    for path in sorted({root / sweep.FILE, *root.glob(f"*/{sweep.FILE}"), *root.glob(f"*/*/{sweep.FILE}")}):
        try:
            if _read_text(path) is None:
                continue
            for entry in sweep.list_latest(sweep.read(path.parent)):
                # the sweep may have been moved since it wrote its list, alone or with its runs
                folder = path.parent / Path(entry["folder"]).name
                is_moved = any(
                    known.parts[-2:] == Path(entry["folder"]).parts[-2:] for known in known_folders
                )
                if folder.resolve() in known_folders or is_moved:
                    continue
                status = {"begun": "unfinished", "interrupted": "stopped"}.get(
                    entry["status"], str(entry["status"])
                )
                overrides = tuple(str(override) for override in entry["overrides"])
                error = None if entry["error"] is None else escape_unprintable(str(entry["error"]))
                yield Run(
                    folder.resolve(), f"{path.parent.name}/{folder.name}", status, error, None, overrides
                )
        except _READ_ERRORS as error:
            damaged.append(_describe_error(path, error))


def flatten_settings(config: Any) -> dict[str, str]:
    """Flatten a config to one entry per value, without `NOT_COMPARED`.

    Raises:
        ValueError: the config is no mapping, or has too many values.

    >>> flatten_settings({"seed": 1, "algo": {"clip": {"low": 0.2}}, "env": [1, 2]})
    {'algo.clip.low': '0.2', 'env.0': '1', 'env.1': '2'}
    """
    if not isinstance(config, Mapping):
        raise ValueError("it is not a config")
    flat: dict[str, str] = {}
    open_items = [("", config)]
    while open_items:
        path, value = open_items.pop()
        if any(path == name or path.startswith(f"{name}.") for name in NOT_COMPARED):
            continue
        if len(flat) + len(open_items) > _MAX_SETTINGS:
            raise ValueError(f"it has more than {_MAX_SETTINGS} values")
        if isinstance(value, Mapping | list) and value:
            items = value.items() if isinstance(value, Mapping) else enumerate(value)
            open_items += [(f"{path}.{key}" if path else str(key), item) for key, item in items]
        else:
            flat[path] = json.dumps(value, default=str, ensure_ascii=False)
    return dict(sorted(flat.items()))
