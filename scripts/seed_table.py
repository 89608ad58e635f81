"""A Markdown table of final test success, for runs of several algorithms and seeds.

    python train.py -m algo=grpo,rloo,ppo env=sokoban seed=0,1,2
    python scripts/seed_table.py outputs/multirun/DATE/TIME

Each row is an algorithm: success of each seed with its Wilson interval over instances, and the mean with Student's
interval over the seeds.  That interval is wide, since seeds are few, and it is the one to use for comparisons.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from statistics import fmean, median
from typing import Any

import yaml

from lit_agentrl.report import summary as reports
from lit_agentrl.report.statistics import compute_mean_interval


def find_test_scores(summary: Any) -> Any:
    (game,) = [game for game in summary["games"] if game["split"] == "test"]
    return game


def measure_iteration(folder: Path) -> float:
    with (folder / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["time/rollout"]]
    return median(float(row["time/rollout"]) + float(row["time/update"] or 0) for row in rows)


def format_interval(values: dict[str, Any]) -> str:
    return f"{values['mean']:.3f} [{values['low']:.3f}, {values['high']:.3f}]"


def format_row(name: str, folders: list[Path], with_seconds: bool) -> tuple[float, str]:
    summaries = [reports.read(folder / "summary.json") for folder in folders]
    scores = [find_test_scores(summary)["last"]["success"] for summary in summaries]
    over_seeds = compute_mean_interval([score["mean"] for score in scores])
    episodes = fmean(summary["episodes"] for summary in summaries)
    cells = [
        f"`{name}`", *(format_interval(score) for score in scores),
        f"{over_seeds.mean:.3f} [{over_seeds.low:.3f}, {over_seeds.high:.3f}]", f"{episodes:,.0f}",
    ]  # fmt: skip
    if with_seconds:
        cells.append(f"{fmean(measure_iteration(folder) for folder in folders):.2f}")
    return over_seeds.mean, f"| {' | '.join(cells)} |"


def format_level(level: reports.Score | None) -> str:
    """Format a level, or state that it is not known."""
    return "not known" if level is None else format_interval(level["success"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+", help="run folders, or folders of them")
    parser.add_argument("--seconds", action="store_true", help="and the median seconds of an iteration")
    arguments = parser.parse_args()
    runs: dict[str, dict[int, Path]] = {}
    for file in sorted(f for folder in arguments.folders for f in folder.rglob("summary.json")):
        summary = reports.read(file)
        if summary["status"] != "completed":
            parser.error(f"{file.parent} is not a completed run: {summary['status']}")
        config = yaml.safe_load((file.parent / ".hydra" / "config.yaml").read_text())
        runs.setdefault(config["algo"]["name"], {})[summary["seed"]] = file.parent
    if not runs:
        parser.error("no run found")
    seeds = sorted({seed for by_seed in runs.values() for seed in by_seed})
    if lacking := [name for name, by_seed in runs.items() if sorted(by_seed) != seeds]:
        parser.error(f"{lacking[0]} lacks a seed of {seeds}")
    first = next(iter(runs.values()))
    starts = [find_test_scores(reports.read(first[seed] / "summary.json")) for seed in seeds]
    levels = starts[0]
    print(
        f"Chance {format_level(levels['chance'])}, oracle {format_level(levels['oracle'])}, before "
        f"training {', '.join(format_interval(game['start']['success']) for game in starts)} for the seeds in turn.\n"
    )
    columns = ["`algo=`", *(f"seed {seed}" for seed in seeds), "mean over seeds", "episodes"]
    if arguments.seconds:
        columns.append("s per iteration")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    lines = [
        format_row(name, [by_seed[seed] for seed in seeds], arguments.seconds)
        for name, by_seed in runs.items()
    ]
    print("\n".join(line for _, line in sorted(lines, key=lambda item: -item[0])))


if __name__ == "__main__":
    main()
