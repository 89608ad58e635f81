"""One run in two processes, started in each of the supported ways: one folder, one voice, one exit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment, find_free_network_port

from lit_agentrl.strategies import ddp
from lit_agentrl.strategies.launching import LAUNCH_VARIABLES, Launcher
from tests.conftest import ROOT
from tests.integration.conftest import TINY, command, environment

DDP = ["strategy=ddp", "trainer.accelerator=cpu", "trainer.max_epochs=1", *TINY]


def started(arguments: list[str], **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        arguments, cwd=ROOT, env={**environment(), **variables}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(*processes: subprocess.Popen[str]) -> list[str]:
    """What each printed; all must have ended well."""
    printed = []
    for process in processes:
        out, error = process.communicate(timeout=300)
        assert process.returncode == 0, error
        printed.append(out)
    return printed


def assert_one_run(folder: Path, printed: str) -> None:
    assert sum(line.startswith("iteration 1/1") for line in printed.splitlines()) == 1
    assert printed.count("results in") == 1
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "completed" and summary["iterations"] == 1
    assert len((folder / "metrics.csv").read_text().splitlines()) == 3
    writers = {file.name.split(".")[-2] for file in (folder / "tensorboard").iterdir()}
    assert len(writers) == 1  # process ids
    assert (folder / ".hydra" / "config.yaml").exists()


def test_single_refuses_devices_that_it_would_leave_idle() -> None:
    done = subprocess.run(
        command("trainer.devices=2", "trainer.accelerator=cpu", "hydra.run.dir=unused"), cwd=ROOT,
        env=environment(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert (
        "trainer.devices=2 trainer.num_nodes=1: strategy=single is one process on one device" in done.stderr
    )
    assert not (ROOT / "unused").exists()


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in which nobody has started processes, taken back after the test."""
    for name in LAUNCH_VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_one_process_leaves_the_environment_as_it_was(bare: None) -> None:
    before = dict(os.environ)
    launcher = Launcher(LightningEnvironment(), num_processes=1, num_nodes=1)
    assert launcher.launch(lambda: os.environ["LOCAL_RANK"]) == "0"
    assert LightningEnvironment().creates_processes_externally
    launcher.join(timeout_s=1.0)
    assert dict(os.environ) == before
    assert not LightningEnvironment().creates_processes_externally
    os.environ["NODE_RANK"] = "1"  # whoever sets it from now on keeps it
    launcher.end()
    assert os.environ["NODE_RANK"] == "1"


def test_threads_are_divided_for_one_run_alone(bare: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another number of them would make other bits of the sweep's next run."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    before = torch.get_num_threads()
    torch.set_num_threads(cores := 1 + len(os.sched_getaffinity(0)))
    try:
        launcher = Launcher(LightningEnvironment(), num_processes=1, num_nodes=1)
        assert launcher.launch(torch.get_num_threads) == cores - 1 == int(os.environ["OMP_NUM_THREADS"])
        launcher.end()
        assert torch.get_num_threads() == cores and "OMP_NUM_THREADS" not in os.environ
    finally:
        torch.set_num_threads(before)


def test_processes_that_never_met_leave_nothing_behind(bare: None) -> None:
    before = dict(os.environ)
    strategy = ddp.DDP()
    strategy.cluster_environment = LightningEnvironment()
    strategy.parallel_devices = [torch.device("cpu")]
    strategy._configure_launcher()
    launcher = strategy.launcher
    assert isinstance(launcher, Launcher)
    launcher.launch(lambda: None)
    error = RuntimeError("the address is in use")
    assert strategy.failed(error) is error
    assert dict(os.environ) == before


@pytest.mark.slow
def test_lightning_starts_the_processes(tmp_path: Path) -> None:
    (printed,) = ended(started(command(*DDP, "trainer.devices=2", f"hydra.run.dir={tmp_path / 'run'}")))
    assert_one_run(tmp_path / "run", printed)


@pytest.mark.slow
def test_torchrun_starts_the_processes(tmp_path: Path) -> None:
    """The number of devices is torchrun's; the folder is named by the first process alone."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    folder = f"hydra.run.dir={tmp_path}/run-${{now:%f}}"
    (printed,) = ended(started([*torchrun, *command(*DDP, folder)[1:]]))
    (run,) = tmp_path.iterdir()
    assert_one_run(run, printed)


@pytest.mark.slow
def test_srun_starts_the_processes(tmp_path: Path) -> None:
    """As SLURM describes two tasks on one node."""
    job = {"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_NNODES": "1", "SLURM_NODEID": "0",
           "SLURM_JOB_NAME": "train", "SLURM_JOB_ID": "1", "SLURM_NODELIST": "127.0.0.1",
           "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_network_port())}  # fmt: skip
    arguments = command(*DDP, f"hydra.run.dir={tmp_path}/run-${{now:%f}}")
    tasks = [started(arguments, **job, SLURM_PROCID=rank, SLURM_LOCALID=rank) for rank in ("0", "1")]
    printed = ended(*tasks)
    (run,) = tmp_path.iterdir()
    assert_one_run(run, printed[0])
    assert "iteration" not in printed[1] and "results in" not in printed[1]


@pytest.mark.slow
def test_each_run_of_a_sweep_starts_its_own_processes(tmp_path: Path) -> None:
    """One of one process leaves nothing from which the next would take its processes for started."""
    arguments = command("-m", *DDP, f"hydra.sweep.dir={tmp_path}", "trainer.devices=1,2")
    assert "RANK" not in os.environ
    (printed,) = ended(started(arguments))
    assert printed.count("results in") == 2
    for number in range(2):
        summary = json.loads((tmp_path / str(number) / "summary.json").read_text())
        assert summary["status"] == "completed"
