"""A process that raises, dies or stalls: all end in time, with one cause on the screen, and the run continues."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.accelerators import CPUAccelerator
from omegaconf import OmegaConf

from lit_agentrl.paths import CONFIG_DIR
from lit_agentrl.strategies import ddp
from tests.conftest import ROOT
from tests.integration.conftest import TINY, command, environment
from tests.strategies.processes import on_ranks

DDP = ["strategy=ddp", "trainer.accelerator=cpu", "trainer.max_epochs=3", *TINY, "filter=none"]
TROUBLE = '''
import errno, os, signal, time
from lit_agentrl.strategies import checkpoint_io
from lit_agentrl.envs.games.bandit import Bandit

def full(checkpoint, path):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

class Trouble(Bandit):
    """A bandit that does what TROUBLE says on one rank once there is a checkpoint."""

    def reset(self, *, seed=None, options=None):
        what, rank = os.environ["TROUBLE"].split(":")
        is_due = self.split == "train" and os.path.exists(os.environ["TROUBLE_AFTER"])
        if is_due and rank == os.environ.get("LOCAL_RANK", "0"):
            if what == "raise":
                raise RuntimeError("the arm fell off")
            if what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "stall":
                time.sleep(600)
            if what == "disk":
                checkpoint_io._write_synced = full
        return super().reset(seed=seed, options=options)
'''


def _config(folder: Path) -> list[str]:
    """A folder of configs with the game ``trouble``."""
    (folder / "conf" / "env").mkdir(parents=True)
    (folder / "trouble.py").write_text(TROUBLE)
    task = OmegaConf.load(CONFIG_DIR / "env/bandit.yaml")
    task.game._target_ = "trouble.Trouble"
    OmegaConf.save(task, folder / "conf" / "env" / "trouble.yaml")
    return ["--config-dir", str(folder / "conf")]


def _variables(folder: Path, trouble: str) -> dict[str, str]:
    found = {**environment(), "TROUBLE": trouble, "TROUBLE_AFTER": str(folder / "run/checkpoints/last.ckpt")}
    found["PYTHONPATH"] += os.pathsep + str(folder)
    return found


def _arguments(folder: Path, *more: str) -> list[str]:
    overrides = [override for override in DDP if not override.startswith("env=")]
    return command(*_config(folder), *overrides, "env=trouble", f"hydra.run.dir={folder / 'run'}", *more)


def _run(folder: Path, trouble: str, *more: str, torchrun: bool = False) -> tuple[int, str, float]:
    """Exit code, standard error and seconds of a run with this trouble."""
    arguments = _arguments(folder, *more)
    if torchrun:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        arguments = [*launcher, *arguments[1:]]
    else:
        arguments.append("trainer.devices=2")
    variables = _variables(folder, trouble)
    started = time.monotonic()
    done = subprocess.run(arguments, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stderr, time.monotonic() - started


def _causes(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if line.startswith("error: ")]


def _summary(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "run" / "summary.json").read_text())
    return found


def _continues(folder: Path, *more: str) -> None:
    """The run goes on from its last checkpoint to its end."""
    variables = _variables(folder, "none:9")
    arguments = command(f"resume={folder / 'run'}", "trust_run=true", *more)
    done = subprocess.run(arguments, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert _summary(folder)["status"] == "completed"
    assert len((folder / "run" / "metrics.csv").read_text().splitlines()) == 5


def _nothing_is_left(folder: Path) -> None:
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert str(folder).encode() not in process.read_bytes(), process
        except (FileNotFoundError, ProcessLookupError):
            continue


def _fails_and_writes_its_summary() -> str:
    strategy = ddp.DDP(timeout_s=0.5)  # the grace of its watch
    strategy.accelerator, strategy.parallel_devices = CPUAccelerator(), [torch.device("cpu")]
    strategy.cluster_environment = LightningEnvironment()
    strategy.setup_environment()
    cause = strategy.resolve_failure(ValueError("the disk is full"))
    deadline = time.monotonic() + 60
    while dist.is_initialized() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not dist.is_initialized()
    strategy.setup_environment()
    strategy.hooks.close()  # interrupted
    assert not dist.is_initialized() and "fault-watch" not in [each.name for each in threading.enumerate()]
    return str(cause)


def test_a_rank_that_fails_lives(tmp_path: Path) -> None:
    """Its own watch, which takes it for one that hangs, must not end it before the summary is written.

    Nor does it leave threads of the group behind, which could abort it at its end; one that is interrupted neither.
    """
    assert on_ranks(_fails_and_writes_its_summary, tmp_path, world_size=1) == ["the disk is full"]


@pytest.mark.slow
def test_games_that_raise_on_one_rank(tmp_path: Path) -> None:
    """All ranks count the failures of all, so that each knows the first; the run then continues on one rank."""
    code, printed, _ = _run(tmp_path, "raise:1", "rollout.max_failed_share=0")
    assert code == 1
    (cause,) = _causes(printed)
    assert "episodes failed, more than rollout.max_failed_share=0" in cause
    assert "of rank 1, game " in cause and "the arm fell off" in cause
    assert _summary(tmp_path)["status"] == "failed"
    assert "the arm fell off" in str(_summary(tmp_path)["error"])
    _nothing_is_left(tmp_path)
    _continues(tmp_path, "strategy=single", "trainer.devices=1")


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_rank_that_is_killed(rank: int, tmp_path: Path) -> None:
    code, printed, _ = _run(tmp_path, f"kill:{rank}")
    assert code == 1
    assert _causes(printed) == [f"error: rank {rank} was killed by SIGKILL"]
    assert _summary(tmp_path)["error"] == f"rank {rank} was killed by SIGKILL"
    assert _summary(tmp_path)["status"] == "failed"
    _nothing_is_left(tmp_path)
    if rank == 0:
        _continues(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "worker"), [pytest.param(0, "none", marks=pytest.mark.long), (1, "process")]
)
def test_a_rank_that_stalls(rank: int, worker: str, tmp_path: Path) -> None:
    """It is ended as well, though its main thread, or the process that plays for it, sleeps for ten minutes."""
    code, printed, seconds = _run(tmp_path, f"stall:{rank}", "strategy.timeout_s=15", f"worker={worker}")
    assert code == 1 and seconds < 200
    (cause,) = _causes(printed)
    assert "did not come within strategy.timeout_s=15 seconds" in cause
    assert f"rank {rank} did not come" in cause
    assert _summary(tmp_path)["status"] == "failed"
    _nothing_is_left(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGKILL]
)
def test_the_process_that_started_them_is_ended(number: int, tmp_path: Path) -> None:
    """In the midst of a rollout that stalls on one rank; the dead one's ranks notice by themselves."""
    arguments, variables = _arguments(tmp_path), _variables(tmp_path, "stall:1")
    process = subprocess.Popen(
        [*arguments, "trainer.devices=2"], cwd=ROOT, env=variables, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 200
    while not (tmp_path / "run/checkpoints/last.ckpt").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(2.0)
    process.send_signal(number)
    started = time.monotonic()
    _, printed = process.communicate(timeout=100)  # which the ranks hold open too
    _nothing_is_left(tmp_path)
    if number == signal.SIGKILL:
        assert process.returncode == -number
        assert "error: the process that started the run is gone" in printed
    else:
        assert process.returncode == 130 and not _causes(printed)
        assert time.monotonic() - started < 20  # the agent kills after 30
        assert printed.count("interrupted; continue with: python train.py resume=") == 1
        assert _summary(tmp_path)["status"] == "stopped"
        assert _summary(tmp_path)["error"] == "interrupted"
        if number == signal.SIGTERM:
            _continues(tmp_path)


@pytest.mark.slow
def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    """The rank that does not write waits no longer than the one that does."""
    code, printed, _ = _run(tmp_path, "disk:0")
    assert code == 1
    (cause,) = _causes(printed)
    assert "No space left on device; earlier checkpoints are intact" in cause
    assert _summary(tmp_path)["status"] == "failed"
    _nothing_is_left(tmp_path)


@pytest.mark.slow
def test_torchrun_tells_the_cause(tmp_path: Path) -> None:
    code, printed, _ = _run(tmp_path, "raise:1", "rollout.max_failed_share=0", torchrun=True)
    assert code == 1 and "the arm fell off" in printed
    _nothing_is_left(tmp_path)
