"""Write a report about runs: a web page, Markdown and tables."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from lit_agentrl.checks import escape_unprintable
from lit_agentrl.cli._running import build_parser, run_command

EXAMPLES = """
  {0} outputs/multirun/2026-01-31/12-00-00     a sweep
  {0} RUN RUN                                  two runs of different options, task by task
  {0} outputs --out outputs/all                all runs below a folder

Runs that differ only in their seed share a row, called a cell.  Needs pip install 'lit-agentrl[report]'.
"""

OUT = "outputs/report"


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``lit-agentrl report``."""
    with run_command(argv) as arguments:
        parser = build_parser("report", __doc__, EXAMPLES)
        parser.add_argument(
            "runs", nargs="+", metavar="FOLDER", help="run folders, sweeps, or folders that contain them"
        )
        parser.add_argument(
            "--out", default=OUT, metavar="FOLDER", help=f"folder of the report (default: {OUT})"
        )
        parser.add_argument(
            "--stage", default="last", choices=("last", "best"), help="which weights of each run are compared"
        )
        args = parser.parse_args(arguments)
        from lit_agentrl.report.page import files as page
        from lit_agentrl.report.page.headline import state_result
        from lit_agentrl.report.page.results import build_report
        from lit_agentrl.report.page.runs import load

        folder = Path(args.out)
        page.require_free(folder)
        runs, damaged = load([Path(text) for text in args.runs])
        for line in damaged:
            print(f"warning: {line}", file=sys.stderr)
        report = build_report(runs, damaged, args.stage)
        path = page.write(report, folder, shlex.join([*parser.prog.split(), *arguments]))
        for line in report.warnings:
            print(f"warning: {line}", file=sys.stderr)
        print(page.summarise(report))
        print(escape_unprintable(state_result(report)))
        print(f"written to {path}")
