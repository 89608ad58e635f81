"""A trace of torch's profiler, as it lies in a file: which operators took the time."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Operator(NamedTuple):
    """How often it was called, and how long it took by itself, without what it called, in seconds."""

    name: str
    calls: int
    seconds: float


def operators(path: Path, kinds: Iterable[str] = ("cpu_op",)) -> list[Operator]:
    """The operators of a ``.json.gz`` trace, those that took longest first.

    Args:
        path: of the file.
        kinds: categories of its events: ``cpu_op``; or ``kernel``, ``gpu_memcpy`` and ``gpu_memset``.
    """
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    wanted = frozenset(kinds)
    return own_times(each for each in events if each.get("ph") == "X" and each.get("cat") in wanted)


def own_times(events: Iterable[Mapping[str, Any]]) -> list[Operator]:
    """What each name took by itself: events of a thread lie inside of each other, or apart.

    >>> own_times([{"name": "a", "ts": 0, "dur": 5e6, "tid": 1}, {"name": "b", "ts": 1e6, "dur": 2e6, "tid": 1}])
    [Operator(name='a', calls=1, seconds=3.0), Operator(name='b', calls=1, seconds=2.0)]
    """
    calls: dict[str, int] = {}
    micros: dict[str, float] = {}
    around: list[tuple[float, str]] = []  # those that an event lies in: end and name
    thread = None
    in_order = sorted(
        events, key=lambda each: (str((each.get("pid"), each["tid"])), each["ts"], -each["dur"])
    )
    for each in in_order:
        name, began, took = each["name"], each["ts"], each["dur"]
        if (where := (each.get("pid"), each["tid"])) != thread:
            thread, around = where, []
        while around and around[-1][0] <= began:
            around.pop()
        if around:
            micros[around[-1][1]] -= took
        around.append((began + took, name))
        calls[name] = calls.get(name, 0) + 1
        micros[name] = micros.get(name, 0.0) + took
    longest = sorted(calls, key=lambda name: -micros[name])
    return [Operator(name, calls[name], micros[name] / 1e6) for name in longest]
