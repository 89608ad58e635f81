"""Threads that wait, and how many a resumed run has."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from lit_agentrl.entry import threads


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
    threads.spin_briefly()
    assert dict(os.environ) == before
    monkeypatch.delenv(name)
    threads.spin_briefly()
    assert os.environ["GOMP_SPINCOUNT"] == "1000"


def test_a_resumed_run_has_as_many_threads_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    assert threads.restore(2) is None and torch.get_num_threads() == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert threads.restore(2) is None
    said = threads.restore(1)
    assert torch.get_num_threads() == 2 and said is not None
    assert said.startswith("OMP_NUM_THREADS gives 2 threads, and this run began with 1:")
