"""Threads that wait, and how many a resumed run has."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import psutil
import pytest
import torch

from lit_agentrl.runs import process


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"])
def test_a_variable_of_the_user_says_how_threads_wait(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "passive" if name == "OMP_WAIT_POLICY" else "7")
    before = dict(os.environ)
    process.shorten_spin()
    assert dict(os.environ) == before
    monkeypatch.delenv(name)
    process.shorten_spin()
    assert os.environ["GOMP_SPINCOUNT"] == "1000"


def test_a_resumed_run_has_as_many_threads_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    assert process.restore_threads(2) is None and torch.get_num_threads() == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert process.restore_threads(2) is None
    said = process.restore_threads(1)
    assert torch.get_num_threads() == 2 and said is not None
    assert said.startswith("OMP_NUM_THREADS gives 2 threads, and this run was started with 1:")


@pytest.mark.parametrize(("busy", "left"), [(0.2, 4), (0.6, 3), (2.4, 2), (9.0, 1)])
def test_threads_leave_other_programs_their_cores(
    busy: float, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten seconds in which others have kept so many of four cores busy."""
    torch.set_num_threads(4)
    monkeypatch.setattr(process, "count_cores", lambda: 4)
    monkeypatch.setattr(process, "measure_seconds", iter([(100.0, 7.0), (110.0, 7.0 + 10 * busy)]).__next__)
    load = process.Load()
    load.start()
    said = load.fit_threads()
    assert torch.get_num_threads() == left
    assert (said is None) == (left == 4) and (said or f"{left} of 4 threads").find(
        f"{left} of 4 threads"
    ) >= 0
    torch.set_num_threads(4)
    assert load.fit_threads() == said and torch.get_num_threads() == left, (
        "decided once, and not looked at again"
    )


def test_threads_are_left_alone_in_a_notebook_and_where_a_variable_says_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.set_num_threads(3)
    monkeypatch.setattr(process, "measure_seconds", iter([(0.0, 0.0), (1.0, 64.0)]).__next__)
    load = process.Load()
    assert load.fit_threads() is None and torch.get_num_threads() == 3
    load.start()
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert load.fit_threads() is None and torch.get_num_threads() == 3


def test_seconds_of_this_program_are_not_those_of_others() -> None:
    def everyone() -> float:
        times = psutil.cpu_times()
        return float(times.user + times.system)

    own, of_all, of_others = time.process_time(), everyone(), process.measure_seconds()[1]
    while time.process_time() - own < 0.3:
        sum(range(10_000))
    own, of_all, of_others = (
        time.process_time() - own,
        everyone() - of_all,
        process.measure_seconds()[1] - of_others,
    )
    assert of_all - of_others == pytest.approx(own, abs=0.15)
