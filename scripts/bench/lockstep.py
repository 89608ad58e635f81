"""Runs a training loop in a process of its own, one iteration at a time, so that two trainers can take turns.

Each side has a process because its threads would otherwise share one pool with the other's: OpenMP workers
that outnumber the cores are put to sleep between operations, and both sides would be slower than they are.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil

Measured = dict[str, float]


class Meter:
    """What a training loop is given: where its iterations begin, and where to note what it measures."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._noted: Measured = {}
        self._started: tuple[float, float, float] | None = None

    def boundary(self) -> None:
        """Call at the start of every iteration: stands still until the iteration is wanted."""
        if self._started is not None:
            wall, own, busy = (now - then for now, then in zip(_clocks(), self._started, strict=True))
            self._noted["whole"] = wall
            self._noted["foreign_share"] = max(busy - own, 0.0) / (wall * (os.cpu_count() or 1))
            self._connection.send(self._noted)
        self._connection.recv()
        self._noted = {}
        self._started = _clocks()

    def note(self, **values: float) -> None:
        self._noted |= values

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, its seconds added to ``name``."""

        @wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            result = function(*args, **kwargs)
            self._noted[name] = self._noted.get(name, 0.0) + time.perf_counter() - started
            return result

        return wrapped


class Lockstep:
    """A training loop that stands still between iterations.

    Args:
        train: a function at the top level of a module: ``train(meter, *arguments)`` runs the loop.
        arguments: picklable.
        threads: of torch in that process; None leaves its own choice.
        prepare: sets variables of its environment, and of no other.

    Calling it runs one iteration, from one ``meter.boundary()`` to the next, so everything that the loop
    does for an iteration is inside.  It returns what was noted, with the seconds of the ``whole`` and the
    share of the machine that other programs took meanwhile (``foreign_share``; 0 where that is unknown).

    Raises:
        RuntimeError: the loop failed or ended, with its traceback.
    """

    def __init__(
        self,
        train: Callable[..., object],
        *arguments: Any,
        threads: int | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        # no daemon: it may have workers of its own, which end with it
        self._process = context.Process(target=_work, args=(theirs, threads, train, arguments))
        with patch.dict(os.environ):
            if prepare is not None:
                prepare()
            self._process.start()
        theirs.close()

    def __call__(self, number: int = 0) -> Measured:
        with suppress(BrokenPipeError):  # then what went wrong waits to be read
            self._connection.send(number)
        try:
            found = self._connection.recv()
        except (EOFError, ConnectionResetError) as error:
            raise RuntimeError("the process of the loop is gone") from error
        if isinstance(found, str):
            raise RuntimeError(f"the loop failed:\n{found}")
        return found

    def close(self) -> None:
        """End the loop where it stands."""
        self._connection.close()
        self._process.kill()  # a trainer may have taken over the milder signals
        self._process.join()


def _work(connection: Connection, threads: int | None, train: Callable[..., object], arguments: Any) -> None:
    try:
        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        train(Meter(connection), *arguments)
        connection.send("it ended by itself: give it more iterations")
    except BaseException:  # whatever it was, the other process must hear of it, if it still listens
        with suppress(BrokenPipeError):
            connection.send(traceback.format_exc())


def _clocks() -> tuple[float, float, float]:
    """Seconds: of the wall, of this process and those that it has started on all cores, of everything on all cores."""
    family = psutil.Process()
    before = family.cpu_times()
    own = before.user + before.system + before.children_user + before.children_system  # those that have ended
    for each in family.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            own += times.user + times.system
    try:
        jiffies = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
    except (OSError, ValueError):  # another system: nothing is known of other programs
        return time.perf_counter(), own, own
    busy = sum(jiffies) - jiffies[3] - jiffies[4]  # all but idle and waiting for a disk
    return time.perf_counter(), own, busy / os.sysconf("SC_CLK_TCK")
