"""A run in processes of its own, and the ways in which it is killed."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.conftest import ROOT
from tests.integration.conftest import environment
from tests.integration.forked import Forked
from tests.integration.kill_hook.sitecustomize import MARK, marked

HOOK = ROOT / "tests" / "integration" / "kill_hook"
PATIENCE_S = 300.0  # for a run, and for what a killed one leaves, to end by itself; see `Patience`
LONGEST_DELAY_S = 0.1  # after a write begins: most take less
_TEMPORARY = ("*.tmp", "*.lnk", "*.old")


class Patience:
    """Seconds of waiting, which pass slower on a busy machine, because a run is slower there.

    They pass by the share of a core that a process gets: the cores by the processes that want one, and less if it is
    nice to them.
    """

    def __init__(self, seconds: float) -> None:
        self._left, self._looked = seconds, time.monotonic()

    def is_over(self) -> bool:
        now, busy = time.monotonic(), os.getloadavg()[0] / len(os.sched_getaffinity(0))
        self._left -= (now - self._looked) * (1.0 if busy <= 1 else 0.8 ** os.nice(0) / busy)
        self._looked = now
        return self._left <= 0


@dataclass(frozen=True)
class Reference:
    """A run that nobody killed.

    Attributes:
        folder: its run folder.
        begun_s, ended_s: seconds that its processes had computed when the folder held its config, and at its end.
        events: each write in the folder, with the time at which it began.
    """

    folder: Path
    begun_s: float
    ended_s: float
    events: list[tuple[float, str]]

    @classmethod
    def play(cls, arguments: list[str], folder: Path, *, fork: bool) -> Reference:
        log = folder.with_suffix(".events")
        log.unlink(missing_ok=True)
        running = Running(arguments, folder, fork=fork, log=log)
        running.reaches(math.inf)
        assert running.code == 0, running.printed()
        lines = [line.split(" ", 1) for line in log.read_text().splitlines()]
        assert running.begun_s is not None
        return cls(folder, running.begun_s, running.computed_s(), [(float(at), event) for at, event in lines])

    def to_plain(self) -> dict[str, Any]:
        return {"begun_s": self.begun_s, "ended_s": self.ended_s, "events": self.events}

    @classmethod
    def from_plain(cls, folder: Path, plain: dict[str, Any]) -> Reference:
        return cls(folder, plain["begun_s"], plain["ended_s"], [(at, event) for at, event in plain["events"]])


@dataclass(frozen=True)
class Plan:
    """At which write a run dies: within it if it appends, else so many seconds after it begins."""

    event: str
    share: float
    delay_s: float
    whom: str

    @classmethod
    def drawn(cls, reference: Reference, kind: str, draws: random.Random) -> Plan:
        """One of the writes of a kind; of those that do not append, half die just before it."""
        found = [number for number, (_, event) in enumerate(reference.events) if kind in event]
        number = draws.choice(found)
        at, event = reference.events[number]
        later = reference.events[number + 1][0] if number + 1 < len(reference.events) else math.inf
        delay_s = draws.choice([0.0, draws.uniform(0.0, min(later - at, LONGEST_DELAY_S))])
        return cls(event, draws.random(), delay_s, draws.choice(["all", "all", "self"]))

    @classmethod
    def playing(cls, reference: Reference, draws: random.Random) -> Plan:
        """While episodes of an iteration are played: in the first half of the time from the last write before it.

        An iteration writes nothing until its update has ended.
        """
        events = [
            each for each in reference.events if "mkdir transcripts" not in each[1]
        ]  # just before it writes
        found = [
            (event, later - at)
            for (at, event), (later, next_event) in pairwise(events)
            if " append transcripts/train" in next_event
        ]
        event, pause_s = draws.choice(found)
        return cls(event, 0.0, draws.uniform(0.1, 0.5) * pause_s, "all")

    @property
    def how(self) -> str:
        where = f"{self.delay_s * 1000:.1f} ms later" if self.delay_s else "just before"
        return f"{'all of it' if self.whom == 'all' else 'its process'}, " + (
            f"after {self.share:.0%} of the text" if " append " in self.event else where
        )


class Running:
    """A command that was started, and all processes that it starts.

    Args:
        arguments: the command.
        folder: its run folder; what it prints goes to a file beside it.
        fork: from this process, which saves the imports; of runs of one process.
        plan: at which write it is to die.
        log: where each write is noted.
    """

    def __init__(
        self,
        arguments: list[str],
        folder: Path,
        *,
        fork: bool = False,
        plan: Plan | None = None,
        log: Path | None = None,
    ) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.begun_s: float | None = None
        self._known: list[int] = []
        self._computed: dict[int, float] = {}
        told: dict[str, Any] = {"folder": str(folder)}
        if plan is not None:
            told |= {"event": plan.event, "share": plan.share, "delay_s": plan.delay_s, "whom": plan.whom}
        if log is not None:
            told["log"] = str(log)
        variables = {**environment(), MARK: self.mark, "KILL_PLAN": json.dumps(told)}
        variables["PYTHONPATH"] = f"{HOOK}{os.pathsep}{variables['PYTHONPATH']}"
        self._output = folder.with_suffix(".out")
        self._process: Forked | subprocess.Popen[bytes]
        if fork:
            self._process = Forked(arguments, cwd=ROOT, env=variables, output=self._output)
            return
        with self._output.open("w") as file:
            self._process = subprocess.Popen(
                arguments,
                cwd=ROOT,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def printed(self) -> str:
        return self._output.read_text(errors="replace")

    def processes(self) -> list[int]:
        """Numbers of those that live."""
        main = [self._process.pid] if self.code is None else []  # a fork's environment cannot be looked at
        return sorted({*main, *marked(self.mark)})

    def computed_s(self) -> float:
        """Seconds that the main threads of its processes have computed, also of those that have ended."""
        for number in self._known:
            with suppress(OSError, IndexError):
                self._computed[number] = int(Path(f"/proc/{number}/schedstat").read_text().split()[0]) / 1e9
        return sum(self._computed.values())

    def reaches(self, seconds: float) -> bool:
        """Wait until its processes have computed so long; False if it ended before."""
        looked, patience = -math.inf, Patience(PATIENCE_S)
        while self.code is None:
            if time.monotonic() - looked > 0.1:
                looked, self._known = time.monotonic(), self.processes()
            computed = self.computed_s()
            if self.begun_s is None and (self.folder / ".hydra" / "overrides.yaml").exists():
                self.begun_s = computed
            if computed >= seconds:
                return True
            if patience.is_over():
                self.kill()
                raise AssertionError(f"the run hangs: {self.printed()[-300:]}")
            time.sleep(0.002)
        return False

    def dies(self, patience_s: float = PATIENCE_S) -> bool:
        """Wait until all its processes have ended; whether one was killed."""
        patience = Patience(patience_s)
        while self.processes():
            if patience.is_over():
                self.kill()
                raise AssertionError(f"what was left of the run did not end: {self.printed()[-300:]}")
            time.sleep(0.05)
        return self.code != 0

    def stop(self) -> None:
        """Let all its processes stand still."""
        for number in self.processes():
            os.kill(number, signal.SIGSTOP)

    def kill(self) -> None:
        """Kill all its processes, the first one before it sees that others die, whose numbers may be lower."""
        while numbers := self.processes():
            for number in sorted(numbers, key=lambda each: each != self._process.pid):
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
        self._process.wait()

    def kill_one(self, draws: random.Random | None) -> str:
        """Kill one of its processes, or the first of them; which, in words."""
        numbers = [number for number in self.processes() if b"resource_tracker" not in _arguments(number)]
        number = self._process.pid if draws is None else draws.choice(numbers)
        os.kill(number, signal.SIGKILL)
        return "the main process" if number == self._process.pid else f"a child of {len(numbers) - 1}"


def contents(folder: Path) -> dict[str, tuple[bytes, float]]:
    """All files of a folder, and when each was changed."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def leftovers(folder: Path) -> list[str]:
    """What a killed write leaves: temporary files, and logs with half a line."""
    found = [path for pattern in _TEMPORARY for path in folder.rglob(pattern)]
    names = [
        f"{path.relative_to(folder)} ({path.stat().st_size} B)" for path in sorted(found) if path.exists()
    ]
    for log in (folder / "metrics.csv", *sorted((folder / "transcripts").glob("*.jsonl"))):
        if log.exists() and (data := log.read_bytes()) and not data.endswith(b"\n"):
            names.append(f"half a line in {log.name}")
    return names


def _arguments(number: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{number}/cmdline").read_bytes()
    return b""
