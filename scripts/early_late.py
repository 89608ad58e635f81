"""Compare signals of late and early iterations, paired by run, as Markdown and CSV.

    python train.py -m experiment=grid/echo_trap hydra.sweep.dir=outputs/echo_trap
    python scripts/early_late.py outputs/echo_trap --csv docs/findings/echo_trap.csv

**Early** is the mean of the first ``--window`` iterations that measured a signal, **late** that of the last ones.
Runs that differ only in their seed form a cell.  The difference is late − early of each run; its mean over the runs
has Student's 95 % interval.  A signal *falls* or *rises* if that interval excludes 0, and is *undecided* otherwise.
Collapsed runs count like all others; unfinished and failed runs are listed and left out.

These criteria were fixed before the campaign: the Echo Trap of arXiv 2504.20073 is *reproduced* in a game if the
distinct share of replies falls (``collapse/distinct_within``) and the most frequent thought's share rises
(``collapse/template_share``); it is *not reproduced* if one of them has an interval on the opposite side of 0;
otherwise it is *undecided*.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from lit_agentrl.report.page.runs import Run, load_ended
from lit_agentrl.report.statistics import compute_mean_interval

SIGNALS = (
    "collapse/distinct_within", "rollout/distinct_2", "collapse/similarity_across", "collapse/template_share",
    "rollout/entropy", "rollout/return_std_within_group", "train/grad_norm", "rollout/reply_tokens", "val/success",
)  # fmt: skip
MEANT = {"collapse/distinct_within": "falls", "collapse/template_share": "rises"}


class Pair(NamedTuple):
    """A run's early and late means of a signal."""

    cell: str
    seed: int
    signal: str
    early: float
    late: float


def list_pairs(run: Run, window: int) -> list[Pair]:
    """Return the pairs of all signals measured in at least two windows of iterations."""
    cell = " ".join(run.options)
    assert run.seed is not None, "main() has asked"
    found = []
    for signal in SIGNALS:
        column = run.metrics[signal] if signal in run.metrics.columns else []
        values = [value for value in column if value is not None]
        if len(values) >= 2 * window:
            found.append(Pair(cell, run.seed, signal, fmean(values[:window]), fmean(values[-window:])))
    return found


def name_direction(differences: Sequence[float]) -> str:
    """Return whether a signal falls, rises or is undecided, from its interval."""
    gap = compute_mean_interval(differences)
    return "falls" if gap.high < 0 else "rises" if gap.low > 0 else "undecided"


def state_verdict(found: Sequence[Pair], cell: str) -> str:
    """Return the verdict on the Echo Trap in a cell."""
    seen = {
        signal: name_direction(
            [each.late - each.early for each in found if (each.cell, each.signal) == (cell, signal)]
        )
        for signal in MEANT
    }
    if seen == MEANT:
        return "reproduced"
    return (
        "undecided" if all(seen[name] in (MEANT[name], "undecided") for name in MEANT) else "not reproduced"
    )


def format_table(found: Sequence[Pair]) -> str:
    """Format a row for each cell and signal, then the verdicts."""
    lines = ["| runs | signal | early | late | difference [95 %] | |", "|---" * 6 + "|"]
    for cell in dict.fromkeys(each.cell for each in found):
        for signal in SIGNALS:
            own = [each for each in found if (each.cell, each.signal) == (cell, signal)]
            if not own:
                continue
            gaps = [each.late - each.early for each in own]
            gap = compute_mean_interval(gaps)
            lines.append(
                f"| {cell} | `{signal}` | {fmean(each.early for each in own):.3f} "
                f"| {fmean(each.late for each in own):.3f} "
                f"| {gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}] (n = {gap.n}) | {name_direction(gaps)} |"
            )
    lines += [
        "",
        *(f"{cell}: {state_verdict(found, cell)}" for cell in dict.fromkeys(each.cell for each in found)),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+", help="folders of sweeps")
    parser.add_argument(
        "--window", type=int, default=10, help="iterations that are early, and late; default 10"
    )
    parser.add_argument("--csv", type=Path, help="a row for each run and signal")
    arguments = parser.parse_args()
    whole, left_out = load_ended(arguments.folders)
    for line in left_out:
        print(f"{line}\n")
    found = [pair for run in whole for pair in list_pairs(run, arguments.window)]
    if not found:
        parser.error(f"no run has measured a signal in {2 * arguments.window} iterations")
    print(format_table(found))
    if arguments.csv is not None:
        with arguments.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(Pair._fields)
            writer.writerows([*each[:3], f"{each.early:.6g}", f"{each.late:.6g}"] for each in found)


if __name__ == "__main__":
    main()
