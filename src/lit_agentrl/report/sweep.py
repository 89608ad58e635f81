"""What became of the runs of a sweep: ``runs.jsonl`` in its folder, a line when one begins, and when it has ended."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from rich.markup import escape
from rich.table import Table

from lit_agentrl.files import append_durable, read_complete_lines
from lit_agentrl.report.summary import Monitored

FILE = "runs.jsonl"


class Entry(TypedDict):
    """A run of a sweep, when it begins or as it has ended."""

    run: int  # its number
    folder: str
    overrides: list[str]
    status: str  # begun, interrupted, or as in its summary
    monitored: Monitored | None  # its value
    error: str | None  # one line, where it has failed


def append(sweep: Path, entry: Entry) -> None:
    """Add a line; each run does so from whatever process it is in."""
    append_durable(sweep / FILE, json.dumps(entry) + "\n")


def read(sweep: Path) -> list[Entry]:
    """All lines so far, in the order in which they were written; a torn one is left out."""
    return [json.loads(line) for line in read_complete_lines(sweep / FILE)[0]]


def latest(entries: Sequence[Entry]) -> list[Entry]:
    """The last line of each run, in the order of their numbers."""
    found = {entry["run"]: entry for entry in entries}
    return [found[run] for run in sorted(found)]


def best_of(entries: Sequence[Entry]) -> Entry | None:
    """The run with the best value; the first of several, and None where none has one, or not of one metric."""
    known = [(entry, entry["monitored"]) for entry in entries if entry["monitored"] is not None]
    if len({(value["name"], value["mode"]) for _, value in known}) != 1:
        return None
    sign = -1.0 if known[0][1]["mode"] == "max" else 1.0
    return min(known, key=lambda pair: sign * pair[1]["value"])[0]


def differing(entries: Sequence[Entry]) -> dict[int, str]:
    """What tells each run from the others, by its number: overrides that not all of them have."""
    shared = set.intersection(*(set(entry["overrides"]) for entry in entries)) if len(entries) > 1 else set()
    return {
        entry["run"]: " ".join(text for text in entry["overrides"] if text not in shared) for entry in entries
    }


def table(entries: Sequence[Entry], planned: Mapping[int, list[str]] | None = None) -> Table:
    """What differs, how it ended, and its value, run by run; it fits 80 columns.

    Args:
        entries: the last line of each run.
        planned: overrides by number, where those of all runs were known beforehand: the others never began.
    """
    missing = {run: texts for run, texts in (planned or {}).items() if run not in {e["run"] for e in entries}}
    rows = [*entries, *(_never_begun(run, texts) for run, texts in missing.items())]
    names = sorted({entry["monitored"]["name"] for entry in entries if entry["monitored"] is not None})
    completed = [entry for entry in entries if entry["status"] == "completed"]
    best, differs = best_of(entries), differing(rows)
    result = Table(title=f"sweep: {len(completed)} of {len(rows)} runs completed")
    result.add_column("run", justify="right")
    result.add_column("options", overflow="fold")
    result.add_column("status")
    result.add_column(names[0] if len(names) == 1 else "value", justify="right")
    result.add_column("iter.", justify="right")
    for entry in rows:
        value = entry["monitored"]
        shown = "–" if value is None else f"{value['value']:.4g}"
        result.add_row(
            str(entry["run"]),
            escape(differs[entry["run"]]) or "–",
            {"begun": "killed"}.get(entry["status"], entry["status"]),
            shown if value is None or len(names) == 1 else f"{value['name']} {shown}",
            "–" if value is None else str(value["iteration"]),
            style="bold" if entry is best and len(rows) > 1 else None,
        )
    return result


def _never_begun(run: int, overrides: list[str]) -> Entry:
    return {
        "run": run, "folder": "", "overrides": overrides, "status": "not begun", "monitored": None, "error": None
    }  # fmt: skip
