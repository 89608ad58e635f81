"""Thousands of episodes of programs leave no socket, thread, process or memory behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing

import psutil
import pytest

from scripts.bench.gateway_overhead import make_program, measure, open_scheduler

MiB = 2**20


def measure_use() -> dict[str, int]:
    """What this process and the processes of its agents use."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return {
        "files": sum(process.num_fds() for process in processes),
        "threads": threading.active_count(),
        "processes": len(processes),
        "bytes": sum(process.memory_info().rss for process in processes),
    }


def wait_until(is_true: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.1)


@pytest.mark.long
def test_memory_and_sockets_stay_flat_over_2000_episodes() -> None:
    with closing(open_scheduler(make_program("ask_once", workers=2), capacity=2)) as scheduler:
        measure(scheduler, 300, 0)
        before = measure_use()
        measure(scheduler, 2000, 1)
        wait_until(lambda: measure_use()["files"] <= before["files"])
        after = measure_use()
    print(before, after)
    assert after["files"] <= before["files"] + 4
    assert after["threads"] <= before["threads"] and after["processes"] == before["processes"]
    assert after["bytes"] - before["bytes"] < 16 * MiB
