"""Compares evaluations of several runs with that of the start, on equal instances.

    python evaluate.py run=RUN checkpoint=start temperature=[1,0.7,0.5,0.3,0] seed=0     # for seeds 0 1 2
    python evaluate.py run=RUN checkpoint=last temperature=[1,0.7,0.5,0.3,0] seed=0      # for each run
    python scripts/compare.py --start START.json … --last LAST.json …

Prints success by temperature, the lift at T=1 of each run, and the best temperature of the runs against the
best of the start: the difference of each instance's mean over seeds, with a 95 % interval over instances.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean

from lit_agentrl.report.statistics import Interval, mean_interval, wilson_interval

Solved = dict[float, list[bool]]  # temperature -> outcome of each instance


def read(path: Path) -> Solved:
    results = json.loads(path.read_text())["results"]
    return {record["temperature"]: [bool(x) for x in record["solved"]] for record in results}


def shown(interval: Interval) -> str:
    return f"{interval.mean:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"


def share(solved: list[bool]) -> str:
    interval = wilson_interval(sum(solved), len(solved))
    return f"{interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def per_instance(evaluations: list[Solved], temperature: float) -> list[float]:
    return [fmean(outcomes) for outcomes in zip(*(e[temperature] for e in evaluations), strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--start", type=Path, nargs="+", required=True)
    parser.add_argument("--last", type=Path, nargs="+", required=True)
    arguments = parser.parse_args()
    start, last = [read(p) for p in arguments.start], [read(p) for p in arguments.last]
    temperatures = sorted(set.intersection(*(set(e) for e in start + last)), reverse=True)
    for label, evaluations in (("start", start), ("last", last)):
        for number, evaluation in enumerate(evaluations):
            line = "  ".join(f"T={t:g} {share(evaluation[t])}" for t in temperatures)
            print(f"{label} {number}: n={len(evaluation[temperatures[0]])}  {line}")
    means = {
        label: {t: fmean(per_instance(evaluations, t)) for t in temperatures}
        for label, evaluations in (("start", start), ("last", last))
    }
    for number, evaluation in enumerate(last):
        first = temperatures[0]
        pairs = zip(per_instance([evaluation], first), per_instance(start, first), strict=True)
        print(f"last {number} - start at T={first:g}: {shown(mean_interval([a - b for a, b in pairs]))}")
    best = {label: max(temperatures, key=values.__getitem__) for label, values in means.items()}
    pairs = zip(per_instance(last, best["last"]), per_instance(start, best["start"]), strict=True)
    print(
        f"best of last (T={best['last']:g}, {means['last'][best['last']]:.3f}) - best of start "
        f"(T={best['start']:g}, {means['start'][best['start']]:.3f}), pooled over {len(last)} runs: "
        f"{shown(mean_interval([a - b for a, b in pairs]))}"
    )


if __name__ == "__main__":
    main()
