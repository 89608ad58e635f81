"""Prepare this process: check launcher variables, and fit torch's threads to the machine's load."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from lit_agentrl.config.errors import refuse_first
from lit_agentrl.screen import RANKS

# variables of GNU OpenMP, which reads them once, when torch is imported
_SPIN_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_SPINS = 1000  # tens of microseconds, within which most small operations finish


def check_environment() -> None:
    """Refuse variables of a launcher that Lightning and torch could not read.

    Raises:
        UserError: a variable is invalid; the message names it.
    """
    refuse_first(_find_problems())


def _find_problems() -> Iterator[str]:
    """Yield a line about each invalid environment variable."""
    for name in (*RANKS, "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS", "SLURM_NNODES"):
        if not (value := os.environ.get(name, "0")).strip().isdecimal():
            yield (
                f"the environment variable {name}={value} must be a whole number, as torchrun and srun set it; unset it"
            )
    for name, size_name in (
        ("RANK", "WORLD_SIZE"),
        ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
    ):
        rank, size = os.environ.get(name), os.environ.get(size_name)
        if rank is not None and size is not None and int(rank) >= int(size):
            yield (
                f"the environment variable {name}={rank} must be less than {size_name}={size}, as torchrun and srun "
                "set them; unset both"
            )
    yield from _find_launcher_problems()
    for name in _THREAD_VARIABLES:
        value_given = os.environ.get(name, "1")
        if not all(part.strip().isdecimal() and int(part) for part in value_given.split(",")):
            yield f"the environment variable {name}={value_given} must be a whole number >= 1; unset it"


def _find_launcher_problems() -> Iterator[str]:
    """Yield a line about each variable of a launcher that did not start this process.

    The process would otherwise wait for others that never start.
    """
    environ = os.environ
    if "TORCHELASTIC_RUN_ID" not in environ and "SLURM_NTASKS" not in environ:
        at_most = {"RANK": 0, "LOCAL_RANK": 0, "GROUP_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1}
        for name, limit in at_most.items():
            if int(environ.get(name, "0")) > limit or (name == "LOCAL_RANK" and name in environ):
                yield (
                    f"the environment variable {name}={environ[name]} names one of several processes, and neither "
                    "torchrun nor srun started them; unset it, or start the run with torchrun (one process alone "
                    "starts the others itself: strategy=ddp trainer.devices=2)"
                )
    if int(environ.get("NODE_RANK", "0")) and not {"MASTER_ADDR", "MASTER_PORT"} <= environ.keys():
        yield (
            f"the environment variable NODE_RANK={environ['NODE_RANK']} needs MASTER_ADDR and MASTER_PORT, the "
            "address of the first machine; set them, or unset it"
        )
    port = environ.get("MASTER_PORT", "1")
    if not (port.isdecimal() and 0 < int(port) < 65536):
        yield (
            f"the environment variable MASTER_PORT={port} must be a whole number from 1 to 65535; unset it"
        )


class Load:
    """The load of other programs, to which torch's threads are fitted once.

    If a thread shares its core with another program, all other threads wait for it after each of thousands of small
    operations.  Programs of low priority (nice) do not count, since they yield the core.
    """

    def __init__(self) -> None:
        self._measured_at_start: tuple[float, float] | None = None
        self._num_threads: int | None = None
        self._note: str | None = None

    def start(self) -> None:
        """Start the measurement."""
        self._measured_at_start = measure_seconds()

    def fit_threads(self) -> str | None:
        """Give torch one thread less for each core that other programs keep busy.

        Call it before anything is computed.  All later runs of this process use the same number, since the last
        bits of sums depend on it.  Nothing changes without `start` (as in a notebook), or if the user or a launcher
        has set ``OMP_NUM_THREADS`` or ``MKL_NUM_THREADS``.

        Returns:
            A line for the user if the number differs from torch's default; else None.
        """
        import torch

        if self._measured_at_start is None or any(name in os.environ for name in _THREAD_VARIABLES):
            return None
        if self._num_threads is None:
            (started_at, before), (ended_at, after) = self._measured_at_start, measure_seconds()
            busy = max(0.0, after - before) / max(ended_at - started_at, 1e-3)
            default = torch.get_num_threads()
            self._num_threads = max(1, min(default, count_cores() - int(busy + 0.5)))
            if self._num_threads < default:
                self._note = (
                    f"torch uses {self._num_threads} of {default} threads: other programs keep {busy:.1f} of "
                    f"{count_cores()} cores busy; OMP_NUM_THREADS={default} uses all, which changes the last bits"
                )
        torch.set_num_threads(self._num_threads)
        return self._note


LOAD = Load()  # measured by this process


def measure_seconds() -> tuple[float, float]:
    """Return the clock's seconds, and the core seconds spent on other programs."""
    all_programs, own_times = psutil.cpu_times(), psutil.Process().cpu_times()
    own_seconds = own_times.user + own_times.system + own_times.children_user + own_times.children_system
    return time.monotonic(), all_programs.user + all_programs.system - own_seconds


def shorten_spin() -> None:
    """Shorten the time for which OpenMP threads spin before they sleep.

    Call it before torch is imported.  By default the threads spin for milliseconds.  If another program takes a
    core, the spinning threads then keep the cores from the thread that they wait for, after each of thousands of small
    operations.  A variable that the user has set takes precedence.
    """
    if not any(name in os.environ for name in _SPIN_VARIABLES):
        os.environ["GOMP_SPINCOUNT"] = str(_SPINS)


def restore_threads(before: int) -> str | None:
    """Restore the run's number of threads, on which the last bits of results depend.

    Returns:
        A line for the user if a variable of the user or a launcher sets another number, which takes precedence.
    """
    import torch

    current = torch.get_num_threads()
    if current == before:
        return None
    if (variable := next((name for name in _THREAD_VARIABLES if name in os.environ), None)) is not None:
        return (
            f"{variable} gives {current} threads, and this run was started with {before}: its numbers will differ in "
            f"their last bits from those of a run that was not interrupted; {variable}={before} keeps them"
        )
    torch.set_num_threads(before)
    return None


def count_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def share_cores(processes: int) -> Iterator[None]:
    """Share the cores among the given number of processes that are started inside the context.

    A variable that the user has set takes precedence.
    """
    unset = (
        () if processes < 2 or any(name in os.environ for name in _THREAD_VARIABLES) else _THREAD_VARIABLES
    )
    os.environ.update(dict.fromkeys(unset, str(max(1, count_cores() // processes))))
    try:
        yield
    finally:
        for name in unset:
            os.environ.pop(name, None)
