"""Seconds of whole iterations with ``rollout.overlap=true`` against the same job without it.

The cost of overlap includes its correction, one more forward pass over the tokens.

``train.py`` runs for both in alternation, and the seconds of each iteration are read from its metrics.csv.  The first
two iterations are left out: the trainer plays the first, and the second may wait for the start of the playing
process.  Further overrides follow the options:

    python -m scripts.bench.overlap
    python -m scripts.bench.overlap --repeats 3 update.epochs=2
"""

from __future__ import annotations

import csv
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from scripts.bench import common

QUANTITIES = ("iteration", "rollout", "update")
SKIPPED = 2  # number of first iterations left out
MIX = ["algo=grpo", "env=sokoban"]
QUICK = ["test.episodes=0", "val.episodes=4", "val.every=100000", "callbacks.transcripts.every=100000"]


def measure_side(overlap: bool, iterations: int, overrides: Sequence[str], number: int) -> common.Measured:
    """Return median seconds of an iteration: the trainer's wait for episodes, and its update."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        given = [
            *MIX, *QUICK, f"rollout.overlap={str(overlap).lower()}", f"trainer.max_epochs={iterations + SKIPPED}",
            f"seed={max(number, 0)}", f"hydra.run.dir={run}", *overrides,
        ]  # fmt: skip
        command = [sys.executable, str(common.ROOT / "train.py"), *common.keep_last(given)]
        path = os.pathsep.join([str(common.ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
        if done.returncode:
            raise SystemExit(done.stderr)
        with (run / "metrics.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))[1 + SKIPPED :]
    found = {name: [float(row[f"time/{name}"]) for row in rows] for name in ("rollout", "update")}
    found["iteration"] = [a + b for a, b in zip(found["rollout"], found["update"], strict=True)]
    if overlap:
        found["playing"] = [float(row["time/ahead"]) for row in rows]
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    parser = common.make_parser(__file__, __doc__)
    parser.add_argument("--iterations", type=int, default=8, help="measured iterations of each run")
    parser.add_argument("overrides", nargs="*", help="of train.py, for both sides")
    options = common.parse(parser)
    sides = {
        name: partial(measure_side, overlap, options.iterations, options.overrides)
        for name, overlap in (("overlap", True), ("in turn", False))
    }
    rounds = common.alternate(sides, repeats=options.repeats, warmups=0)
    print(common.format_seconds(rounds, QUANTITIES, ours="overlap", peer="in turn"))
    playing = common.summarise(rounds, "overlap", "playing")
    print(f"seconds that the other process played for an iteration: {playing.show()}")
    ratios = {name: common.compute_ratio(rounds, name, of="in turn", to="overlap") for name in QUANTITIES}
    common.write_json(options.out, {"rounds": rounds, "ratios": ratios}, options)


if __name__ == "__main__":
    main()
