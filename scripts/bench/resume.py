"""Compare a run that is killed and resumed with one that nobody killed.

    python -m scripts.bench.resume [--device cuda] [-- more options of train.py]

Two runs have equal options; a third is killed after its second iteration, and resumed.  Compared to the bit are the
columns of ``metrics.csv``, except those of clocks, and the weights and moments of ``last.ckpt``.  What differs between
the first two runs is not due to the kill.  The figures are written after each run, with the seconds that it took.
"""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from scripts.bench.common import ROOT, keep_last, make_parser, parse, write_json

OPTIONS = (
    "algo=grpo", "env=sokoban", "seed=1", "env.max_turns=3", "rollout.prompts=4", "rollout.members=4",
    "rollout.max_reply_tokens=40", "val.episodes=4", "test.episodes=0", "callbacks.last.every=1",
)  # fmt: skip
CLOCKS = ("time/", "speed/", "memory/", "worker/", "engine/")
PATIENCE_S = 300.0


def run(options: Sequence[str]) -> None:
    """Run train.py to its end.

    Raises:
        SystemExit: it failed; the message is the end of its output.
    """
    done = subprocess.run([sys.executable, "train.py", *options], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"error: train.py {' '.join(options)}: {(done.stdout + done.stderr)[-2000:]}")


def kill(options: Sequence[str], folder: Path, iterations: int) -> int:
    """Kill a run when it has logged ``iterations``; return how many it had logged.

    Raises:
        SystemExit: the run ended, or took too long, before that.
    """
    process = subprocess.Popen(
        [sys.executable, "train.py", *options], cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        until = time.monotonic() + PATIENCE_S
        while count_iterations(folder) < iterations or not (folder / "checkpoints" / "last.ckpt").exists():
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"error: no kill: {folder} has {count_iterations(folder)} iterations")
            time.sleep(0.02)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return count_iterations(folder)


def count_iterations(folder: Path) -> int:
    return sum(row.get("iteration") not in ("", "0", None) for row in read_rows(folder))


def read_rows(folder: Path) -> list[dict[str, str]]:
    file = folder / "metrics.csv"
    return list(csv.DictReader(file.read_text().splitlines())) if file.exists() else []


def compare_columns(first: Path, second: Path) -> list[str]:
    """Return the columns of ``metrics.csv`` that differ, except those of clocks."""
    before, after = read_rows(first), read_rows(second)
    names = [name for name in before[0] if not name.startswith(CLOCKS)]
    return [name for name in names if [r[name] for r in before] != [r.get(name) for r in after]]


def compare(first: Path, second: Path) -> list[str]:
    """Return the columns and tensors that differ between two runs.

    A tensor's greatest difference follows its name.
    """
    before, after = (
        dict(_iterate_tensors(torch.load(folder / "checkpoints" / "last.ckpt", map_location="cpu")))
        for folder in (first, second)
    )
    return compare_columns(first, second) + [
        f"{name} (by up to {float((value.double() - after[name].double()).abs().max()):.2g})"
        for name, value in before.items()
        if not torch.equal(value, after[name])
    ]


def _iterate_tensors(held: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(held, torch.Tensor):
        yield name, held
    elif isinstance(held, Mapping):
        kept = ("state_dict", "optimizer_states") if not name else held
        for key in kept:
            yield from _iterate_tensors(held[key], f"{name} {key}".strip())
    elif isinstance(held, list | tuple):
        for number, each in enumerate(held):
            yield from _iterate_tensors(each, f"{name} {number}")


def main() -> None:
    parser = make_parser(__file__, __doc__, repeats=1)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("arguments", nargs="*", help="more options of train.py, after --")
    options = parse(parser)
    accelerator = "gpu" if options.device == "cuda" else "cpu"
    words = keep_last(
        [
            *OPTIONS, f"trainer.accelerator={accelerator}", f"trainer.max_epochs={options.iterations}",
            *options.arguments,
        ]
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="resume-") as scratch:
        first, again, killed = (Path(scratch) / name for name in ("first", "again", "killed"))
        found: dict[str, Any] = {"seconds": {}}

        def record(step: str, started: float, **differing: list[str]) -> None:
            """Write the figures so far, for a benchmark that is cut off."""
            found["seconds"][step] = time.monotonic() - started
            for name, each in differing.items():
                found.update({name: each, f"differ_{name}": len(each)})
                says = f"{len(each)} differ: {', '.join(each[:20])}" if each else "equal to the bit"
                print(f"{step}: {says}", flush=True)
            write_json(options.out, found, options)

        started = time.monotonic()
        run([*words, f"hydra.run.dir={first}"])
        record("a run", started)
        started = time.monotonic()
        at = kill([*words, f"hydra.run.dir={killed}"], killed, 2)
        record("a run until its kill", started)
        started = time.monotonic()
        run([f"resume={killed}"])
        record(f"a run killed in iteration {at + 1}", started, resumed=compare(first, killed))
        started = time.monotonic()
        run([*words, f"hydra.run.dir={again}"])
        record("a second run", started, repeated=compare(first, again))


if __name__ == "__main__":
    main()
