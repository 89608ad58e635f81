"""Run folders as they lie on a disk, which may be a stranger's: read as data, and what is damaged is told."""

from __future__ import annotations

import json
import os
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
MOST_BYTES = 64 * 2**20  # of a file that is read
_MOST_SETTINGS = 20_000  # a config that refers to itself again and again has more
_MOST_EVALUATIONS = 1000  # files of them that are read
_DEPTH = 8  # of folders below the one that is named
NOT_COMPARED = (  # what differs between runs that are one experiment, played several times
    "seed", "resume", "eval_cache", "traceback", "run_dir", "logger", "callbacks.iteration_log",
    "callbacks.transcripts", "callbacks.progress", "callbacks.last",
)  # fmt: skip
_SHARED = ("seed", "experiment", "trainer.accelerator")  # of a campaign: what tells none of its cells apart


@dataclass(frozen=True)
class Run:
    """A run, as far as its folder tells.

    Attributes:
        folder: where it lies, or would lie.
        name: how it is called: the end of that path.
        status: completed, stopped, collapsed or failed; ``unfinished`` without a summary; ``not begun``.
        error: one line, where there is one.
        settings: the composed config, flat, without what does not tell experiments apart; None where it is not known.
        overrides: as they were typed.
        scores: its summary; None where there is none.
        metrics: its curves.
        solved: of each (game, split, stage) the episodes, by instance, where they are recorded.
        thoughts: what evaluations with diagnostics found, by stage.
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
    thoughts: Mapping[tuple[regimes.Played, str], regimes.Thinking] = field(default_factory=dict)

    @property
    def seed(self) -> int | None:
        """Of the run."""
        return None if self.scores is None else self.scores["seed"]

    @property
    def options(self) -> tuple[str, ...]:
        """Its overrides in order, without what tells no cells of a campaign apart: seed, experiment, accelerator."""
        return tuple(sorted(each for each in self.overrides if each.split("=")[0] not in _SHARED))

    @property
    def command(self) -> str:
        """How it was started."""
        return "" if self.scores is None else self.scores["command"]


def load(places: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs in these folders, each once, and a line about every file that is damaged.

    Args:
        places: run folders, folders of sweeps, or folders that hold some.

    Raises:
        ValueError: a place that is no folder, or holds no run.
    """
    found: dict[Path, Run] = {}
    damaged: list[str] = []
    for place in places:
        if not place.is_dir():
            raise ValueError(f"{place} is no folder; name run folders, or folders of sweeps")
        before = len(found), len(damaged)
        folders = list(_folders(place))
        for folder in folders:
            if folder.resolve() not in found:
                found[folder.resolve()] = _read(folder, place, damaged)
        for lost in _never_kept(place, folders, damaged):
            found.setdefault(lost.folder, lost)
        if not folders and before == (len(found), len(damaged)):
            raise ValueError(
                f"{place} holds no run: neither summary.json nor .hydra/config.yaml, nor {sweep.FILE}"
            )
    return list(found.values()), damaged


