"""A campaign against workers: they are killed or hang at drawn instants, and the run must be as one without workers.

    python -m tests.integration.worker_kills --folder /tmp/worker_kills

Each run is hit several times; when, whom and how follows from the seed and the run's number.  The folder keeps what was
done, as that of `tests.integration.kills`.  A run that is not equal stays there.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import shutil
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.integration.conftest import command
from tests.integration.killed_run import PATIENCE_S, Patience, Running
from tests.integration.kills import difference
from tests.integration.ledger import Ledger
from tests.integration.small_runs import BASE

ITERATIONS, HITS, RUNS = 8, 5, 16
START_S = 8.0  # in which new workers are hit, which is about what one takes to start
BASE = {**BASE, "trainer.max_epochs": str(ITERATIONS), "rollout.prompts": "4", "rollout.members": "8"}
ENVS = {"bandit": "env=bandit", "lake": "env=frozen_lake env.max_turns=5"}
ALIKE = "worker.share=1"
STARTS = "worker.start_patience=30 worker.attempts=100"
WORKERS = {
    "process": f"worker=process worker.count=2 {ALIKE} worker.patience=5 {STARTS}",
    "ray": f"worker=ray worker.count=2 {ALIKE} worker.patience=10 {STARTS}",
}
TITLES = {"process": b"spawn_main", "ray": b"ray::PlayingActor"}
SETTINGS = [(worker, env) for env in ENVS for worker in WORKERS]


class Campaign:
    """Runs by their number, in a folder that keeps what was done."""

    def __init__(self, folder: Path, seed: int, hits: int = HITS) -> None:
        self._ledger = Ledger(folder)
        self.seed, self.hits = seed, hits

    def run(self, numbers: Iterable[int]) -> None:
        """Do those that nobody has done or is doing."""
        self._ledger.run(numbers, self._hit)

    def results(self) -> list[dict[str, Any]]:
        """A row for each run that was done."""
        return self._ledger.results()

    def _hit(self, number: int, folder: Path) -> dict[str, Any]:
        worker, env = SETTINGS[number % len(SETTINGS)]
        row: dict[str, Any] = {"number": number, "setting": f"{worker}, {env}", "fell": "", "problem": None}
        running: Running | None = None
        try:
            reference = self._reference(env)
            shutil.rmtree(folder, ignore_errors=True)
            running = Running(arguments(env, WORKERS[worker], folder), folder, fork=True)
            hunt = Hunt(running, folder, TITLES[worker], random.Random(f"{self.seed}:{number}"), self.hits)
            row["hits"] = hunt.hits
            hunt.go()
            running.dies(3 * PATIENCE_S)  # also what Ray and multiprocessing have started
            row["fell"] = ", ".join(hunt.hits)
            if running.code:
                raise AssertionError(f"the run failed: {running.printed()[-300:]}")
            row |= counts(folder)
            row["problem"] = difference(reference, folder)
        except AssertionError as error:
            row["problem"] = str(error)
            if running is not None:
                running.kill()
        if row["problem"] is None:
            shutil.rmtree(folder)
        return row

    def _reference(self, env: str) -> Path:
        """The run in which the trainer plays the same shares."""
        folder = self._ledger.folder / f"reference_{env}"
        with self._ledger.claimed(folder.name, wait=True):
            if not (folder / "summary.json").exists():
                shutil.rmtree(folder, ignore_errors=True)
                running = Running(arguments(env, ALIKE, folder), folder, fork=True)
                running.dies()
                assert running.code == 0, running.printed()
        return folder


class Hunt:
    """Hits workers of a run.

    Args:
        running: the run.
        folder: of the run.
        title: stands in the command of a worker.
        draws: says when, whom and how.
        number: of hits, each in an iteration of its own.

    Attributes:
        hits: in words.
    """

    def __init__(
        self, running: Running, folder: Path, title: bytes, draws: random.Random, number: int
    ) -> None:
        self.hits: list[str] = []
        self._running, self._folder, self._title = running, folder, title
        # how far into which iteration, whom and how
        self._plan = [
            (iteration, draws.random(), draws.random(), draws.choice(["SIGKILL", "SIGKILL", "SIGSTOP"]))
            for iteration in sorted(draws.sample(range(1, ITERATIONS), number))
        ]

    def go(self) -> None:
        """Hit them; ends early if the run does."""
        for iteration, share, whom, how in self._plan:
            if not self._reaches(iteration):
                return
            # the first one begins with workers that start; an iteration may last as long as the one before
            lasts = START_S if iteration == 1 else self._seconds()
            time.sleep(share * lasts)
            found = self._workers()
            while not found and self._reaches(iteration):  # all were being replaced
                found = self._workers()
            if found:
                number = found[int(whom * len(found))]
                with suppress(ProcessLookupError):
                    os.kill(number, signal.Signals[how])
                    self.hits.append(f"{how} in iteration {1 + self._rows()}")

    def _reaches(self, iteration: int) -> bool:
        """Wait until an iteration is played and there are workers; False if the run has ended."""
        patience = Patience(PATIENCE_S)
        while self._running.code is None:
            if self._rows() >= iteration - 1 and self._workers():
                return True
            assert not patience.is_over(), "the run hangs"
            time.sleep(0.01)
        return False

    def _table(self) -> list[dict[str, str]]:
        with suppress(OSError), (self._folder / "metrics.csv").open(newline="") as file:
            return list(csv.DictReader(file))[1:]  # the first is the start's
        return []

    def _rows(self) -> int:
        return len(self._table())

    def _seconds(self) -> float:
        last = self._table()[-1]
        return float(last["time/ahead"] or 0.0) + float(last["time/update"] or 0.0)

    def _workers(self) -> list[int]:
        """Those that live and have not been stopped."""
        found = []
        for number in self._running.processes():
            with suppress(OSError):
                state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
                if self._title in Path(f"/proc/{number}/cmdline").read_bytes() and state not in "TZ":
                    found.append(number)
        return sorted(found)


def arguments(env: str, worker: str, folder: Path) -> list[str]:
    given = dict(option.split("=", 1) for option in f"{ENVS[env]} {worker}".split())
    return command(
        *(f"{name}={value}" for name, value in {**BASE, **given}.items()), f"hydra.run.dir={folder}"
    )


def counts(folder: Path) -> dict[str, int]:
    """What a run says of its workers: those that were replaced, and shares that were played again."""
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))[1:]
    shares, attempts, restarts = (
        sum(int(float(row[f"worker/{name}"])) for row in rows) for name in ("shares", "attempts", "restarts")
    )
    return {"shares": shares, "again": attempts - shares, "restarts": restarts}


def table(rows: list[dict[str, Any]]) -> str:
    """Of each kind of worker: hits, what came of them, and how many runs ended equal."""
    lines = [
        "| worker | runs | equal | kills | hangs | shares | played again | workers replaced |",
        "|---" * 8 + "|",
    ]
    for worker in WORKERS:
        found = [row for row in rows if row["setting"].startswith(worker)]
        hits = " ".join(row["fell"] for row in found)
        sums = [sum(row.get(name, 0) for row in found) for name in ("shares", "again", "restarts")]
        equal = sum(row["problem"] is None for row in found)
        fields = [worker, len(found), equal, hits.count("SIGKILL"), hits.count("SIGSTOP"), *sums]
        lines.append(f"| {' | '.join(map(str, fields))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill workers of runs, compare the runs.")
    parser.add_argument(
        "--folder", type=Path, required=True, help="keeps what was done; several may share it"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hits", type=int, default=HITS, help="of each run")
    parser.add_argument("--runs", type=int, nargs="+", default=range(RUNS), help="their numbers")
    given = parser.parse_args()
    campaign = Campaign(given.folder, given.seed, given.hits)
    campaign.run(given.runs)
    print(table(campaign.results()))


if __name__ == "__main__":
    main()
