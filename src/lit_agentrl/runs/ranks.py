"""Share one job among the processes of a run.

The first process composes the job, so that all agree on every option and on the run folder, whose name is the time at
which the first process started.  If neither torchrun nor srun starts the processes, the composing process starts them
and does not train itself.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from threading import Timer
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf

from lit_agentrl.config.errors import UserError
from lit_agentrl.screen import is_first

if TYPE_CHECKING:
    from torch.distributed import Store

JOB = "LIT_AGENTRL_JOB"  # environment variable with the job as JSON, for processes that this one starts
WAIT_S = 300.0  # for the first process to compose the job, and for the others to fetch it
PRINT_S = 5.0  # after this time, a waiting process prints what it waits for


@dataclass(frozen=True)
class Job:
    """The job that all processes of a run execute.

    Attributes:
        config: the composed config, interpolations resolved, as YAML; empty if the first process failed.
        folders: the user's config folders.
        command: the command that started the run, for the record.
        is_resume: whether the run is resumed.
    """

    config: str
    folders: list[str]
    command: str
    is_resume: bool

    @property
    def cfg(self) -> DictConfig:
        cfg = OmegaConf.create(self.config)
        assert isinstance(cfg, DictConfig)
        OmegaConf.set_struct(cfg, True)
        return cfg


def is_reporting() -> bool:
    """Return whether this process prints, rather than another one of the run."""
    return is_first() and read_handed_job() is None


def is_receiving() -> bool:
    """Return whether this process receives its job from another one, which composes it."""
    return read_handed_job() is not None or not is_first()


def get_rank() -> int:
    """Return the rank of this process in the run."""
    from lightning.pytorch.utilities import rank_zero_only

    return int(getattr(rank_zero_only, "rank", 0))


def count_launched() -> tuple[int, int] | None:
    """Return processes per machine and machines that torchrun or srun started, or None."""
    environ = os.environ
    if "TORCHELASTIC_RUN_ID" in environ:
        local, world = int(environ["LOCAL_WORLD_SIZE"]), int(environ["WORLD_SIZE"])
        return local, world // local
    if "SLURM_NTASKS" in environ and environ.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        nodes = int(environ.get("SLURM_NNODES", "1"))
        return int(environ["SLURM_NTASKS"]) // nodes, nodes
    return None


def fit_to_launcher(cfg: DictConfig) -> None:
    """Set ``trainer.devices`` and ``trainer.num_nodes`` to what torchrun or srun started, unless set.

    Raises:
        UserError: the options are set to something else.
    """
    launched = count_launched()
    if launched is None:
        return
    from lit_agentrl.build.strategy import count_processes

    if (cfg.trainer.devices, cfg.trainer.num_nodes) == (1, 1):
        cfg.trainer.devices, cfg.trainer.num_nodes = launched
    elif count_processes(cfg) != launched:
        raise UserError(
            f"trainer.devices={cfg.trainer.devices} trainer.num_nodes={cfg.trainer.num_nodes}: torchrun or srun "
            f"started {launched[0]} processes on each of {launched[1]} machines; write trainer.devices={launched[0]} "
            f"trainer.num_nodes={launched[1]}, or neither"
        )


def require_one_process(reason: str) -> None:
    """Refuse a command that torchrun or srun started as several processes.

    Raises:
        UserError: there are several processes.
    """
    launched = count_launched()
    if launched is not None and launched != (1, 1):
        count = launched[0] * launched[1]
        raise UserError(
            f"{count} processes were started by torchrun or srun, but {reason}; start it without them",
            is_reported=not is_first(),
        )


def share(job: Job, num_nodes: int) -> None:
    """Share the job with all other processes; the first one calls it.

    Args:
        job: the job; an empty config makes the others end.
        num_nodes: the number of machines; on each but the first, a process started by hand waits, unless torchrun or
            srun started all processes.

    Raises:
        UserError: several machines without a common address, or other processes that do not come for the job.
    """
    launched = count_launched()
    if launched is None and num_nodes > 1 and not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        raise UserError(
            f"trainer.num_nodes={num_nodes} needs MASTER_ADDR, MASTER_PORT and NODE_RANK in the environment of "
            "each machine; torchrun and srun set them"
        )
    text = json.dumps(asdict(job))
    num_others = num_nodes - 1 if launched is None else launched[0] * launched[1] - 1
    os.environ[JOB] = text
    if num_others > 0:
        store = _open_store(is_first=True)
        store.set("job", text)
        try:
            with _report_waiting(f"the {num_others} other processes of the run"):
                store.wait(
                    [f"read{number}" for number in range(1, num_others + 1)], timedelta(seconds=WAIT_S)
                )
        except RuntimeError as error:
            absent = num_others - store.add("readers", 0)
            raise UserError(
                f"{absent} of the {num_others} other processes did not fetch the job within {WAIT_S:g} seconds: "
                f"{_name_remedy()}"
            ) from error


def is_training_process(cfg: DictConfig) -> bool:
    """Return whether this process trains, instead of starting those that do.

    Raises:
        ValueError: an option of the strategy is invalid; it is reported once, before several processes are started.
    """
    if "LOCAL_RANK" in os.environ or count_launched() is not None:
        return True
    from lit_agentrl.build.strategy import build_strategy, is_parallel

    return not is_parallel(build_strategy(cfg))  # its config may name a function, so it must be built


def start(cfg: DictConfig) -> None:
    """Start the job's processes on this machine, and wait for their end.

    Raises:
        RankFailed: a process failed; the message names the first cause.
        KeyboardInterrupt: the processes were interrupted.
        ValueError: ``trainer.devices`` is invalid.
    """
    from lit_agentrl.build.strategy import count_processes
    from lit_agentrl.strategies import launching

    processes, num_nodes = count_processes(cfg)
    launching.launch(_build_command(), job=os.environ[JOB], num_nodes=num_nodes, processes=processes)


def _build_command() -> list[str]:
    """Return the command of a further process, with the same arguments and module path.

    It does not call the current program, which may be a notebook, or may do more than train.
    """
    code = f"import sys; sys.path[:] = {sys.path!r}; from lit_agentrl.cli.train import main; main()"
    return [sys.executable, "-c", code, *sys.argv[1:]]


def read_handed_job() -> Job | None:
    """Return the job for which `start` in another process started this one, or None."""
    text = os.environ.get(JOB)
    launched_as = os.environ.get("TORCHELASTIC_RUN_ID")
    if text is None or launched_as is None:
        return None
    from lit_agentrl.strategies.launching import run_id

    return Job(**json.loads(text)) if launched_as == run_id(text) else None


def release(*, is_awaited: bool) -> None:
    """Release processes that wait for a job, at the end of this process.

    The job is removed from the environment; otherwise a later run in this process, or in a process that it starts,
    would take that job.

    Args:
        is_awaited: whether other processes of this command call `receive`.
    """
    if is_awaited and is_first() and JOB not in os.environ:
        with suppress(Exception, KeyboardInterrupt):  # the reason was reported already
            share(Job("", [], "", False), num_nodes=1)
    os.environ.pop(JOB, None)


@contextmanager
def _report_waiting(whom: str) -> Iterator[None]:
    """Print what this process waits for, after some seconds."""
    environ = os.environ
    where = f"{environ.get('MASTER_ADDR', '127.0.0.1')}:{environ.get('MASTER_PORT', 'no port')}"
    message = f"waiting for {whom} at {where} (MASTER_ADDR, MASTER_PORT), for {WAIT_S:g} seconds at most …"
    timer = Timer(PRINT_S, print, (message,), {"flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _name_remedy() -> str:
    """Name the remedy for processes that do not come."""
    launched = count_launched()
    if launched is None:
        return (
            "start one process on each machine, with equal MASTER_ADDR and MASTER_PORT and its own NODE_RANK"
        )
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return "see the output of the others that torchrun started"
    return (
        f"SLURM_NTASKS={os.environ['SLURM_NTASKS']} announces {launched[0] * launched[1]} processes; start them with "
        "srun, or unset SLURM_NTASKS to run one"
    )


def receive() -> Job | None:
    """Receive the job from the first process; None if that process could not compose it.

    Raises:
        UserError: the first process does not provide a job in time.
    """
    try:
        with _report_waiting("the first process of the run"):
            store = _open_store(is_first=False)
            text = store.get("job").decode()
    except RuntimeError as error:
        raise UserError(f"the first process of the run sent no job: {_name_remedy()}") from error
    store.set(f"read{store.add('readers', 1)}", "1")
    os.environ[JOB] = text  # for the processes that this one starts on its machine
    job = Job(**json.loads(text))
    return job if job.config else None


def _open_store(*, is_first: bool) -> Store:
    """Open the store for the job; the store of the process group is opened later.

    Raises:
        UserError: the variables of SLURM do not give the address.
    """
    from lightning.pytorch.plugins.environments import (
        LightningEnvironment,
        SLURMEnvironment,
        TorchElasticEnvironment,
    )
    from torch.distributed import PrefixStore, TCPStore

    kinds = (TorchElasticEnvironment, SLURMEnvironment, LightningEnvironment)
    try:
        environment = next(kind() for kind in kinds if kind.detect())
    except RuntimeError as error:  # the variables of SLURM are incomplete
        raise UserError(str(error), is_reported=not is_first) from error
    agent_serves = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    server = TCPStore(
        environment.main_address,
        environment.main_port,
        is_master=is_first and not agent_serves,
        wait_for_workers=False,
        timeout=timedelta(seconds=WAIT_S),
    )
    return PrefixStore(f"lit_agentrl/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", server)


def make_job(folders: Sequence[str], cfg: DictConfig, command: str, *, is_resume: bool) -> Job:
    """Return the job of a composed config."""
    return Job(OmegaConf.to_yaml(cfg, resolve=True), list(folders), command, is_resume)
