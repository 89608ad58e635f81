"""A run keeps nothing of its iterations: neither tensors nor memory grow with their number."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import ROOT, command, environment

ITERATIONS, EVERY = 200, 5
GROWTH_MIB = 8  # of 580; one iteration's episodes alone, if kept, would come to 0.1 MiB each time, 15 in all
PROBE = '''
"""Counts what is alive at the end of iterations."""

import gc
import json
import os
import re
import sys
from pathlib import Path

import psutil
import torch
from lightning.pytorch import Callback


class Probe(Callback):
    def __init__(self, path: str, every: int, hoard_mib: float = 0.0) -> None:
        self.path, self.every, self.hoard_mib, self.hoard = path, every, hoard_mib, []

    def on_train_epoch_end(self, trainer, pl_module):
        if self.hoard_mib:
            self.hoard.append(torch.ones(int(self.hoard_mib * 2**18)))
        if (trainer.current_epoch + 1) % self.every:  # a look at all objects takes longer than an iteration
            return
        gc.collect()
        tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
        me = psutil.Process()
        row = {"tensors": tensors, "mib": resident, "files": me.num_fds(), "threads": me.num_threads()}
        row["processes"] = len(me.children(recursive=True))
        if "ray" in sys.modules:  # workers are its actors: what its store holds
            import ray
            from ray._private.internal_api import memory_summary

            address = ray.get_runtime_context().gcs_address  # of this run, where others have clusters as well
            summary = memory_summary(address=address, stats_only=True)
            found = re.search(r"Plasma memory usage (\\S+) MiB, (\\d+) objects", summary)
            row |= {"stored_mib": float(found[1]), "stored": int(found[2])}
        with open(self.path, "a") as file:
            file.write(json.dumps(row) + "\\n")
'''
pytestmark = [
    pytest.mark.slow,
    pytest.mark.sweep,
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the resident size is read from /proc"),
]


def trace(
    folder: Path, iterations: int, every: int, *overrides: str, **options: float
) -> dict[str, list[float]]:
    """Live tensors, and resident MiB, after every so many iterations of a tiny run in a process of its own."""
    (folder / "probe.py").write_text(PROBE, encoding="utf-8")
    log = folder / "trace.jsonl"
    given = {"_target_": "probe.Probe", "path": log, "every": every, **options}
    arguments = command(
        "env=bandit", "rollout.prompts=2", "rollout.members=2", "rollout.max_reply_tokens=8",
        "rollout.max_context_tokens=128", "val.episodes=2", f"val.every={iterations // 4}", "test.episodes=0",
        "engine.num_slots=4", "callbacks.last.every=10", f"trainer.max_epochs={iterations}",
        f"hydra.run.dir={folder / 'run'}", *overrides,
        *(f"+callbacks.probe.{name}={value}" for name, value in given.items()),
    )  # fmt: skip
    paths = os.pathsep.join([str(ROOT / "src"), str(folder)])
    done = subprocess.run(
        arguments,
        cwd=ROOT,
        env={**environment(), "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) == iterations // every
    return {name: [line[name] for line in lines] for name in lines[0]}


def test_nothing_grows_over_two_hundred_iterations(tmp_path: Path) -> None:
    found = trace(tmp_path, ITERATIONS, EVERY)
    tensors, mib = found["tensors"], found["mib"]
    settled = ITERATIONS // EVERY // 4
    # between validations the number is always the same, and a validation adds none for good
    assert len(set(tensors[settled + 1 : 2 * settled - 1])) == 1
    assert tensors[-2] == tensors[2 * settled - 2]
    early, late = statistics.median(mib[settled : settled + 4]), statistics.median(mib[-4:])
    assert late - early < GROWTH_MIB, (
        f"resident {early:.1f} MiB after a quarter of the iterations, {late:.1f} at the end"
    )


@pytest.mark.parametrize(
    ("how", "hosting"),
    [("kill", "where=process"), pytest.param("doze", "where=thread", marks=pytest.mark.long)],
)
def test_workers_of_games_leave_nothing_behind(tmp_path: Path, how: str, hosting: str) -> None:
    """Over two hundred iterations in which one episode in forty kills its worker, or hangs."""
    limits = ["env.hosting.reset_timeout_s=0.5"] if how == "doze" else []
    given = [
        "rollout.max_failed_share=0.9", f"env.hosting.{hosting}", "env.hosting.workers=2", "env.hosting.restarts=1000",
        "env.game._target_=tests.integration.faulty.FaultyBandit", f"+env.game.how={how}", "+env.game.one_in=40",
        *limits,
    ]  # fmt: skip
    found = trace(tmp_path, ITERATIONS, EVERY, *given)
    rows = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    names = rows[0].split(",")
    failed = sum(float(row.split(",")[names.index("rollout/failed")] or 0) for row in rows[1:])
    print({name: [round(value, 1) for value in values] for name, values in found.items()}, failed)
    assert failed >= 10
    settled = ITERATIONS // EVERY // 4
    for name in ("files", "threads", "processes"):
        # the median: a thread that hangs is left behind until it wakes
        early, late = (statistics.median(found[name][at:][:settled]) for at in (settled, -settled))
        assert late <= early, found[name]
    early, late = (statistics.median(found["mib"][at : at + 4]) for at in (settled, -4 - 1))
    assert late - early < GROWTH_MIB, f"resident {early:.1f} MiB, then {late:.1f}"


def test_the_check_sees_a_callback_that_keeps_tensors(tmp_path: Path) -> None:
    found = trace(tmp_path, 24, 2, hoard_mib=4.0)
    tensors, mib = found["tensors"], found["mib"]
    assert tensors[9] - tensors[6] == 6  # two iterations after a validation, as the other
    assert mib[9] - mib[6] > 15


@pytest.mark.long
def test_neither_trainer_nor_store_grows_with_workers_of_ray(tmp_path: Path) -> None:
    """The store holds what actors are made of, and the weights of now."""
    pytest.importorskip("ray")
    found = trace(tmp_path, ITERATIONS, 10, "worker=ray", "worker.count=2", "worker.share=1")
    print({name: [round(value, 1) for value in values] for name, values in found.items()})
    settled = len(found["mib"]) // 4
    early, late = statistics.median(found["mib"][settled : settled + 4]), statistics.median(found["mib"][-4:])
    assert late - early < GROWTH_MIB, f"resident {early:.1f} MiB, then {late:.1f}"
    for name in ("stored_mib", "stored"):
        assert max(found[name][-4:]) <= max(found[name][settled : settled + 4]), found[name]
