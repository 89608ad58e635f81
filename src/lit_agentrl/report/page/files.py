"""Files of a report: one page without scripts, Markdown, and CSV tables."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lit_agentrl import __version__
from lit_agentrl.files import write_atomic
from lit_agentrl.report.page import tables
from lit_agentrl.report.page.drawing import LIGHT
from lit_agentrl.report.page.figures import Figure, draw_figures
from lit_agentrl.report.page.headline import make_title, state_result
from lit_agentrl.report.page.held_out import count_groups
from lit_agentrl.report.page.results import STAGES, Report

PAGE, MARKDOWN = "index.html", "report.md"
FILES = (PAGE, MARKDOWN, "runs.csv", "cells.csv", "comparisons.csv", "held_out.csv")
MARKER = "lit_agentrl report"  # marks the pages of this program, which may be replaced


def require_free(folder: Path) -> None:
    """Refuse a folder that holds anything other than an earlier report.

    Raises:
        ValueError: the folder holds other files, or the path is not a folder.
    """
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir():
        raise ValueError(f"out={folder} is not a folder; choose another one")
    names = {path.name for path in folder.iterdir()}
    page = folder / PAGE
    is_ours = (
        page.is_file() and f'content="{MARKER}"' in page.read_text(encoding="utf-8", errors="replace")[:1000]
    )
    if names - set(FILES) or (names and not is_ours) or any((folder / name).is_symlink() for name in names):
        raise ValueError(f"out={folder} contains files that no report wrote; choose another folder")


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
    report_tables = tables.build_tables(report)
    lead = summarise(report)
    lines = [f"# {tables.escape_markdown(make_title(report))}", ""]
    lines += [f"**{tables.escape_markdown(state_result(report))}**", "", lead, ""]
    lines += [f"- {tables.escape_markdown(line)}" for line in (*report.damaged, *report.warnings)]
    write_atomic(
        folder / MARKDOWN,
        "\n".join(
            [
                *lines,
                "",
                *map(tables.render_markdown, report_tables),
                f"Made by {tables.escape_markdown(command)}\n",
            ]
        ),
    )
    for name, text in _build_csv(report).items():
        write_atomic(folder / name, text)
    write_atomic(folder / PAGE, _render_html(report, folder, command, report_tables, lead))
    return folder / PAGE


def summarise(report: Report) -> str:
    """Summarise how many runs there are, and how they ended."""
    counts: dict[str, int] = {}
    for cell in report.cells:
        for status, n in cell.count_statuses().items():
            counts[status] = counts.get(status, 0) + n
    total, cells = sum(counts.values()), len(report.cells)
    ended = ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))
    damaged = (
        f"; {len(report.damaged)} damaged file{'s' * (len(report.damaged) != 1)}" if report.damaged else ""
    )
    return f"{total} run{'s' * (total != 1)} in {cells} cell{'s' * (cells != 1)}: {ended}{damaged}."


def _render_html(
    report: Report, folder: Path, command: str, report_tables: list[tables.Table], lead: str
) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    runs = [run for cell in report.cells for run in cell.runs]
    return environment.get_template("page.html.jinja").render(
        title=make_title(report), result=state_result(report), lead=lead, light=LIGHT, downloads=_list_downloads,
        damaged=report.damaged, warnings=report.warnings, tables=report_tables,
        figures=draw_figures(report), cells=report.cells, command=command, version=__version__, marker=MARKER,
        anchors={run.folder: f"run-{number}" for number, run in enumerate(runs)},
        links={run.folder: quote(os.path.relpath(run.folder, folder)) + "/" for run in runs},
    )  # fmt: skip


def _list_downloads(figure: Figure) -> list[tuple[str, str, str]]:
    """Return format, file name and data URL of each file of a figure."""
    media = {"svg": "image/svg+xml", "png": "image/png"}
    return [
        (
            kind.upper(),
            f"{figure.drawing.name}.{kind}",
            f"data:{media[kind]};base64,{base64.b64encode(content).decode()}",
        )
        for kind, content in figure.drawing.files.items()
    ]


def _build_csv(report: Report) -> dict[str, str]:
    runs = []
    for cell in report.cells:
        for run in cell.runs:
            for name in cell.games or [None]:
                scores = [] if name is None else [
                    next((s.success for s in cell.list_scores(name, stage) if s.run is run), None) for stage in STAGES
                ]  # fmt: skip
                identity = [cell.name, cell.label, run.name, run.seed, run.status, run.error]
                iterations = run.scores["iterations"] if run.scores else None
                runs.append(
                    [
                        *identity,
                        iterations,
                        *(name or (None, None)),
                        *(scores or [None] * len(STAGES)),
                        run.command,
                    ]
                )
    results = [
        [
            item.cell.name, item.cell.label, *item.name, len(item.values), min(item.episodes), item.chance,
            item.oracle, *(value for stage in STAGES for value in (item.stages[stage] or [None] * 3)), item.coverage,
            *(item.normalised or [None] * 3), item.normalised_coverage, item.detectable, item.by_episodes,
            item.split_half,
        ]
        for item in report.results
    ]  # fmt: skip
    pairs = [
        [
            item.a.name, item.b.name, *item.name, *item.difference.bounds, item.difference.p_value, item.adjusted,
            *(item.improvement or [None] * 3), item.difference.detectable, item.difference.units,
        ]
        for item in report.comparisons
    ]  # fmt: skip
    held_out = [
        [result.cell.name, result.cell.label, result.metric, count_groups(result.cell),
         *(result.runs[stage] for stage in STAGES),
         *(value for stage in STAGES for value in (result.stages.get(stage) or [None] * 3))]
        for result in report.held_out
    ]  # fmt: skip
    bound_columns = [f"{stage}{end}" for stage in STAGES for end in ("", "_low", "_high")]
    return {
        "runs.csv": tables.format_csv(
            ["cell", "label", "run", "seed", "status", "error", "iterations", "game", "split", *STAGES, "command"], runs
        ),
        "cells.csv": tables.format_csv(
            ["cell", "label", "game", "split", "runs", "episodes", "chance", "oracle", *bound_columns,
             f"{report.stage}_coverage", "iqm", "iqm_low", "iqm_high", "iqm_coverage", "detectable",
             "detectable_by_episodes", "same_again"], results
        ),
        "comparisons.csv": tables.format_csv(
            ["a", "b", "game", "split", "difference", "low", "high", "p", "p_adjusted", "improvement",
             "improvement_low",
             "improvement_high", "detectable", "rests_on"],
            pairs,
        ),
        "held_out.csv": tables.format_csv(
            ["cell", "label", "metric", "groups", *(f"{stage}_runs" for stage in STAGES), *bound_columns], held_out
        ),
    }  # fmt: skip
