"""Propagation of the first failure to all processes of a run, which stop together."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch.distributed as dist

from lit_agentrl.strategies.launching import is_launched, tell_launcher

_KEY = "lit_agentrl/fault"
LOOK_EVERY_S = 0.5
GRACE_S = 10.0


@dataclass(frozen=True)
class Fault:
    """The first failure of a run, in one line, and the rank that reported it."""

    rank: int
    cause: str


class FaultWatch:
    """Watcher that reports local failures and ends this process when another process fails.

    The process group's own store holds the first failure.  A thread polls the store for it, and checks that the
    store is still served.  A process that hangs in a collective cannot stop by itself.

    Args:
        rank: rank of this process.
        grace_s: seconds that this process has to stop by itself after another process has failed.
    """

    def __init__(self, rank: int, grace_s: float) -> None:
        self._rank = rank
        self._grace_s = grace_s
        # a separate connection, since the process group's own may be blocked
        shared: Any = dist.distributed_c10d._get_default_store()
        self._store: dist.Store = shared.clone()
        self._fault: Fault | None = None
        self._is_over = threading.Event()
        self._is_launcher_waiting = True
        self._thread = threading.Thread(target=self._poll, daemon=True, name="fault-watch")
        self._thread.start()

    def report(self, cause: str) -> Fault:
        """Record that this process failed, and return the first failure of the run."""
        if self._fault is None:
            self._fault = self._publish(Fault(self._rank, f"rank {self._rank}: {cause}"))
        return self._fault

    def wait_for_fault(self, wait_s: float = 0.0) -> Fault | None:
        """Return the first failure of the run, waiting up to ``wait_s`` seconds; None if unknown."""
        deadline = time.monotonic() + wait_s
        while self._fault is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return self._fault

    def close(self) -> None:
        """Stop watching: processes that end from now on have not failed."""
        self._is_over.set()
        self._thread.join()

    def _publish(self, fault: Fault) -> Fault:
        try:
            text = self._store.compare_set(_KEY, "", json.dumps(asdict(fault)))
        except (RuntimeError, dist.DistError):  # no process is left to report to
            return fault
        return Fault(**json.loads(text))

    def _poll(self) -> None:
        while not self._is_over.wait(LOOK_EVERY_S):
            self._fault = self._fault or self._fetch_fault()
            if self._fault is not None:
                break
        if self._fault is None or self._is_over.wait(self._grace_s):
            return
        if self._fault.rank == self._rank and not (
            tell_launcher(self._fault.cause) and self._is_launcher_waiting
        ):
            print(f"error: {self._fault.cause}", file=sys.stderr, flush=True)
        os._exit(1)  # the main thread hangs where no exception reaches it

    def _fetch_fault(self) -> Fault | None:
        try:
            return Fault(**json.loads(self._store.get(_KEY))) if self._store.check([_KEY]) else None
        except (RuntimeError, dist.DistError):
            if is_launched():  # the launcher serves the store, so all remaining processes notice
                self._is_launcher_waiting = False
                return Fault(0, "the process that started the run is gone")
            return Fault(self._rank, "the first process of the run is gone")


_BROKEN = ("closed by peer", "Connection reset", "Broken pipe", "Connection refused", "Socket Timeout")


def is_secondary(error: BaseException) -> bool:
    """Return whether an error only says that another process is gone or late."""
    text = str(error)
    return isinstance(error, RuntimeError) and (
        "monitoredBarrier" in text or "Timed out waiting" in text or any(part in text for part in _BROKEN)
    )


def explain(error: BaseException, timeout_s: float) -> str:
    """Describe an error in one line, including torch's errors about a missing process."""
    text = " ".join(str(error).split()) or type(error).__name__
    if not is_secondary(error):
        return text if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {text}"
    if late := re.search(r"Rank (\d+) failed to pass monitoredBarrier", text):
        return f"rank {late[1]} did not come within strategy.timeout_s={timeout_s:g} seconds"
    if "successfully reached monitoredBarrier" in text and "Timed out waiting" in text:
        return f"rank 0 did not come within strategy.timeout_s={timeout_s:g} seconds"
    if any(part in text for part in _BROKEN):
        return "the connection to another rank broke"
    return f"another rank did not come within strategy.timeout_s={timeout_s:g} seconds"
