"""Shared functions of the benchmarks: alternate timing, paired ratios, tables and JSON.

A *side* is a function of the repetition's number that does one piece of work and returns its measurements by name:
seconds, tokens, bytes.  The sides of one repetition run one after the other in this process.  Their order is reversed
each time, so that the first side does not always find the cooler machine.  Sides are compared by the median of their
ratios within repetitions.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
Measured = dict[str, float]
Side = Callable[[int], Measured]
Round = dict[str, Measured]  # by side


@dataclass(frozen=True)
class Summary:
    """The median, minimum and maximum of numbers."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Summary:
        ordered = sorted(values)
        if not ordered:
            raise ValueError("a summary needs at least one number")
        return cls(statistics.median(ordered), ordered[0], ordered[-1])

    def show(self, digits: int = 2) -> str:
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}–{self.high:.{digits}f})"


def keep_last(options: Iterable[str]) -> list[str]:
    """Return each option of ``train.py`` once, with its last value.

    ``train.py`` refuses an option that is given twice.
    """
    values = dict(option.split("=", 1) for option in options)
    return [f"{name}={value}" for name, value in values.items()]


def alternate(
    sides: Mapping[str, Side], *, repeats: int, warmups: int = 1, keep: Callable[[Round], bool] | None = None
) -> list[Round]:
    """Run all sides ``repeats`` times, reversing the order each time, after discarded warm-ups.

    Repetitions are numbered from 0, and warm-ups from -``warmups``.  A repetition that ``keep`` refuses is run again.
    After ``repeats`` refusals in total, all repetitions are accepted.
    """
    if repeats < 1:
        raise ValueError(f"repeats={repeats} must be >= 1")
    rounds: list[Round] = []
    number, spare = -warmups, repeats
    while len(rounds) < repeats:
        names = list(sides) if number % 2 == 0 else list(sides)[::-1]
        measured = {name: sides[name](number) for name in names}
        if number >= 0:
            is_repeated = keep is not None and spare > 0 and not keep(measured)
            note = " (disturbed: once more)" if is_repeated else ""
            print(_format_repetition(len(rounds), measured) + note, flush=True)
            if is_repeated:
                spare -= 1
            else:
                rounds.append({name: measured[name] for name in sides})
        number += 1
    return rounds


def _format_repetition(number: int, measured: Round) -> str:
    """Format a repetition, printed at once so that an interrupted run leaves its results."""
    names = ("rollout", "update", "whole", "foreign_share")
    sides = (
        " ".join([side, *(f"{name} {found[name]:.2f}" for name in names if name in found)])
        for side, found in measured.items()
    )
    return f"repetition {number}: {'; '.join(sides)}"


def is_undisturbed(measured: Round, most: float = 0.1) -> bool:
    """Return whether other programs used at most this share of the machine during each side."""
    return all(side.get("foreign_share", 0.0) <= most for side in measured.values())


def summarise(rounds: Sequence[Round], side: str, quantity: str) -> Summary:
    return Summary.of(measured[side][quantity] for measured in rounds)


def compute_ratio(rounds: Sequence[Round], quantity: str, *, of: str, to: str) -> Summary:
    """Compute the ratios of ``of``'s quantity to ``to``'s, each within one repetition."""
    return Summary.of(measured[of][quantity] / measured[to][quantity] for measured in rounds)


def format_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Format a plain-text table, with the first column aligned left and the others right."""
    cells = [list(map(str, header)), *([*map(str, row)] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def format_seconds(rounds: Sequence[Round], quantities: Sequence[str], *, ours: str, peer: str) -> str:
    """Format a row for each quantity, with the seconds of both sides and our speedup."""
    return format_table(
        ["seconds", ours, peer, "ratio (least–greatest)"],
        [
            [
                quantity,
                f"{summarise(rounds, ours, quantity).median:.3f}",
                f"{summarise(rounds, peer, quantity).median:.3f}",
                compute_ratio(rounds, quantity, of=peer, to=ours).show(),
            ]
            for quantity in quantities
        ],
    )


@contextmanager
def time_block(into: Measured, name: str, device: str | torch.device = "cpu") -> Iterator[None]:
    """Add the seconds of the block to ``into[name]``, waiting for a GPU at both ends."""
    _wait(device)
    started = time.perf_counter()
    try:
        yield
    finally:
        _wait(device)
        into[name] = into.get(name, 0.0) + time.perf_counter() - started


def _wait(device: str | torch.device) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def describe_machine() -> dict[str, Any]:
    """Describe the machine and software of the measurements."""
    names = ("torch", "transformers", "lightning", "trl")
    return {
        "processor": _read_processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "packages": {name: found for name in names if (found := _find_version(name))},
        "revision": _describe_revision(),
    }


def _read_processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _find_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _describe_revision() -> str | None:
    """Return the commit, with a + if tracked files differ from it."""
    try:
        git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def make_parser(script: str, description: str | None, *, repeats: int = 5) -> argparse.ArgumentParser:
    """Make a parser with the options of every benchmark: ``--repeats``, ``--threads`` and ``--out``."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=repeats, help="repetitions after the warm-up")
    parser.add_argument(
        "--threads", type=int, default=None, help="torch threads; default: torch's own choice"
    )
    name = Path(script).stem
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "benchmarks" / f"{name}.json")
    return parser


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse, check the shared options, and set the number of threads."""
    options = parser.parse_args(arguments)
    for name in ("repeats", "threads"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name}={value} must be >= 1")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    return options


def write_json(path: Path, result: Mapping[str, Any], options: argparse.Namespace) -> None:
    """Write ``result`` with the command, its options and the machine, and print the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "options": {name: _make_plain(value) for name, value in vars(options).items()},
        "machine": describe_machine(),
        **{name: _make_plain(value) for name, value in result.items()},
    }
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"written to {path}")


def _make_plain(value: Any) -> Any:
    if isinstance(value, Summary):
        return asdict(value)
    if isinstance(value, Mapping):
        return {str(name): _make_plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_make_plain(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value
