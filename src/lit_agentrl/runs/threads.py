"""Threads of torch: a free core for each, no core kept while one waits, and after a resume as many as before."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

# of GNU's OpenMP, which reads them once, when torch is imported
_HOW_THEY_WAIT = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
_HOW_MANY = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_SPINS = 1000  # some tens of microseconds; most small operations are done by then


class Load:
    """How busy other programs keep this machine, from `begin` on; it decides once how many threads this process has.

    A thread that shares its core with another program is what all others wait for, after each of thousands of small
    operations.  Programs of low priority (nice) do not count, since they give way.
    """

    def __init__(self) -> None:
        self._since: tuple[float, float] | None = None
        self._number: int | None = None
        self._note: str | None = None

    def begin(self) -> None:
        """Look from now on."""
        self._since = _seconds()

    def fit_threads(self) -> str | None:
        """Take a thread less for each core that other programs keep busy; to be called before anything is computed.

        All further runs of this process have as many, since the last bits of sums depend on the number.  Without
        `begin`, in a notebook, and beside a variable of the user's or of a launcher's nothing changes.

        Returns:
            A line for the user where the number is not torch's own.
        """
        import torch

        if self._since is None or any(name in os.environ for name in _HOW_MANY):
            return None
        if self._number is None:
            (began, before), (now, after) = self._since, _seconds()
            busy, own = max(0.0, after - before) / max(now - began, 1e-3), torch.get_num_threads()
            self._number = max(1, min(own, cores() - int(busy + 0.5)))
            if self._number < own:
                self._note = (
                    f"torch computes with {self._number} of {own} threads: other programs keep {busy:.1f} of {cores()} "
                    f"cores busy. OMP_NUM_THREADS={own} takes all; last bits depend on the number"
                )
        torch.set_num_threads(self._number)
        return self._note


LOAD = Load()  # of this process


def _seconds() -> tuple[float, float]:
    """Of the clock, and those for which cores were busy with other programs than this one."""
    everyone, own = psutil.cpu_times(), psutil.Process().cpu_times()
    mine = own.user + own.system + own.children_user + own.children_system
    return time.monotonic(), everyone.user + everyone.system - mine


def spin_briefly() -> None:
    """Have a thread that waits for the others of an operation sleep soon; to be called before torch is imported.

    By default it spins for milliseconds.  Where another program takes a core, the thread that is waited for then has
    none while the others spin, after each of thousands of small operations.  A variable of the user's wins.
    """
    if not any(name in os.environ for name in _HOW_THEY_WAIT):
        os.environ["GOMP_SPINCOUNT"] = str(_SPINS)


def restore(before: int) -> str | None:
    """Compute with as many threads as the run did before, since the last bits of sums depend on their number.

    Returns:
        A line for the user where a variable of the user's, or of a launcher, says another number, which then holds.
    """
    import torch

    now = torch.get_num_threads()
    if now == before:
        return None
    if (given := next((name for name in _HOW_MANY if name in os.environ), None)) is not None:
        return (
            f"{given} gives {now} threads, and this run began with {before}: its numbers will differ in their last "
            f"bits from those of a run that was not interrupted; {given}={before} keeps them"
        )
    torch.set_num_threads(before)
    return None


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def shared_by(processes: int) -> Iterator[None]:
    """Have processes that are started inside, of which so many run at once, share the cores.

    A variable of the user's wins.
    """
    given = () if processes < 2 or any(name in os.environ for name in _HOW_MANY) else _HOW_MANY
    os.environ.update(dict.fromkeys(given, str(max(1, cores() // processes))))
    try:
        yield
    finally:
        for name in given:
            os.environ.pop(name, None)
