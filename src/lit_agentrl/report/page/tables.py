"""Tables of a report as text, for the page, Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from lit_agentrl.report.page.inference import Bounds
from lit_agentrl.report.page.results import STAGES, Report

ABSENT = "–"
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters of text that a spreadsheet takes for a formula


class Column(NamedTuple):
    """A column: the key of its values, and its heading."""

    name: str
    title: str
    is_number: bool = True


class Table(NamedTuple):
    """A titled table of formatted rows, with a note."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, str]]
    note: str = ""


def tables(report: Report) -> list[Table]:
    """Build all tables of a page except that of the runs."""
    made = [_scores(report), _comparisons(report), _overall(report), _power(report), _cells(report)]
    return [table for table in made if table.rows]


def _scores(report: Report) -> Table:
    words = [
        Column("cell", "cell", False),
        Column("label", "what differs", False),
        Column("game", "game", False),
    ]
    numbers = [Column(name, name) for name in ("runs", "chance", *STAGES, "oracle")]
    more = [
        Column("coverage", f"coverage of {report.stage}"),
        Column("iqm", "normalised"),
        Column("iqm_coverage", "its coverage"),
    ]
    rows = [
        {
            "cell": each.cell.letter, "label": each.cell.label, "game": f"{each.name.game}, {each.name.split}",
            "runs": str(len(each.values)), "chance": number(each.chance), "oracle": number(each.oracle),
            **{stage: interval(each.stages[stage]) for stage in STAGES},
            "coverage": share(each.coverage), "iqm": interval(each.normalised),
            "iqm_coverage": share(each.normalised_coverage),
        }
        for each in report.results
    ]  # fmt: skip
    note = (
        "Success with its 95 % interval: Student's over seeds; over episodes where a cell has one run. "
        "Coverage: how often such an interval holds the truth with so many runs and episodes, by simulation"
        " (for one run, exactly); 95 % is meant. Normalised: interquartile mean over seeds with a "
        "bootstrap; 0 is chance, 1 is the oracle. The best weights are chosen on validation. A run that "
        "failed or collapsed before it was measured counts with chance."
    )
    return Table("Scores", [*words, *numbers, *more], rows, note)


def _comparisons(report: Report) -> Table:
    columns = [
        Column("cells", "cells", False), Column("game", "game", False), Column("difference", "difference"),
        Column("p", "p"), Column("adjusted", "p, adjusted"), Column("improvement", "P(first is better)"),
        Column("detectable", "would be seen"), Column("units", "rests on", False),
    ]  # fmt: skip
    rows = [
        {
            "cells": f"{each.a.letter} − {each.b.letter}", "game": f"{each.name.game}, {each.name.split}",
            "difference": interval(each.difference.bounds), "p": number(each.difference.p_value),
            "adjusted": number(each.adjusted), "improvement": interval(each.improvement),
            "detectable": number(each.difference.detectable), "units": each.difference.units,
        }
        for each in report.comparisons
    ]  # fmt: skip
    note = (
        f"Of success at {report.stage}. Cells of the same seeds are paired seed by seed, two single runs "
        "instance by instance. p: permutation test (two runs: McNemar's); adjusted: Benjamini and Hochberg,"
        " over all rows. Would be seen: the smallest true difference that this test finds in 4 of 5 "
        "experiments."
    )
    return Table("Comparisons", columns, rows, note)


def _overall(report: Report) -> Table:
    columns = [Column("label", "what differs", False), Column("games", "games"), Column("iqm", "normalised")]
    rows = [{"label": label, "games": str(n), "iqm": interval(b)} for label, n, b in report.overall]
    note = "Interquartile mean over all games and seeds, with a bootstrap that is stratified by game."
    return Table("Over all games", columns, rows, note)


def _power(report: Report) -> Table:
    columns = [
        Column("cell", "cell", False), Column("game", "game", False), Column("runs", "runs"),
        Column("episodes", "episodes of each"), Column("seeds", "would be seen, by seeds"),
        Column("by_episodes", "by episodes alone"), Column("same", "A/A"),
    ]  # fmt: skip
    rows = [
        {
            "cell": each.cell.letter, "game": f"{each.name.game}, {each.name.split}", "runs": str(len(each.values)),
            "episodes": str(min((n for n in each.episodes if n), default=0)), "seeds": number(each.detectable),
            "by_episodes": number(each.by_episodes), "same": number(each.same_again),
        }
        for each in report.results
    ]  # fmt: skip
    note = (
        "The smallest true difference between two such cells that a t test at 5 % finds in 4 of 5 "
        "experiments, by the spread of seeds; and between two runs, had seeds no effect. A/A: two halves of"
        " the same cell, split at random, differ by less than this in 95 of 100 cases (as if each half were"
        " a whole cell; at least 4 runs)."
    )
    return Table("Noise and power", columns, rows, note)


def _cells(report: Report) -> Table:
    columns = [
        Column("cell", "cell", False),
        Column("label", "what differs", False),
        Column("runs", "runs"),
        Column("status", "how they ended", False),
    ]
    rows = [
        {
            "cell": cell.letter, "label": cell.label, "runs": str(len(cell.runs)),
            "status": ", ".join(f"{n} {status}" for status, n in cell.counts().items()),
        }
        for cell in report.cells
    ]  # fmt: skip
    return Table("How the runs ended", columns, rows, "Unfinished runs are in no mean; all others count.")


def number(value: float | None) -> str:
    """Format a number with three decimals; a dash if it is None."""
    return ABSENT if value is None else f"{value:.3f}"


def share(value: float | None) -> str:
    """Format a share as a percentage; a dash if it is None."""
    return ABSENT if value is None else f"{value:.0%}"


def interval(bounds: Bounds | None) -> str:
    """Format a value and its bounds; a dash if there is none."""
    if bounds is None:
        return ABSENT
    ends = "" if bounds.low is None or bounds.high is None else f" [{bounds.low:.3f}, {bounds.high:.3f}]"
    return f"{bounds.value:.3f}{ends}"


def markdown(table: Table) -> str:
    """Render a table as Markdown, with its title and note."""
    lines = [
        f"## {table.title}", "",
        f"| {' | '.join(column.title for column in table.columns)} |",
        f"|{'|'.join('--:' if column.is_number else '---' for column in table.columns)}|",
        *(f"| {' | '.join(plain(row[column.name]) for column in table.columns)} |" for row in table.rows),
    ]  # fmt: skip
    return "\n".join([*lines, *(["", table.note] if table.note else [])]) + "\n"


def plain(text: str) -> str:
    """Escape untrusted text so that Markdown shows it literally."""
    escaped = "".join(f"\\{sign}" if sign in "\\`*()|~$" else sign for sign in text)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")


def as_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Format rows as CSV; text that a spreadsheet would compute gets an apostrophe."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow(
            f"'{value}"
            if isinstance(value, str) and value.startswith(_FORMULA)
            else ""
            if value is None
            else value
            for value in row
        )
    return file.getvalue()
