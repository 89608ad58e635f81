"""Starting the processes of one run on a machine, and ending them together, with PyTorch's elastic agent.

The process that starts them is none of them: it waits, tells the cause of a failure, and leaves none behind.
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lightning.fabric.plugins.environments.lightning import find_free_network_port
from lightning.pytorch.accelerators import CPUAccelerator, CUDAAccelerator
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, get_error_handler
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

MEET_S = 300  # for all machines, and then for all processes, to start
_RUN_ID = "lit_agentrl-"
_VARIABLES = ("OMP_NUM_THREADS", "TORCHELASTIC_SIGNALS_TO_HANDLE")  # set for the launch, or by the agent
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # which the agent takes over


class RankFailed(RuntimeError):
    """A process of the run stopped it.

    Args:
        message: the cause, in one line.
        is_told: whether another process prints it.
    """

    def __init__(self, message: str, *, is_told: bool = False) -> None:
        super().__init__(message)
        self.is_told = is_told


def count_devices(accelerator: str, devices: int | str | Sequence[int]) -> int:
    """Processes on this machine, one a device, for what ``trainer.devices`` says.

    Raises:
        ValueError: it is no number, list or name of devices that are there.
    """
    is_cuda = accelerator in ("cuda", "gpu") or (accelerator == "auto" and CUDAAccelerator.is_available())
    kind: type[CPUAccelerator | CUDAAccelerator] = CUDAAccelerator if is_cuda else CPUAccelerator
    if not kind.is_available():
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = "" if hidden is None else f" (the environment variable CUDA_VISIBLE_DEVICES={hidden})"
        raise ValueError(
            f"accelerator={accelerator}: torch finds no GPU here{why}; set trainer.accelerator=cpu"
        )
    try:
        found = kind.auto_device_count() if devices == "auto" else kind.parse_devices(devices)  # type: ignore[arg-type]
    except (TypeError, ValueError, MisconfigurationException) as error:  # which says what is wrong, in lines
        raise ValueError(f"devices={devices}: {' '.join(str(error).split())}") from error
    count = found if isinstance(found, int) else len(found or ())
    if count < 1:
        raise ValueError(
            f"devices={devices} is no device of trainer.accelerator={accelerator} here, which has "
            f"{kind.auto_device_count()}; use another number, or trainer.accelerator=cpu"
        )
    return count


def run_id(job: str) -> str:
    """By which a process knows that it was started here, for this job, and not by another launcher within."""
    return _RUN_ID + hashlib.sha256(job.encode()).hexdigest()[:16]


def launch(command: Sequence[str], *, processes: int, job: str, num_nodes: int = 1) -> None:
    """Run ``command`` in several processes, as torchrun would, and wait for their end.

    Args:
        command: a program and its arguments.
        processes: on this machine.
        job: what all do; equal on all machines.
        num_nodes: machines; several meet at MASTER_ADDR and MASTER_PORT, each with its own NODE_RANK.

    Raises:
        RankFailed: with the first cause; no process is left.
        KeyboardInterrupt: this process was told to end, and the others with it.
    """
    address, port = "127.0.0.1", find_free_network_port()
    if num_nodes > 1:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    with tempfile.TemporaryDirectory() as folder, _own_ways():
        os.environ.setdefault("OMP_NUM_THREADS", str(threads_of_each(processes)))
        config = LaunchConfig(
            min_nodes=num_nodes, max_nodes=num_nodes, nproc_per_node=processes, run_id=run_id(job), max_restarts=0,
            rdzv_backend="static", rdzv_endpoint=f"{address}:{port}",
            rdzv_configs={"rank": int(os.environ.get("NODE_RANK", "0")), "timeout": MEET_S},
            local_addr=address if num_nodes == 1 else None, logs_specs=DefaultLogsSpecs(log_dir=folder),
        )  # fmt: skip
        try:
            elastic_launch(config, command[0])(*command[1:])
        except ChildFailedError as error:
            raise RankFailed(_cause(error)) from None
        except SignalException as error:
            raise KeyboardInterrupt from error


def threads_of_each(processes: int) -> int:
    """Threads of torch in each of the processes that share the cores that this one may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // processes)


def is_launched() -> bool:
    """Whether `launch` started this process."""
    return os.environ.get("TORCHELASTIC_RUN_ID", "").startswith(_RUN_ID)


def tell_launcher(cause: str) -> bool:
    """Leave the cause of this process's failure with what started it; whether that prints it, and nothing else."""
    if "TORCHELASTIC_ERROR_FILE" in os.environ:  # torchrun's, or `launch`'s
        get_error_handler().record_exception(RankFailed(cause))
    return is_launched()


def _cause(error: ChildFailedError) -> str:
    rank, failure = error.get_first_failure()
    told = failure.message
    if isinstance(told, dict):  # by `tell_launcher`
        return str(told["message"]).removeprefix(f"{RankFailed.__name__}: ")
    if failure.exitcode < 0:
        return f"rank {rank} was killed by {failure.signal_name()}"
    return f"rank {rank} ended with code {failure.exitcode}"


@contextmanager
def _own_ways() -> Iterator[None]:
    """Environment and signals are afterwards as they were; the agent's log, which repeats causes, is silent."""
    environ = {name: os.environ.get(name) for name in _VARIABLES}
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    logger = logging.getLogger("torch.distributed.elastic")
    propagate, silence = logger.propagate, logging.NullHandler()
    logger.propagate = False
    logger.addHandler(silence)
    try:
        yield
    finally:
        logger.propagate = propagate
        logger.removeHandler(silence)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for name, value in environ.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
