"""Training loops in separate processes, run one iteration at a time in turns.

Each side has its own process because the threads of both would otherwise share one pool: OpenMP workers that outnumber
the cores are put to sleep between operations, and both sides would be slowed down.
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
    """The interface for a training loop to mark its iterations and record measurements."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._noted: Measured = {}
        self._started: tuple[float, float, float] | None = None

    def mark_boundary(self) -> None:
        """Wait until the next iteration is requested; call this at the start of every iteration."""
        if self._started is not None:
            wall, own, busy = (now - then for now, then in zip(_read_clocks(), self._started, strict=True))
            self._noted["whole"] = wall
            self._noted["foreign_share"] = max(busy - own, 0.0) / (wall * (os.cpu_count() or 1))
            self._connection.send(self._noted)
        self._connection.recv()
        self._noted = {}
        self._started = _read_clocks()

    def note(self, **values: float) -> None:
        self._noted |= values

    def add_timer(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``function`` to add its seconds to ``name``."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            result = function(*args, **kwargs)
            self._noted[name] = self._noted.get(name, 0.0) + time.perf_counter() - started
            return result

        return call


class Lockstep:
    """A training loop that pauses between iterations.

    Args:
        train: a top-level function of a module; ``train(meter, *arguments)`` runs the loop.
        arguments: picklable arguments.
        threads: number of torch threads in that process; None leaves torch's default.
        prepare: function that sets environment variables of that process only.

    A call runs one iteration, from one ``meter.mark_boundary()`` to the next, so it includes everything that the loop
    does in an iteration.  It returns the recorded measurements, with the seconds of the ``whole`` and the share of the
    machine that other programs used meanwhile (``foreign_share``; 0 if unknown).

    Raises:
        RuntimeError: the loop failed or ended; the message has its traceback.
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
        # no daemon, since it may have its own workers, which end with it
        self._process = context.Process(target=_work, args=(theirs, threads, train, arguments))
        with patch.dict(os.environ):
            if prepare is not None:
                prepare()
            self._process.start()
        theirs.close()

    def __call__(self, number: int = 0) -> Measured:
        with suppress(BrokenPipeError):  # the process has ended, and its error is read below
            self._connection.send(number)
        try:
            found = self._connection.recv()
        except (EOFError, ConnectionResetError) as error:
            raise RuntimeError("the process of the loop is gone") from error
        if isinstance(found, str):
            raise RuntimeError(f"the loop failed:\n{found}")
        return found

    def close(self) -> None:
        """End the loop at its current position."""
        self._connection.close()
        self._process.kill()  # a trainer may handle gentler signals itself
        self._process.join()


def _work(connection: Connection, threads: int | None, train: Callable[..., object], arguments: Any) -> None:
    try:
        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        train(Meter(connection), *arguments)
        connection.send("it ended by itself: give it more iterations")
    except BaseException:  # report any error to the other process if it still listens
        with suppress(BrokenPipeError):
            connection.send(traceback.format_exc())


def _read_clocks() -> tuple[float, float, float]:
    """Return wall seconds, and CPU seconds of this process tree and of all programs.

    CPU seconds are summed over all cores.
    """
    family = psutil.Process()
    before = family.cpu_times()
    own = before.user + before.system + before.children_user + before.children_system
    for each in family.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            own += times.user + times.system
    try:
        jiffies = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
    except (OSError, ValueError):  # not Linux: the load of other programs is unknown
        return time.perf_counter(), own, own
    busy = sum(jiffies) - jiffies[3] - jiffies[4]  # all except idle time and waiting for disks
    return time.perf_counter(), own, busy / os.sysconf("SC_CLK_TCK")
