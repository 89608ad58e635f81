"""Threads of torch: they wait for each other without keeping a core, and a resumed run has as many as before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

# of GNU's OpenMP, which reads them once, when torch is imported
_HOW_THEY_WAIT = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
_HOW_MANY = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_SPINS = 1000  # some tens of microseconds; most small operations are done by then


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
