"""Which process speaks for a run, and how the others learn what is to be run."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from lightning.pytorch.strategies import DDPStrategy
from omegaconf import DictConfig, OmegaConf

from lit_agentrl.cli.evaluate import main as main_evaluate
from lit_agentrl.cli.train import main as main_train
from lit_agentrl.config.errors import UserError
from lit_agentrl.runs import ranks
from lit_agentrl.strategies.ddp import DDP
from lit_agentrl.strategies.launching import run_id
from lit_agentrl.strategies.single import single

JOB = ranks.Job("seed: 7\ntrainer: {devices: 1, num_nodes: 1}\n", ["more"], "python train.py", True)
VARIABLES = (
    "RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_RUN_ID", "SLURM_NTASKS", "SLURM_NNODES", "SLURM_PROCID", "SLURM_JOB_NAME", "SLURM_NTASKS_PER_NODE",
    "SLURM_NODELIST", "SLURM_JOB_ID", ranks.JOB,
)  # fmt: skip


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what a test sets is taken back
        monkeypatch.delenv(name)


def test_who_is_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ranks.is_first()
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"):
        monkeypatch.setenv(name, "0")
        assert ranks.is_first()
        monkeypatch.setenv(name, "1")
        assert not ranks.is_first()
        monkeypatch.delenv(name)


def test_devices_are_those_of_the_launcher_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = OmegaConf.create({"trainer": {"devices": 1, "num_nodes": 1}})
    ranks.fit_to_launcher(cfg)
    assert (cfg.trainer.devices, cfg.trainer.num_nodes) == (1, 1)
    for name, value in (("TORCHELASTIC_RUN_ID", "x"), ("LOCAL_WORLD_SIZE", "4"), ("WORLD_SIZE", "8")):
        monkeypatch.setenv(name, value)
    given = OmegaConf.create({"trainer": {"devices": 4, "num_nodes": 2, "accelerator": "cpu"}})
    ranks.fit_to_launcher(given)
    ranks.fit_to_launcher(cfg)
    assert (
        (cfg.trainer.devices, cfg.trainer.num_nodes)
        == (4, 2)
        == (given.trainer.devices, given.trainer.num_nodes)
    )
    given.trainer.devices = 2  # of which Lightning says something under ddp alone
    with pytest.raises(
        UserError, match="^trainer.devices=2 trainer.num_nodes=2: .*started 4 processes on each of 2"
    ):
        ranks.fit_to_launcher(given)
    with pytest.raises(UserError, match="8 processes were started by torchrun or srun, but a sweep"):
        ranks.require_one_process("a sweep starts its own")


def made_by_a_function() -> DDPStrategy:
    """A strategy as a user might make it."""
    return DDPStrategy(find_unused_parameters=True)


def named_by_a_function() -> str:
    return "ddp"


def strategy(target: object) -> DictConfig:
    return OmegaConf.create({"strategy": {"_target_": f"{target.__module__}.{target.__qualname__}"}})  # type: ignore[attr-defined]


def test_processes_are_started_for_a_strategy_that_a_function_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning would start them, each of which would wait for a job."""
    for target in (made_by_a_function, DDPStrategy, DDP):
        assert not ranks.is_training_process(strategy(target))
    assert ranks.is_training_process(strategy(single))
    with pytest.raises(
        ValueError, match=r"^strategy._target_=.*named_by_a_function makes ddp; it must make an object"
    ):
        ranks.is_training_process(strategy(named_by_a_function))
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert ranks.is_training_process(strategy(DDP))


def test_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "6")
    monkeypatch.setenv("SLURM_NNODES", "3")
    assert ranks.count_launched() == (2, 3)
    monkeypatch.setenv("SLURM_JOB_NAME", "interactive")
    assert ranks.count_launched() is None


