"""Tables of a report as text, for the page, Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from lit_agentrl.report.held_out import NOTES
from lit_agentrl.report.page.held_out import count_groups, group_by_data
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


def build_tables(report: Report) -> list[Table]:
    """Build all tables of a page except that of the runs."""
    tables = [
        _build_scores(report),
        _build_held_out(report),
        _build_comparisons(report),
        _build_overall(report),
        _build_power(report),
        _build_cells(report),
    ]
    return [table for table in tables if table.rows]


def _build_scores(report: Report) -> Table:
    text_columns = [Column("cell", "cell", False), Column("game", "game", False)]
    score_columns = [Column(name, name) for name in ("runs", "chance", *STAGES, "oracle")]
    coverage_columns = [
        Column("coverage", f"coverage of {report.stage}"),
        Column("iqm", "normalised"),
        Column("iqm_coverage", "its coverage"),
    ]
    rows = [
        {
            "cell": result.cell.name,
            "game": f"{result.name.game}, {result.name.split}", "runs": str(len(result.values)),
            "chance": format_number(result.chance), "oracle": format_number(result.oracle),
            **{stage: format_interval(result.stages[stage]) for stage in STAGES},
            "coverage": format_share(result.coverage), "iqm": format_interval(result.normalised),
            "iqm_coverage": format_share(result.normalised_coverage),
        }
        for result in report.results
    ]  # fmt: skip
    note = (
        "Success with its 95 % interval: Student's over seeds; over episodes if a cell has one run. "
        "Coverage: how often such an interval covers the true value at this number of runs and episodes, by simulation"
        " (for one run, exactly); nominally 95 %. Normalised: interquartile mean over seeds with a "
        "bootstrap interval; 0 is chance, 1 is the oracle. The best weights are chosen by validation. A run that "
        "failed or collapsed before it was measured counts with the success of chance."
    )
    return Table("Scores", [*text_columns, *score_columns, *coverage_columns], rows, note)


def _build_held_out(report: Report) -> Table:
    columns = [
        Column("cell", "cell", False), Column("metric", "metric", False), Column("groups", "n"), Column("runs", "runs")
    ]  # fmt: skip
    rows = [
        {
            "cell": result.cell.name, "metric": result.title, "groups": count_groups(result.cell) or ABSENT,
            "runs": _format_runs(result.runs),
        }
        | {stage: format_interval(result.stages.get(stage), "{:.4g}") for stage in STAGES}
        for result in report.held_out
    ]  # fmt: skip
    alike = group_by_data(report.held_out)
    names = "; ".join(", ".join(cell.name for cell in cells) for cells in alike)
    differ = (
        f" Cells judged by different held-out data are not comparable: {names}." if len(alike) > 1 else ""
    )
    metrics = dict.fromkeys(result.metric for result in report.held_out)
    note = (
        "Mean over the runs that measured it, with Student's 95 % interval over seeds. n: held-out groups. "
        f"{'. '.join(NOTES[metric].capitalize() for metric in metrics if metric in NOTES)}. "
        f"Losses of cells that differ in algo are not comparable.{differ}"
    )
    return Table("Held-out data", [*columns, *(Column(stage, stage) for stage in STAGES)], rows, note)


def _format_runs(runs: Mapping[str, int]) -> str:
    """Format the number of runs; by stage, if stages rest on different runs."""
    counts = {number for number in runs.values() if number}
    return str(*counts) if len(counts) == 1 else ", ".join(f"{stage} {n}" for stage, n in runs.items())


def _build_comparisons(report: Report) -> Table:
    columns = [
        Column("cells", "cells", False), Column("game", "game", False), Column("difference", "difference"),
        Column("p", "p"), Column("adjusted", "p, adjusted"), Column("improvement", "P(first is better)"),
        Column("detectable", "detectable"), Column("units", "based on", False),
    ]  # fmt: skip
    rows = [
        {
            "cells": f"{comparison.a.name} − {comparison.b.name}",
            "game": f"{comparison.name.game}, {comparison.name.split}",
            "difference": format_interval(comparison.difference.bounds),
            "p": format_number(comparison.difference.p_value), "adjusted": format_number(comparison.adjusted),
            "improvement": format_interval(comparison.improvement),
            "detectable": format_number(comparison.difference.detectable), "units": comparison.difference.units,
        }
        for comparison in report.comparisons
    ]  # fmt: skip
    note = (
        f"Of success at {report.stage}. Cells of the same seeds are paired seed by seed, two single runs "
        "task by task. p: permutation test (two runs: McNemar's); adjusted: Benjamini and Hochberg,"
        " over all rows. Detectable: the smallest true difference that this test finds in 4 of 5 "
        "experiments."
    )
    return Table("Comparisons", columns, rows, note)


def _build_overall(report: Report) -> Table:
    columns = [Column("label", "settings", False), Column("games", "games"), Column("iqm", "normalised")]
    rows = [{"label": label, "games": str(n), "iqm": format_interval(b)} for label, n, b in report.overall]
    note = "Interquartile mean over all games and seeds, with a bootstrap interval, stratified by game."
    return Table("Over all games", columns, rows, note)


def _build_power(report: Report) -> Table:
    columns = [
        Column("cell", "cell", False), Column("game", "game", False), Column("runs", "runs"),
        Column("episodes", "episodes per run"), Column("seeds", "detectable"),
        Column("by_episodes", "by episodes only"), Column("same", "A/A"),
    ]  # fmt: skip
    rows = [
        {
            "cell": result.cell.name, "game": f"{result.name.game}, {result.name.split}",
            "runs": str(len(result.values)), "episodes": str(min((n for n in result.episodes if n), default=0)),
            "seeds": format_number(result.detectable),
            "by_episodes": format_number(result.by_episodes), "same": format_number(result.split_half),
        }
        for result in report.results
    ]  # fmt: skip
    note = (
        "Detectable: the smallest true difference between two such cells that a t test at 5 % finds in 4 of 5 "
        "experiments, by the std over seeds; by episodes only: between two runs, if seeds had no effect. A/A: two "
        "halves of the same cell, split at random, differ by less than this in 95 of 100 cases (as if each half were"
        " a whole cell; at least 4 runs)."
    )
    return Table("Noise and power", columns, rows, note)


def _build_cells(report: Report) -> Table:
    columns = [
        Column("cell", "cell", False),
        Column("label", "settings", False),
        Column("runs", "runs"),
        Column("status", "status", False),
    ]
    rows = [
        {
            "cell": cell.name, "label": cell.label, "runs": str(len(cell.runs)),
            "status": ", ".join(f"{n} {status}" for status, n in cell.count_statuses().items()),
        }
        for cell in report.cells
    ]  # fmt: skip
    return Table(
        "How the runs ended",
        columns,
        rows,
        "Unfinished runs are not in the means of best and last; all others count.",
    )


def format_number(value: float | None) -> str:
    """Format a number with three decimals; a dash if it is None."""
    return ABSENT if value is None else f"{value:.3f}"


def format_share(value: float | None) -> str:
    """Format a share as a percentage; a dash if it is None."""
    return ABSENT if value is None else f"{value:.0%}"


def format_interval(bounds: Bounds | None, form: str = "{:.3f}") -> str:
    """Format a value and its bounds, each by ``form``; a dash if there is none.

    Bounds without width are left out: they come from few equal values, and say nothing of the precision.
    """
    if bounds is None:
        return ABSENT
    has_width = bounds.low is not None and bounds.high is not None and bounds.low < bounds.high
    interval = f" [{form.format(bounds.low)}, {form.format(bounds.high)}]" if has_width else ""
    return form.format(bounds.value) + interval


def render_markdown(table: Table) -> str:
    """Render a table as Markdown, with its title and note."""
    lines = [
        f"## {table.title}", "",
        f"| {' | '.join(column.title for column in table.columns)} |",
        f"|{'|'.join('--:' if column.is_number else '---' for column in table.columns)}|",
        *(f"| {' | '.join(escape_markdown(row[column.name]) for column in table.columns)} |" for row in table.rows),
    ]  # fmt: skip
    return "\n".join([*lines, *(["", table.note] if table.note else [])]) + "\n"


def escape_markdown(text: str) -> str:
    """Escape untrusted text so that Markdown shows it literally."""
    escaped = "".join(f"\\{character}" if character in "\\`*()|~$" else character for character in text)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")


def _quote_formula(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def format_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Format rows as CSV; text that a spreadsheet would compute gets an apostrophe."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow(map(_quote_formula, row))  # None becomes an empty cell
    return file.getvalue()