def load_ended(places: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Those of `load` that came to their end, collapsed or not, and a line about all that is left out."""
    found, damaged = load(places)
    whole = [run for run in found if run.status in ("completed", "collapsed") and run.seed is not None]
    return whole, [*damaged, *(f"{run.name} is left out: {run.status}" for run in found if run not in whole)]


def _folders(place: Path) -> Iterator[Path]:
    """Run folders in or below a place; a run folder is not searched for others, and links are not followed."""
    for text, below, files in os.walk(place):
        folder = Path(text)
        if "summary.json" in files or (folder / ".hydra" / "config.yaml").is_file():
            below.clear()
            yield folder
        if len(folder.relative_to(place).parts) >= _DEPTH:
            below.clear()
        below.sort()


def _text(path: Path) -> str | None:
    """What a file holds; None where there is none.

    Raises:
        ValueError: it is no file, or too large.
        OSError: it cannot be read.
    """
    if not path.exists() and not path.is_symlink():
        return None
    if not path.is_file():
        raise ValueError("it is no file")
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"it is larger than {MOST_BYTES // 2**20} MiB")
    return path.read_text(encoding="utf-8", errors="replace")


def _told(path: Path, error: Exception) -> str:
    why = str(error).splitlines()[0] if str(error) else type(error).__name__
    return escape_unprintable(f"{path}: {why.removeprefix(f'{path}: ')[:300]}")


_BAD = (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError, yaml.YAMLError)


def _read(folder: Path, place: Path, damaged: list[str]) -> Run:
    def attempt(path: Path, parse: Callable[[str], _T], otherwise: _T) -> _T:
        try:
            text = _text(path)
            return otherwise if text is None else parse(text)
        except _BAD as error:
            damaged.append(_told(path, error))
            return otherwise

    of_hydra, table, file = folder / ".hydra", folder / "metrics.csv", folder / "summary.json"
    scores = attempt(file, lambda _: summary.read(file), None)
    nothing: dict[tuple[regimes.Played, str], regimes.Thinking] = {}
    thoughts = dict(nothing)
    for path in sorted(folder.glob("evaluations/*.json"))[:_MOST_EVALUATIONS]:
        thoughts |= attempt(path, regimes.parse, nothing)
    status, error = ("unfinished", None) if scores is None else (scores["status"], scores["error"])
    return Run(
        folder,
        folder.name if folder == place else str(folder.relative_to(place.parent)),
        status,
        error,
        attempt(of_hydra / "config.yaml", lambda text: flat_settings(yaml.safe_load(text)), None),
        attempt(of_hydra / "overrides.yaml", lambda text: tuple(map(str, yaml.safe_load(text) or ())), ()),
        scores,
        attempt(table, lambda _: _curves(table), Metrics([])),
        attempt(folder / outcomes.FILE, outcomes.parse, {}),
        thoughts,
    )


def _curves(path: Path) -> Metrics:
    metrics = Metrics.read(path)
    if any(None in row or row.get("iteration") is None for row in metrics.rows):
        raise ValueError("a row is cut off, or has no iteration")
    return metrics


def _never_kept(place: Path, folders: Sequence[Path], damaged: list[str]) -> Iterator[Run]:
    """Runs that a sweep below the place lists and that left no folder: they failed at once, or were never played."""
    known = {folder.resolve() for folder in folders}
    for path in sorted(
        {place / sweep.FILE, *place.glob(f"*/{sweep.FILE}"), *place.glob(f"*/*/{sweep.FILE}")}
    ):
        try:
            if _text(path) is None:
                continue
            entries = sweep.latest(sweep.read(path.parent))
            for entry in entries:
                folder = path.parent / Path(entry["folder"]).name  # a sweep may have been moved
                inner = {each for each in known if each.parts[-2:] == Path(entry["folder"]).parts[-2:]}
                if folder.resolve() in known or inner:
                    continue
                status = {"begun": "unfinished", "interrupted": "stopped"}.get(
                    entry["status"], str(entry["status"])
                )
                overrides = tuple(str(each) for each in entry["overrides"])
                error = None if entry["error"] is None else escape_unprintable(str(entry["error"]))
                yield Run(
                    folder.resolve(), f"{path.parent.name}/{folder.name}", status, error, None, overrides
                )
        except _BAD as error:
            damaged.append(_told(path, error))


def flat_settings(config: Any) -> dict[str, str]:
    """A config with one entry a value, without `NOT_COMPARED`.

    Raises:
        ValueError: it is no mapping, or has more values than a config has.

    >>> flat_settings({"seed": 1, "algo": {"clip": {"low": 0.2}}, "env": [1, 2]})
    {'algo.clip.low': '0.2', 'env.0': '1', 'env.1': '2'}
    """
    if not isinstance(config, Mapping):
        raise ValueError("it is no config")
    flat: dict[str, str] = {}
    left = [("", config)]
    while left:
        path, value = left.pop()
        if any(path == name or path.startswith(f"{name}.") for name in NOT_COMPARED):
            continue
        if len(flat) + len(left) > _MOST_SETTINGS:
            raise ValueError(f"it has more than {_MOST_SETTINGS} values")
        if isinstance(value, Mapping | list) and value:
            items = value.items() if isinstance(value, Mapping) else enumerate(value)
            left += [(f"{path}.{key}" if path else str(key), item) for key, item in items]
        else:
            flat[path] = json.dumps(value, default=str, ensure_ascii=False)
    return dict(sorted(flat.items()))
