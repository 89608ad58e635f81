"""``runs.jsonl``: a line in the sweep folder when a run starts and when it ends."""

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
    """A line about a run of a sweep, written when it starts or ends."""

    run: int  # number of the run
    folder: str
    overrides: list[str]
    status: str  # "begun", "interrupted", or the status in the run's summary
    monitored: Monitored | None  # metric of the best checkpoint
    error: str | None  # one line, if it failed


def append(sweep: Path, entry: Entry) -> None:
    """Append a line; each run appends its lines from its own process."""
    append_durable(sweep / FILE, json.dumps(entry) + "\n")


def read(sweep: Path) -> list[Entry]:
    """Read all lines in the order of writing; an incomplete line is left out."""
    return [json.loads(line) for line in read_complete_lines(sweep / FILE)[0]]


def list_latest(entries: Sequence[Entry]) -> list[Entry]:
    """Return the last line of each run, in the order of run numbers."""
    last_by_run = {entry["run"]: entry for entry in entries}
    return [last_by_run[run] for run in sorted(last_by_run)]


def find_best(entries: Sequence[Entry]) -> Entry | None:
    """Find the run with the best value, the first of those that tie.

    Return None if no run has a value, or if the runs have different metrics.
    """
    known = [(entry, entry["monitored"]) for entry in entries if entry["monitored"] is not None]
    if len({(value["name"], value["mode"]) for _, value in known}) != 1:
        return None
    sign = -1.0 if known[0][1]["mode"] == "max" else 1.0
    return min(known, key=lambda pair: sign * pair[1]["value"])[0]


def list_differing_overrides(entries: Sequence[Entry]) -> dict[int, str]:
    """Return, by run number, the overrides that not all runs share."""
    shared = set.intersection(*(set(entry["overrides"]) for entry in entries)) if len(entries) > 1 else set()
    return {
        entry["run"]: " ".join(text for text in entry["overrides"] if text not in shared) for entry in entries
    }


def build_table(entries: Sequence[Entry], planned: Mapping[int, list[str]] | None = None) -> Table:
    """Build the table of a sweep: differing options, status and value of each run.

    The table fits 80 columns.

    Args:
        entries: the last line of each run.
        planned: overrides by run number, if those of all runs were known beforehand; runs without an entry are listed
            as not started.
    """
    unstarted = {
        run: texts for run, texts in (planned or {}).items() if run not in {e["run"] for e in entries}
    }
    rows = [*entries, *(_make_unstarted(run, texts) for run, texts in unstarted.items())]
    names = sorted({entry["monitored"]["name"] for entry in entries if entry["monitored"] is not None})
    completed = [entry for entry in entries if entry["status"] == "completed"]
    best, differing = find_best(entries), list_differing_overrides(rows)
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
            escape(differing[entry["run"]]) or "–",
            {"begun": "killed"}.get(entry["status"], entry["status"]),
            shown if value is None or len(names) == 1 else f"{value['name']} {shown}",
            "–" if value is None else str(value["iteration"]),
            style="bold" if entry is best and len(rows) > 1 else None,
        )
    return result


def _make_unstarted(run: int, overrides: list[str]) -> Entry:
    return {
        "run": run, "folder": "", "overrides": overrides, "status": "not started", "monitored": None, "error": None
    }  # fmt: skip
