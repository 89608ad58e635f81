"""A run that is killed anywhere and resumed is the run that nobody killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.integration import worker_kills
from tests.integration.conftest import environment
from tests.integration.kills import KILLS, Campaign, numbers_of, table
from tests.integration.small_runs import THREAD

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="processes are found in /proc"
)
# within a log of two processes, and a checkpoint by the thread; of runs that play ahead one is killed twice at random
SAMPLE = (19, numbers_of(THREAD)[0], 65)


@pytest.mark.slow
def test_a_kill_of_each_kind(tmp_path: Path) -> None:
    # by a process of its own with one thread: a fork of one that has computed with several hangs in OpenMP
    _campaign("kills", tmp_path, "--kills", *map(str, SAMPLE))
    found = Campaign(tmp_path, seed=0).results()
    assert len(found) == len(SAMPLE) and [row for row in found if row["problem"]] == []


@pytest.mark.slow
@pytest.mark.sweep
def test_a_structure_is_killed(tmp_path: Path) -> None:
    """Trees that another process plays ahead; the long campaign has the others."""
    _campaign("kills", tmp_path, "--kills", str(KILLS.index(("mcts, overlap", "playing"))))
    (row,) = Campaign(tmp_path, seed=0).results()
    assert not row["problem"]


@pytest.mark.long  # actors that are killed while they play: tests/rollout/test_ray.py
def test_two_workers_of_ray_are_lost(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    _campaign("worker_kills", tmp_path, "--runs", "1", "--hits", "2")
    (row,) = worker_kills.Campaign(tmp_path, seed=0).results()
    assert row["problem"] is None and row["restarts"] > 0, row


def _campaign(module: str, folder: Path, *options: str) -> None:
    arguments = [sys.executable, "-m", f"tests.integration.{module}", "--folder", str(folder), *options]
    subprocess.run(arguments, cwd=ROOT, env={**environment(), "OMP_NUM_THREADS": "1"}, check=True)


@pytest.mark.long
def test_workers_are_lost_in_all_ways(tmp_path: Path) -> None:
    """``WORKER_KILLS=FOLDER`` keeps what was done and continues with it."""
    campaign = worker_kills.Campaign(Path(os.environ.get("WORKER_KILLS", tmp_path)), seed=0)
    campaign.run(range(worker_kills.RUNS))
    print(worker_kills.table(campaign.results()))
    assert [row for row in campaign.results() if row["problem"]] == []


@pytest.mark.long
def test_a_hundred_kills_around_the_thread(tmp_path: Path) -> None:
    """``KILLS=FOLDER`` keeps what was done and continues with it."""
    campaign = Campaign(Path(os.environ.get("KILLS", tmp_path)), seed=0)
    numbers = numbers_of(THREAD)
    campaign.run(numbers)
    found = [row for row in campaign.results() if row["number"] in numbers]
    print(table(found))
    assert [row for row in found if row["problem"]] == [] and len(found) == len(numbers) == 100


@pytest.mark.long
def test_more_than_a_hundred_kills(tmp_path: Path) -> None:
    """``KILLS=FOLDER`` keeps what was done and continues with it."""
    campaign = Campaign(Path(os.environ.get("KILLS", tmp_path)), seed=0)
    campaign.run(range(len(KILLS)))
    print(table(campaign.results()))
    assert [row for row in campaign.results() if row["problem"]] == [] and len(campaign.results()) == len(
        KILLS
    )
