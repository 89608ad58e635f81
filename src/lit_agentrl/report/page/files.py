"""Files of a report: one page without scripts, Markdown, and CSV tables."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lit_agentrl import __version__
from lit_agentrl.files import write_atomic
from lit_agentrl.report.page import tables
from lit_agentrl.report.page.figures import figures
from lit_agentrl.report.page.results import STAGES, Report

PAGE, WORDS = "index.html", "report.md"
FILES = (PAGE, WORDS, "runs.csv", "cells.csv", "comparisons.csv")
MARKER = "lit_agentrl report"  # marks a page as ours, so that it may be replaced


def require_free(folder: Path) -> None:
    """Refuse a folder that holds anything other than an earlier report.

    Raises:
        ValueError: naming the folder.
    """
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir():
        raise ValueError(f"out={folder} is no folder; name another one")
    names = {path.name for path in folder.iterdir()}
    page = folder / PAGE
    is_ours = (
        page.is_file() and f'content="{MARKER}"' in page.read_text(encoding="utf-8", errors="replace")[:1000]
    )
    if names - set(FILES) or (names and not is_ours) or any((folder / name).is_symlink() for name in names):
        raise ValueError(f"out={folder} holds files that no report wrote; name another folder")


def write(report: Report, folder: Path, command: str) -> Path:
    """Write all files of a report; the page comes last.

    Args:
        report: content of the files.
        folder: created if it does not exist; see `require_free`.
        command: the command that makes the same report.

    Returns:
        The path of the page.

    Raises:
        OSError: a file cannot be written.
    """
    sheets = tables.tables(report)
    lead = summary_line(report)
    words = [f"# Report of {len(report.cells)} cell{'s' * (len(report.cells) != 1)}", "", lead, ""]
    words += [f"- {tables.plain(line)}" for line in (*report.damaged, *report.warnings)]
    write_atomic(
        folder / WORDS,
        "\n".join([*words, "", *map(tables.markdown, sheets), f"Made by {tables.plain(command)}\n"]),
    )
    for name, text in _csv(report).items():
        write_atomic(folder / name, text)
    write_atomic(folder / PAGE, _html(report, folder, command, sheets, lead))
    return folder / PAGE


def summary_line(report: Report) -> str:
    """Summarise how many runs there are, and how they ended."""
    counts: dict[str, int] = {}
    for cell in report.cells:
        for status, n in cell.counts().items():
            counts[status] = counts.get(status, 0) + n
    total, cells = sum(counts.values()), len(report.cells)
    ended = ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))
    damaged = (
        f"; {len(report.damaged)} damaged file{'s' * (len(report.damaged) != 1)}" if report.damaged else ""
    )
    return f"{total} run{'s' * (total != 1)} in {cells} cell{'s' * (cells != 1)}: {ended}{damaged}."


def _html(report: Report, folder: Path, command: str, sheets: list[tables.Table], lead: str) -> str:
    place = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    runs = [run for cell in report.cells for run in cell.runs]
    return place.get_template("page.html.jinja").render(
        title="Report", lead=lead, damaged=report.damaged, warnings=report.warnings, tables=sheets,
        figures=figures(report), cells=report.cells, command=command, version=__version__, marker=MARKER,
        anchors={run.folder: f"run-{number}" for number, run in enumerate(runs)},
        links={run.folder: quote(os.path.relpath(run.folder, folder)) + "/" for run in runs},
    )  # fmt: skip


def _csv(report: Report) -> dict[str, str]:
    runs = []
    for cell in report.cells:
        for run in cell.runs:
            for name in cell.games or [None]:
                of_run = [] if name is None else [
                    next((s.success for s in cell.scored(name, stage) if s.run is run), None) for stage in STAGES
                ]  # fmt: skip
                about = [cell.letter, cell.label, run.name, run.seed, run.status, run.error]
                iterations = run.scores["iterations"] if run.scores else None
                runs.append(
                    [
                        *about,
                        iterations,
                        *(name or (None, None)),
                        *(of_run or [None] * len(STAGES)),
                        run.command,
                    ]
                )
    results = [
        [
            each.cell.letter, each.cell.label, *each.name, len(each.values), min(each.episodes), each.chance,
            each.oracle, *(value for stage in STAGES for value in (each.stages[stage] or [None] * 3)), each.coverage,
            *(each.normalised or [None] * 3), each.normalised_coverage, each.detectable, each.by_episodes,
            each.same_again,
        ]
        for each in report.results
    ]  # fmt: skip
    pairs = [
        [
            each.a.letter, each.b.letter, *each.name, *each.difference.bounds, each.difference.p_value, each.adjusted,
            *(each.improvement or [None] * 3), each.difference.detectable, each.difference.units,
        ]
        for each in report.comparisons
    ]  # fmt: skip
    bounded = [f"{stage}{end}" for stage in STAGES for end in ("", "_low", "_high")]
    return {
        "runs.csv": tables.as_csv(
            ["cell", "label", "run", "seed", "status", "error", "iterations", "game", "split", *STAGES, "command"], runs
        ),
        "cells.csv": tables.as_csv(
            ["cell", "label", "game", "split", "runs", "episodes", "chance", "oracle", *bounded,
             f"{report.stage}_coverage", "iqm", "iqm_low", "iqm_high", "iqm_coverage", "detectable",
             "detectable_by_episodes", "same_again"], results
        ),
        "comparisons.csv": tables.as_csv(
            ["a", "b", "game", "split", "difference", "low", "high", "p", "p_adjusted", "improvement",
             "improvement_low",
             "improvement_high", "detectable", "rests_on"],
            pairs,
        ),
    }  # fmt: skip
