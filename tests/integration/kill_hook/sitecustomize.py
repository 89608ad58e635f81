"""Dies at a named write: the campaign of kills puts this folder on the path of a run's processes.

The environment variable KILL_PLAN (JSON) says what to do: ``folder`` is the run folder; with ``log``, each write in it
is noted there; with ``event``, the process dies at that write, and all processes of the run if ``whom`` is "all".
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

MARK = "KILL_MARK"  # variable that all processes of one run share
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND
_NAMES = ("os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir")


def marked(mark: str) -> list[int]:
    """Numbers of the living processes of a run."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            is_dead = (place / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            if f"{MARK}={mark}".encode() in (place / "environ").read_bytes().split(b"\0") and not is_dead:
                found.append(int(place.name))
    return sorted(found)


def kill_all(mark: str) -> None:
    """SIGKILL for all processes of a run, this one last."""
    for number in sorted(marked(mark), key=lambda each: each == os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


class Watch:
    """An audit hook that counts the writes of this process."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.folder = plan["folder"].rstrip("/") + "/"
        self.plan = plan
        self.role = "rank" + os.environ["LOCAL_RANK"] if "LOCAL_RANK" in os.environ else "main"
        self.counts: collections.Counter[str] = collections.Counter()
        self.log = open(plan["log"], "a") if "log" in plan and self.role != "rank1" else None  # noqa: SIM115

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            if not isinstance(path, (str, os.PathLike)) or not flags & _WRITES:
                return
            kind = "append" if mode == "a" else "open"
        elif event in _NAMES:
            path, kind = args[0], event
        else:
            return
        name = os.path.abspath(os.fspath(path)) if isinstance(path, (str, os.PathLike)) else ""
        if not name.startswith(self.folder) or "tensorboard" in name:
            return
        name = f"{self.role} {kind} {name.removeprefix(self.folder)}"
        self.counts[name] += 1
        name += f" #{self.counts[name]}"
        if self.log is not None:
            print(f"{time.monotonic():.6f} {name}", file=self.log, flush=True)
        if name == self.plan.get("event"):
            self.die(kind, path)

    def die(self, kind: str, path: Any) -> None:
        if kind == "append":  # within the write: a share of its text is on disk
            frame = sys._getframe()
            while frame.f_code.co_name != "append_durable":
                assert frame.f_back is not None
                frame = frame.f_back
            data = frame.f_locals["text"].encode()
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            os.write(descriptor, data[: int(len(data) * self.plan["share"])])
            self.kill()
        elif self.plan["delay_s"] == 0:  # just before it
            self.kill()
        else:
            threading.Timer(self.plan["delay_s"], self.kill).start()

    def kill(self) -> None:
        if self.plan["whom"] == "all":
            kill_all(os.environ[MARK])
        os.kill(os.getpid(), signal.SIGKILL)


def install() -> None:
    """Watch this process, if the environment asks for it."""
    plan = json.loads(os.environ.get("KILL_PLAN", "{}"))
    if "log" in plan or "event" in plan:
        sys.addaudithook(Watch(plan))


install()
