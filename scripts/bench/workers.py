"""Iterations with two workers of one thread each against one process of two threads.

    python -m scripts.bench.workers                       # on two cores with nothing else on them
    python -m scripts.bench.workers --worker ray --share 4
    python -m scripts.bench.workers --share 8 --lanes 2    # the update in two lanes as well
    python -m scripts.bench.workers --iterations 4 --repeats 2 -- env=frozen_lake

The script runs ``train.py`` for both in alternation, and a third time with a single worker that records the seconds of
each share.  From these shares, the other costs of a wave, and the update, it simulates an iteration with more workers,
each on its own core.  The simulation ignores that cores share memory bandwidth; the line for two workers shows its
error against the measurement.  The first iteration of each run, in which workers start, is left out.
"""

from __future__ import annotations

import csv
import heapq
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lit_agentrl.rollout.workers.base import Played
from lit_agentrl.rollout.workers.pool import Pool
from lit_agentrl.rollout.workers.process import Process, Processes, ProcessSettings
from lit_agentrl.rollout.workers.shares import Share
from scripts.bench import common

BOUND = 1.1
LOG = "NOTED_SHARES"  # name of an environment variable
CORES = 2
SIMULATED = (1, 2, 4, 8, 16)
MIX = ["algo=grpo", "env=sokoban"]
QUICK = ["test.episodes=0", "val.episodes=4", "val.every=100000", "callbacks.transcripts.every=100000"]
QUANTITIES = ("iteration", "rollout", "update")


@dataclass(frozen=True, kw_only=True)
class NotedSettings(ProcessSettings):
    """Settings of one process that logs the iteration and the seconds of each share.

    The environment variable `LOG` names the file.
    """

    def open(self, *parts: Any, is_ahead: bool) -> Pool:
        opener = NotedProcesses(*parts, count=self.count, threads=self.choose_threads(is_ahead=is_ahead))
        return self.make_pool(opener, parts[0], is_ahead=is_ahead)


class NotedProcesses(Processes):
    def open(self, number: int) -> Process:
        return NotedProcess(self._payload, self._weights, self._devices[0], self._threads)


class NotedProcess(Process):
    def play(self, share: Share, load: int, version: int) -> Played:
        """Play a share, and log its seconds as measured by the trainer.

        They include the transfer of the share and its episodes, during which the worker is busy too.
        """
        started = time.perf_counter()
        played = super().play(share, load, version)
        seconds = time.perf_counter() - started
        with open(os.environ[LOG], "a") as file:
            print(json.dumps([share.wave.iteration, seconds]), file=file)
        return played


def run(
    folder: Path, iterations: int, overrides: Sequence[str], log: Path | None = None
) -> list[dict[str, float]]:
    """Run a job, and return the seconds of each iteration but the first, by phase."""
    options = [*MIX, *QUICK, f"trainer.max_epochs={iterations + 1}", f"hydra.run.dir={folder}", *overrides]
    command = [sys.executable, str(common.ROOT / "train.py"), *common.keep_last(options)]
    paths = [str(common.ROOT / "src"), str(common.ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "OMP_NUM_THREADS": str(CORES), "PYTHONPATH": os.pathsep.join(paths)}
    environment |= {} if log is None else {LOG: str(log)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=common.ROOT)
    if done.returncode:
        raise SystemExit(done.stderr)
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))[2:]
    found = []
    for row in rows:
        times = {name: float(row[f"time/{name}"] or 0.0) for name in ("rollout", "update")}
        times["ahead"] = float(row.get("time/ahead") or 0.0)
        found.append(times | {"iteration": times["rollout"] + times["update"]})
    return found


def measure_side(
    iterations: int, options: Sequence[str], overrides: Sequence[str], number: int
) -> common.Measured:
    """Measure the median seconds of an iteration."""
    with tempfile.TemporaryDirectory() as scratch:
        rows = run(Path(scratch) / "run", iterations, [f"seed={max(number, 0)}", *options, *overrides])
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def simulate(iterations: int, share: int, overrides: Sequence[str], number: int) -> common.Measured:
    """Simulate the seconds of an iteration with several workers, from the shares of one."""
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "shares"
        options = ["worker=process", f"worker.share={share}", "worker.count=1", "worker.threads=1"]
        options += ["worker._target_=scripts.bench.workers.NotedSettings", f"seed={max(number, 0)}"]
        rows = run(Path(scratch) / "run", iterations, [*options, *overrides], log)
        noted = [json.loads(line) for line in log.read_text().splitlines()]
    waves = [[seconds for iteration, seconds in noted if iteration == 1 + at] for at in range(len(rows))]
    if not all(waves):
        raise SystemExit("an iteration without shares; was it played by a worker?")
    found = {"shares": statistics.median(map(len, waves))}
    for count in SIMULATED:
        played = [compute_makespan(wave, count) for wave in waves]
        # time of the wave outside its shares, which a single worker plays one after the other
        others = [max(0.0, row["rollout"] - sum(wave)) for wave, row in zip(waves, rows, strict=True)]
        each = list(zip(played, others, (row["update"] for row in rows), strict=True))
        found[f"in turn {count}"] = statistics.median(sum(parts) for parts in each)
        found[f"overlap {count}"] = statistics.median(max(a, c) + b for a, b, c in each)
    return found


def compute_makespan(shares: Iterable[float], workers: int) -> float:
    """Compute the seconds until all shares are played, each by the first free worker."""
    free = [0.0] * workers
    for seconds in shares:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


def main() -> None:
    parser = common.make_parser(__file__, __doc__)
    parser.add_argument("--worker", choices=["process", "ray"], default="process")
    parser.add_argument("--share", type=int, default=2, help="prompts of a share")
    parser.add_argument("--lanes", type=int, default=1, help="update.lanes of the run with two workers")
    parser.add_argument("--iterations", type=int, default=6, help="measured iterations of each run")
    parser.add_argument("overrides", nargs="*", help="of train.py, for all runs, after --")
    given = common.parse(parser)
    workers = [
        f"worker={given.worker}",
        f"worker.count={CORES}",
        f"worker.share={given.share}",
        "worker.threads=1",
        f"update.lanes={given.lanes}",
    ]
    sides = {
        "two workers": partial(measure_side, given.iterations, workers, given.overrides),
        "one process": partial(measure_side, given.iterations, ["worker=none"], given.overrides),
        "simulated": partial(simulate, given.iterations, given.share, given.overrides),
    }
    rounds = common.alternate(sides, repeats=given.repeats, warmups=0)
    print(common.format_seconds(rounds, QUANTITIES, ours="two workers", peer="one process"))
    ratio = common.compute_ratio(rounds, "iteration", of="two workers", to="one process")
    print(
        f"two workers over one process: {ratio.show()}; bound {BOUND}: {'kept' if ratio.median <= BOUND else 'MISSED'}"
    )
    print(f"simulated, not measured; shares of an iteration: {rounds[0]['simulated']['shares']:g}")
    kinds = ("in turn", "overlap")
    spreads = {
        (kind, count): common.summarise(rounds, "simulated", f"{kind} {count}")
        for count in SIMULATED
        for kind in kinds
    }
    print(
        common.format_table(
            ["workers", *(f"{kind}, s" for kind in kinds), "in turn, over one worker"],
            [
                [count, *(spreads[kind, count].show() for kind in kinds),
                 f"{spreads['in turn', 1].median / spreads['in turn', count].median:.2f}"]
                for count in SIMULATED
            ],
        )
    )  # fmt: skip
    common.write_json(given.out, {"rounds": rounds, "ratio": ratio, "bound": BOUND}, given)


if __name__ == "__main__":
    main()
