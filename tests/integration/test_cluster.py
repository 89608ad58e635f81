"""Runs whose workers are on two nodes of Ray: equal to the trainer that plays alone, also when a node is lost."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.integration.conftest import TINY, assert_equal_runs, command, environment, run

pytestmark = pytest.mark.long
OPTIONS = ("rollout.prompts=5", "callbacks.transcripts.every=1000", "worker.share=1", "optim.lr=1e-3")
GIVEN = [option for option in TINY if option.split("=")[0] not in {each.split("=")[0] for each in OPTIONS}]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes of this machine, with room for one worker and for four."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    for name, value in environment().items():  # which the workers of its nodes inherit
        monkeypatch.setenv(name, value)
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=4)
    yield made
    made.shutdown()


def arguments(folder: Path, iterations: int, *overrides: str) -> list[str]:
    return command(
        *GIVEN, *OPTIONS, f"trainer.max_epochs={iterations}", f"hydra.run.dir={folder}", *overrides
    )


def of(cluster: Any, count: int | str) -> list[str]:
    return ["worker=ray", f"worker.address={cluster.address}", f"worker.count={count}"]


def played(folder: Path, iterations: int, *overrides: str) -> Path:
    done = run(arguments(folder, iterations, *overrides))
    assert done.returncode == 0, done.stderr
    return folder


def test_workers_of_two_nodes_play_what_the_trainer_would(cluster: Any, tmp_path: Path) -> None:
    alone = played(tmp_path / "none", 3)
    for count in (1, 2, 5):
        assert_equal_runs(alone, played(tmp_path / f"ray{count}", 3, *of(cluster, count)))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_training_processes_have_workers_of_their_own(
    strategy: str, cluster: Any, tmp_path: Path
) -> None:
    both = (f"strategy={strategy}", "trainer.devices=2", "trainer.accelerator=cpu")
    alone = played(tmp_path / "none", 3, *both)
    assert_equal_runs(alone, played(tmp_path / "ray", 3, *both, *of(cluster, 1)))


def test_workers_that_play_ahead_are_those_of_other_processes(cluster: Any, tmp_path: Path) -> None:
    ahead = ("rollout.overlap=true",)
    process = played(tmp_path / "process", 3, *ahead, "worker=process", "worker.count=2")
    assert_equal_runs(process, played(tmp_path / "ray", 3, *ahead, *of(cluster, 2)))


def test_a_node_that_is_lost_costs_nothing_and_one_that_joins_is_used(cluster: Any, tmp_path: Path) -> None:
    iterations = 60
    alone = played(tmp_path / "none", iterations)
    folder = tmp_path / "ray"
    with (tmp_path / "printed").open("w") as printed:
        running = subprocess.Popen(
            arguments(folder, iterations, *of(cluster, "auto")), cwd=ROOT, env=environment(), stdout=printed,
            stderr=printed,
        )  # fmt: skip
    _await_row(running, folder, 4)
    cluster.remove_node(max(cluster.worker_nodes, key=lambda node: node.unique_id), allow_graceful=False)
    _await_row(running, folder, 8)
    new = cluster.add_node(num_cpus=1)
    is_used = False
    while running.poll() is None:
        is_used = is_used or any(
            _children(new.all_processes["raylet"][0].process.pid, b"ray::PlayingActor.play")
        )
        time.sleep(0.02)
    assert running.returncode == 0, (tmp_path / "printed").read_text()
    assert_equal_runs(alone, folder)
    assert is_used


def _await_row(running: subprocess.Popen[bytes], folder: Path, number: int) -> None:
    log = folder / "metrics.csv"
    while not log.exists() or log.read_bytes().count(b"\n") < number:
        assert running.poll() is None, "it ended before"
        time.sleep(0.05)


def _children(parent: int, title: bytes) -> Iterator[int]:
    """Processes that it started and that have this title."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if (place / "cmdline").read_bytes().startswith(title):
                found = (place / "stat").read_text().rpartition(")")[2].split()[1]
                if int(found) == parent:
                    yield int(place.name)
        except OSError:
            continue
