"""Slowdown of a training run next to a busy process, and of simultaneous runs.

    python -m scripts.bench.busy_machine [--repeats 5] [--compare] [-- algo=ppo]

Both are compared with the run alone.  The busy process counts in Python as long as the run lasts.  Every run is a
separate process with torch's default number of threads; seconds are those of an iteration (rollout and update), the
median of all but the first, which prepares its products.  ``--compare`` also measures a run alone with OpenMP's default
waiting time of threads.  (`runs/process.py` lets them sleep sooner, which costs time on a quiet machine.)
"""

from __future__ import annotations

import csv
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.bench.common import (
    ROOT,
    Measured,
    alternate,
    compute_ratio,
    format_table,
    make_parser,
    parse,
    summarise,
    write_json,
)

BUSY = [sys.executable, "-c", "while True: pass"]
OPENMP = {"GOMP_SPINCOUNT": "300000"}  # OpenMP's default when cores are not shared
SMALL = ("trainer.max_epochs=4", "val.episodes=16", "test.episodes=0")


def start(folder: Path, arguments: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "train.py",
        "algo=grpo",
        "env=sokoban",
        f"hydra.run.dir={folder}",
        *SMALL,
        *arguments,
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **variables}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def wait_for_seconds(folder: Path, process: subprocess.Popen[str]) -> float:
    """Wait for the end of a run, and return the median seconds of its iterations."""
    _, error = process.communicate()
    if process.returncode:
        raise SystemExit(error.strip()[-2000:])
    with (folder / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("time/rollout")]
    return statistics.median(float(row["time/rollout"]) + float(row["time/update"]) for row in rows[1:])


def measure(
    arguments: Sequence[str], *, runs: int = 1, busy: int = 0, variables: Mapping[str, str] | None = None
) -> Measured:
    """Measure the slowest of ``runs`` simultaneous runs, next to ``busy`` counting processes."""
    counting = [subprocess.Popen(BUSY) for _ in range(busy)]
    try:
        with tempfile.TemporaryDirectory() as scratch:
            folders = [Path(scratch) / str(number) for number in range(runs)]
            started = [start(folder, arguments, variables or {}) for folder in folders]
            return {"whole": max(map(wait_for_seconds, folders, started))}
    finally:
        for process in counting:
            process.kill()


def main() -> None:
    parser = make_parser(__file__, __doc__, repeats=5)
    parser.add_argument(
        "--compare", action="store_true", help="also a run with OpenMP's default waiting time of threads"
    )
    parser.add_argument("arguments", nargs="*", help="more options of train.py, after --")
    options = parse(parser)
    if options.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
    given = options.arguments
    sides = {
        "alone": lambda _: measure(given),
        "beside one busy process": lambda _: measure(given, busy=1),
        "two side by side": lambda _: measure(given, runs=2),
    }
    if options.compare:
        sides["alone, OpenMP's default"] = lambda _: measure(given, variables=OPENMP)
    rounds = alternate(sides, repeats=options.repeats, warmups=0)
    ratios = {name: compute_ratio(rounds, "whole", of=name, to="alone") for name in sides}
    print(
        format_table(
            ["seconds of an iteration", "median (least–greatest)", "over alone"],
            [[name, summarise(rounds, name, "whole").show(), ratios[name].show()] for name in sides],
        )
    )
    write_json(options.out, {"rounds": rounds, "over_alone": ratios}, options)


if __name__ == "__main__":
    main()
