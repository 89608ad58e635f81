"""The verdict on each claim of a campaign, as Markdown, and its runs as CSV.

    python train.py -m experiment=grid/collapse hydra.sweep.dir=outputs/collapse
    python scripts/claims.py outputs/collapse --claims collapse --csv docs/findings/collapse.csv

Claims and criteria are in ``docs/findings/claims.yaml``, which was committed before the runs.  A claim compares runs
of two options that agree in all other options and in the seed.  Differences are averaged over the other options first,
so each seed is one observation.  The mean over the seeds has Student's 95 % interval.  A claim is *reproduced* if the
interval lies on the expected side of 0; *not reproduced* if it lies entirely below the smallest difference that
matters, in that direction; otherwise *undecided*.  *Would be seen* is the smallest true difference that this number of
seeds with this standard deviation shows in 4 of 5 campaigns.  Collapsed runs count like all others; unfinished and
failed runs are listed and left out.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections.abc import Mapping, Sequence
from math import isnan, nan
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple

import yaml

from lit_agentrl.monitor.rules import collapse, find_alarms
from lit_agentrl.report.page.cells import Cell
from lit_agentrl.report.page.inference import Difference, compare_paired
from lit_agentrl.report.page.runs import Run, load_ended

CLAIMS = Path(__file__).resolve().parents[1] / "docs/findings/claims.yaml"


class Claim(NamedTuple):
    """A claim of the file."""

    says: str
    measure: Literal["last", "gain", "kept", "sharp"]
    expected: Literal["above", "below"]
    least: float
    first: Sequence[str] = ()
    second: Sequence[str] = ()
    each: Sequence[str] = ()


class Played(NamedTuple):
    """The results of a run."""

    options: tuple[str, ...]
    seed: int
    start: float
    last: float
    kept: float
    sharp: float = nan

    @property
    def gain(self) -> float:
        return self.last - self.start

    @classmethod
    def of(cls, run: Run) -> Played:
        assert run.seed is not None, "only runs that ended are read"
        cell = Cell("A", "", (run,))
        [name] = [name for name in cell.games if name.split == "test"]
        [start], [last] = (cell.list_scores(name, stage) for stage in ("start", "last"))
        options = tuple(
            re.sub("=(True|False)$", lambda found: found[0].lower(), each) for each in run.options
        )
        return cls(
            options,
            run.seed,
            start.success,
            last.success,
            compute_kept_share(run),
            compute_sharp_gain(run.folder),
        )


def compute_kept_share(run: Run) -> float:
    """Return the share of a run's iterations before its collapse, 1 without a collapse."""
    rows = run.metrics.rows
    fell = find_alarms(collapse(), rows)
    return fell[0] / rows[-1]["iteration"] if fell else 1.0


def compute_sharp_gain(folder: Path) -> float:
    """Return the gain in success between start and last weights, each at its best temperature.

    The temperatures are those that ``evaluate.py`` played; NaN if it did not play both.
    """

    def find_best(stage: str) -> float:
        played = [json.loads(file.read_text()) for file in folder.glob(f"evaluations/{stage}_test_*.json")]
        records = [record for one in played for record in one["results"] if not record.get("shots")]
        return max((record["success"]["mean"] for record in records), default=nan)

    return find_best("last") - find_best("start")


def compute_gaps(claim: Claim, runs: Sequence[Played]) -> list[float]:
    """Compute the difference for each seed with runs of both sides and equal other options."""

    def of(side: Sequence[str]) -> Mapping[tuple[int, tuple[str, ...]], float]:
        return {
            (run.seed, tuple(each for each in run.options if each not in side)): getattr(run, claim.measure)
            for run in runs
            if set(side) <= set(run.options) and not isnan(getattr(run, claim.measure))
        }

    ours, theirs = of(claim.first), of(claim.second)
    found: dict[int, list[float]] = {}
    for key, value in ours.items():
        if not claim.second:
            found.setdefault(key[0], []).append(value)
        elif key in theirs:
            found.setdefault(key[0], []).append(value - theirs[key])
    return [fmean(found[seed]) for seed in sorted(found)]


def state_verdict(claim: Claim, found: Difference) -> str:
    """Return the verdict on a claim from the position of its interval."""
    low, high = found.bounds.low, found.bounds.high
    if low is None or high is None:
        return "undecided"
    if claim.expected == "below":
        low, high = -high, -low
    return "reproduced" if low > 0 else "not reproduced" if high < claim.least else "undecided"


def format_table(claims: Sequence[Claim], runs: Sequence[Played]) -> str:
    """Format a row for each claim and each value of the options that it distinguishes."""
    lines = ["| claim | where | difference [95 %] | seeds | would be seen | |", "|---" * 6 + "|"]
    for claim in claims:
        for where in dict.fromkeys(find_place(claim, run) for run in runs):
            own = compute_gaps(claim, [run for run in runs if find_place(claim, run) == where])
            if not own:
                continue
            found = compare_paired(own, [0.0] * len(own))
            mean, low, high = found.bounds
            bounds = "–" if low is None else f"[{low:+.3f}, {high:+.3f}]"
            seen = "–" if found.detectable is None else f"{found.detectable:.3f}"
            cells = [
                claim.says,
                " ".join(where),
                f"{mean:+.3f} {bounds}",
                str(len(own)),
                seen,
                state_verdict(claim, found),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def find_place(claim: Claim, run: Played) -> tuple[str, ...]:
    """Return the values of the options that the claim distinguishes."""
    return tuple(each for name in claim.each for each in run.options if each.split("=")[0] == name)


def main() -> None:
    claims_by_name = yaml.safe_load(CLAIMS.read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+", help="folders of the sweep")
    parser.add_argument(
        "--claims", choices=claims_by_name, required=True, help="the grid whose claims are asked"
    )
    parser.add_argument("--csv", type=Path, help="a row for each run")
    arguments = parser.parse_args()
    whole, left_out = load_ended(arguments.folders)
    for line in left_out:
        print(f"{line}\n")
    runs = [Played.of(run) for run in whole]
    print(format_table([Claim(**each) for each in claims_by_name[arguments.claims]], runs))
    if arguments.csv is not None:
        with arguments.csv.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            names = [
                name for name in Played._fields[2:] if not all(isnan(getattr(run, name)) for run in runs)
            ]
            writer.writerow(["options", "seed", *names])
            writer.writerows(
                [" ".join(run.options), run.seed, *(f"{getattr(run, name):.6g}" for name in names)]
                for run in sorted(runs)
            )


if __name__ == "__main__":
    main()