def test_processes_of_one_machine_find_the_job_in_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless another launcher started them, within the run."""
    ranks.share(JOB, num_nodes=1)
    assert ranks.read_handed_job() is None
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", run_id(os.environ[ranks.JOB]))
    assert ranks.read_handed_job() == JOB and not ranks.is_reporting()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another")
    assert ranks.read_handed_job() is None and ranks.is_reporting()


def test_job_of_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two machines, one process started by hand on each: the second waits for the first."""
    with pytest.raises(UserError, match="trainer.num_nodes=2 needs MASTER_ADDR, MASTER_PORT and NODE_RANK"):
        ranks.share(JOB, num_nodes=2)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(find_free_network_port()))
    monkeypatch.setattr(ranks, "WAIT_S", 20.0)
    (got,) = _received(lambda: ranks.share(JOB, num_nodes=2))
    assert got == JOB and got.cfg.seed == 7 and Path(got.folders[0]).name == "more"


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that torchrun started on this machine."""
    port = str(find_free_network_port())
    for name, value in (
        ("TORCHELASTIC_RUN_ID", "x"), ("LOCAL_WORLD_SIZE", "2"), ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ranks, "WAIT_S", 20.0)


def _received(first: Callable[[], None]) -> list[ranks.Job | None]:
    """What the second process gets while the first does this."""
    got: list[ranks.Job | None] = []
    other = threading.Thread(target=lambda: got.append(ranks.receive()))
    other.start()
    first()
    other.join(20.0)
    return got


def test_a_job_that_could_not_be_composed(torchrun: None) -> None:
    assert _received(lambda: ranks.release(is_awaited=True)) == [None]


def test_a_job_of_an_earlier_run_is_not_taken(torchrun: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where torchrun is started by a process that has itself run a job before."""
    monkeypatch.setenv(ranks.JOB, '{"config": "seed: 8", "folders": [], "command": "", "is_resume": false}')
    assert _received(lambda: ranks.share(JOB, num_nodes=1)) == [JOB]


@pytest.mark.slow
def test_nothing_of_a_job_stays_behind(capsys: pytest.CaptureFixture[str]) -> None:
    ranks.share(JOB, num_nodes=1)
    ranks.release(is_awaited=True)
    assert ranks.JOB not in os.environ
    with pytest.raises(SystemExit):
        main_train(["no_such_option=1"])
    assert ranks.JOB not in os.environ and "no_such_option" in capsys.readouterr().err


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of two tasks that SLURM has announced; nobody has started the second."""
    for name, value in (
        ("SLURM_NTASKS", "2"), ("SLURM_NTASKS_PER_NODE", "2"), ("SLURM_PROCID", "0"), ("SLURM_JOB_NAME", "train"),
        ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", str(find_free_network_port())),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ranks, "WAIT_S", 2.0)


def _printed(entry: Callable[[list[str]], None], argument: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        entry([argument])
    assert ended.value.code == 1
    return capsys.readouterr().err


@pytest.mark.parametrize("rank", ["0", "1"])
def test_what_every_process_refuses_is_told_once_and_at_once(
    rank: str, slurm: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_PROCID", rank)
    monkeypatch.setattr(ranks, "WAIT_S", 60.0)
    started = time.monotonic()
    printed = _printed(main_evaluate, "run=outputs", capsys)
    assert time.monotonic() - started < 30
    assert ("2 processes were started by torchrun or srun" in printed) == (rank == "0")
    assert rank == "0" or not printed


@pytest.mark.slow
def test_processes_that_nobody_started(slurm: None) -> None:
    """As in a batch script without srun; the wait is not repeated at the end."""
    with pytest.raises(
        UserError, match=r"^1 of the 1 other processes did not fetch .* within 2 seconds"
    ) as told:
        ranks.share(JOB, num_nodes=1)
    assert str(told.value).endswith("start them with srun, or unset SLURM_NTASKS to run one")
    started = time.monotonic()
    ranks.release(is_awaited=True)
    assert time.monotonic() - started < 1.0 and ranks.JOB not in os.environ


@pytest.mark.slow
def test_a_first_process_that_nobody_started(slurm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "1")
    with pytest.raises(
        UserError, match="the first process of the run sent no job: SLURM_NTASKS=2 announces 2"
    ):
        ranks.receive()


@pytest.mark.slow
def test_an_error_that_the_others_wait_for_in_vain_stays_the_only_one(
    slurm: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = _printed(main_train, "no_such_option=1", capsys)
    assert "no_such_option" in printed and "Traceback" not in printed
    monkeypatch.delenv("SLURM_NTASKS_PER_NODE")  # which Lightning refuses
    printed = _printed(main_train, "no_such_option=1", capsys)
    assert "no_such_option" in printed and "Traceback" not in printed
    monkeypatch.setenv("SLURM_PROCID", "1")
    assert not _printed(main_train, "no_such_option=1", capsys)
