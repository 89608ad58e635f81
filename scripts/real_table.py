"""Write the results of `scripts.real`: a CSV row for each policy, and a table."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from lit_agentrl.files import write_atomic
from lit_agentrl.report.statistics import Interval, compute_mean_interval, compute_wilson_interval

LEVELS = ("chance", "oracle")
POLICIES = ("start", "imitation", "RL")
COLUMNS = (
    "game", "seed", "policy", "temperature", "success", "return", "n", "minutes", "iteration_s", "peak_gb", "device",
    "threads", "precision", "torch", "revision", "solved",
)  # fmt: skip


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a results file; none if there is no file.

    Raises:
        SystemExit: it is damaged, or no results file.
    """
    if not path.exists():
        return []
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    is_whole = reader.fieldnames == list(COLUMNS) and all(
        None not in (*row, *row.values()) and len(row["solved"] or "") in (0, int(row["n"] or 0))
        for row in rows
    )
    if not is_whole:
        raise SystemExit(
            f"{path} is damaged, or was not written by this script; remove it, and finished seeds are added again"
        )
    return rows


def require_equal_precision(path: Path, precision: str) -> None:
    """Refuse to add to results of another precision.

    Raises:
        SystemExit: a row has another one, or the file is damaged.
    """
    for row in read_rows(path):
        if row["precision"] != precision:
            raise SystemExit(
                f"{path} has results in {row['precision']}, and this call trains in {precision}; choose another "
                "--results or --folder"
            )


def add_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace the rows of a game and seed in a results file."""
    (key,) = {(str(row["game"]), str(row["seed"])) for row in rows}
    others = [row for row in read_rows(path) if (row["game"], row["seed"]) != key]
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows([*others, *rows])
    write_atomic(path, text.getvalue())


def average(rows: Sequence[Mapping[str, str]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return game -> policy -> column -> mean over seeds."""
    found: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for game, policy in dict.fromkeys((row["game"], row["policy"]) for row in rows):
        for column in ("success", "iteration_s"):
            of_policy = [row[column] for row in rows if (row["game"], row["policy"]) == (game, policy)]
            if all(of_policy):
                found[game][policy][column] = fmean(map(float, of_policy))
    return found


def summarise(rows: Sequence[Mapping[str, str]]) -> str:
    """Build the table of results: a block a game, rows from chance to oracle.

    A policy that a game does not train has no row.  The interval of one seed is Wilson's over tasks, that of several is
    Student's over seeds.
    """
    by_policy: dict[str, dict[str, list[Mapping[str, str]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_policy[row["game"]][row["policy"]].append(row)
    lines = [
        "| game | policy | temperature | success [95 %] | seeds x tasks | minutes | memory |",
        "|---|---|---|---|---|---|---|",
    ]
    for game, policies in by_policy.items():
        order = ["chance", *(f"{name}, {at}" for name in POLICIES for at in ("T=1", "best T")), "oracle"]
        lines += [_format_row(game, policy, policies[policy]) for policy in order if policy in policies]
        for before, after in pairwise(name for name in POLICIES if f"{name}, best T" in policies):
            lines.append(_format_difference(game, policies, after, before))
    return "\n".join(lines) + "\n"


def _format_row(game: str, policy: str, rows: Sequence[Mapping[str, str]]) -> str:
    success = [float(row["success"]) for row in rows if row["success"]]
    if not success:
        return f"| {game} | {policy} | | – | | | |"
    if policy in LEVELS:
        return f"| {game} | {policy} | | {success[0]:.3f} | | | |"
    if len(rows) == 1:
        interval = compute_wilson_interval(rows[0]["solved"].count("1"), len(rows[0]["solved"]))
    else:
        interval = compute_mean_interval(success)
    temperatures = ", ".join(dict.fromkeys(f"{float(row['temperature']):g}" for row in rows))
    spent = {
        name: ", ".join(row[name] or "–" for row in rows) if rows[0][name] else ""
        for name in ("minutes", "peak_gb")
    }
    memory = f"{spent['peak_gb']} GB" if spent["peak_gb"] else ""
    return (
        f"| {game} | {policy} | {temperatures} | {format_interval(interval)} | {len(rows)} x {rows[0]['n']} | "
        f"{spent['minutes']} | {memory} |"
    )


def _format_difference(
    game: str, policies: Mapping[str, Sequence[Mapping[str, str]]], after: str, before: str
) -> str:
    """Format how much more one policy solves than another on the same tasks."""
    pairs = {row["seed"]: row["solved"] for row in policies[f"{before}, best T"]}
    by_seed = [
        [int(new) - int(old) for new, old in zip(row["solved"], pairs[row["seed"]], strict=True)]
        for row in policies[f"{after}, best T"]
        if row["seed"] in pairs
    ]
    if not by_seed:
        return f"| {game} | {after} less {before} | best of each | – | | | |"
    # one seed: over its tasks; several: over seeds
    values = by_seed[0] if len(by_seed) == 1 else [sum(tasks) / len(tasks) for tasks in by_seed]
    interval = compute_mean_interval([float(value) for value in values])
    counted = f"{len(by_seed)} x {len(by_seed[0])}"
    return f"| {game} | {after} less {before} | best of each | {format_interval(interval, '+')} | {counted} | | |"


def format_interval(interval: Interval, sign: str = "") -> str:
    """Format a mean with its bounds."""
    mean, low, high = (f"{value:{sign}.3f}" for value in interval[:3])
    return f"{mean} [{low}, {high}]"
