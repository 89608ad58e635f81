"""A run is said to hang by the time that the machine had for it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from tests.integration import killed_run
from tests.integration.killed_run import Patience, Running


def test_patience_is_longer_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    cores, now, load = len(os.sched_getaffinity(0)), [0.0], [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(os, "getloadavg", lambda: (load[0], 0.0, 0.0))
    monkeypatch.setattr(os, "nice", lambda increment: 0)
    patience = Patience(300.0)
    now[0], load[0] = 900.0, 4.0 * cores
    assert not patience.is_over()  # 225 seconds of a machine that is free
    now[0], load[0] = 974.0, 0.5 * cores
    assert not patience.is_over()
    now[0] = 976.0
    assert patience.is_over()


def test_a_run_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(killed_run, "PATIENCE_S", 0.0)
    running = Running([sys.executable, "-S", "-c", "import time; time.sleep(60)"], tmp_path / "run")
    with pytest.raises(AssertionError, match="the run hangs"):
        running.reaches(1e9)
    assert running.code is not None
