"""A whole training run of this tree against the same command at an earlier revision.

    python -m scripts.bench.vs_revision --revision acaa0cd [--repeats 2] [-- trainer.max_epochs=10 seed=3]
    python -m scripts.bench.vs_revision --revision ab39f31 --now update.lanes=2      # an option of this tree alone

Every run is a separate process, as a user starts it; its wall time includes start-up, both tests and the export.
Options after ``--`` are added to ``algo=grpo env=sokoban`` on both sides.  The two sides of a repetition use the
repetition's number as their seed, unless ``seed=`` is given.  Sampled episodes differ between revisions by rounding, so
success is printed next to the seconds: the ratio of seconds has a meaning only if both sides learn equally well.  The
columns of ``metrics.csv`` that differ, except those of clocks, are named.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from scripts.bench.resume import compare_columns

PHASES = ("rollout", "update", "validate")


@contextmanager
def check_out(revision: str, folder: Path) -> Iterator[None]:
    """Check out ``revision`` in ``folder`` for the duration of the block."""
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), revision], check=True)
    try:
        yield
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def run(tree: Path, folder: Path, arguments: Sequence[str]) -> Measured:
    """Run ``tree``'s train.py into ``folder``, and return its measurements.

    These are seconds by phase, peak memory, and success at start and end.
    """
    command = [sys.executable, "train.py", "algo=grpo", "env=sokoban", f"hydra.run.dir={folder}", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    started = time.perf_counter()
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    wall = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} in {tree}: {done.stderr.strip()[-2000:]}")
    summary = json.loads((folder / "summary.json").read_text())
    (game,) = (game for game in summary["games"] if game["split"] == "test")
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    phases = {name: sum(float(row.get(f"time/{name}") or 0) for row in rows) for name in PHASES}
    scores = {name: game[name]["success"]["mean"] for name in ("start", "last")}
    return {"wall": wall, **phases, "peak MiB": summary["peak_memory_bytes"] / 2**20, **scores}


def main() -> None:
    parser = make_parser(__file__, __doc__, repeats=2)
    parser.add_argument("--revision", required=True, help="the commit to compare with")
    parser.add_argument("--now", action="append", default=[], metavar="KEY=VALUE", help="for this tree alone")
    parser.add_argument("arguments", nargs="*", help="more options of train.py, after --")
    options = parse(parser)
    if options.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
    with tempfile.TemporaryDirectory() as scratch:
        old = Path(scratch) / "old"

        def measure_side(name: str, tree: Path, number: int) -> Measured:
            seed = [] if any(a.startswith("seed=") for a in options.arguments) else [f"seed={max(number, 0)}"]
            own = options.now if name == "new" else []
            measured = run(tree, Path(scratch) / f"{name}{number}", [*seed, *options.arguments, *own])
            print(f"{name} {number}: " + ", ".join(f"{k} {v:.3f}" for k, v in measured.items()), flush=True)
            return measured

        differing: set[str] = set()
        with check_out(options.revision, old):
            sides = {
                "old": lambda n: measure_side("old", old, n),
                "new": lambda n: measure_side("new", ROOT, n),
            }
            rounds = alternate(sides, repeats=options.repeats, warmups=0)
        for number in range(options.repeats):
            differing.update(compare_columns(*(Path(scratch) / f"{side}{number}" for side in sides)))
    quantities = ("wall", *PHASES, "peak MiB", "start", "last")
    ratios = {
        name: compute_ratio(rounds, name, of="new", to="old")
        for name in quantities
        if all(side[name] for measured in rounds for side in measured.values())
    }
    print(
        format_table(
            ["seconds; MiB; success", options.revision, "now", "now / then (least–greatest)"],
            [
                [
                    name,
                    *(summarise(rounds, side, name).show(3) for side in ("old", "new")),
                    ratios[name].show() if name in ratios else "–",
                ]
                for name in quantities
            ],
        )
    )
    print(f"columns of metrics.csv that differ: {', '.join(sorted(differing)) or 'none'}")
    write_json(
        options.out, {"rounds": rounds, "new_over_old": ratios, "differing": sorted(differing)}, options
    )


if __name__ == "__main__":
    main()
