"""Launch of the processes of one run on a machine, with PyTorch's elastic agent.

The launching process takes no part in training: it waits, reports the cause of a failure, and leaves no process
behind.
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

from lit_agentrl.strategies.gpus import require_gpus

START_TIMEOUT_S = 300  # limit for all machines, and then for all processes, to start
_RUN_ID = "lit_agentrl-"
_VARIABLES = ("OMP_NUM_THREADS", "TORCHELASTIC_SIGNALS_TO_HANDLE")  # set by launch() or by the agent
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # handled by the agent


class RankFailed(RuntimeError):
    """Failure of a process that stopped the run.

    Args:
        message: the cause, in one line.
        is_reported: whether another process already prints the message.
    """

    def __init__(self, message: str, *, is_reported: bool = False) -> None:
        super().__init__(message)
        self.is_reported = is_reported


def is_on_cuda(accelerator: str) -> bool:
    """Return whether ``trainer.accelerator`` means GPUs on this machine."""
    return accelerator in ("cuda", "gpu") or (accelerator == "auto" and CUDAAccelerator.is_available())


def count_devices(accelerator: str, devices: int | str | Sequence[int]) -> int:
    """Count the processes on this machine, one per device of ``trainer.devices``.

    Raises:
        ValueError: ``devices`` is not a number, list or name of devices that exist here.
    """
    is_cuda = is_on_cuda(accelerator)
    kind: type[CPUAccelerator | CUDAAccelerator] = CUDAAccelerator if is_cuda else CPUAccelerator
    if is_cuda:
        require_gpus(accelerator, devices)
    try:
        devices_found = kind.auto_device_count() if devices == "auto" else kind.parse_devices(devices)  # type: ignore[arg-type]
    except (TypeError, ValueError, MisconfigurationException) as error:  # its message has several lines
        raise ValueError(f"devices={devices}: {' '.join(str(error).split())}") from error
    count = devices_found if isinstance(devices_found, int) else len(devices_found or ())
    if count < 1:
        raise ValueError(
            f"devices={devices} does not exist for trainer.accelerator={accelerator} here, which has "
            f"{kind.auto_device_count()}; use another number, or trainer.accelerator=cpu"
        )
    return count


def run_id(job: str) -> str:
    """Return the run id of a job that `launch` starts.

    By this id a process knows that it was started by `launch`, and not by another launcher inside the job.
    """
    return _RUN_ID + hashlib.sha256(job.encode()).hexdigest()[:16]


def launch(command: Sequence[str], *, processes: int, job: str, num_nodes: int = 1) -> None:
    """Run ``command`` in several processes, as torchrun would, and wait for them to end.

    Args:
        command: a program and its arguments.
        processes: number of processes on this machine.
        job: description of the job; equal on all machines.
        num_nodes: number of machines; several meet at MASTER_ADDR and MASTER_PORT, each with its own NODE_RANK.

    Raises:
        RankFailed: a process failed; the message is the first cause, and no process is left.
        KeyboardInterrupt: this process received a signal to end; the others ended with it.
    """
    address, port = "127.0.0.1", find_free_network_port()
    if num_nodes > 1:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    with tempfile.TemporaryDirectory() as folder, _restore_process_state():
        os.environ.setdefault("OMP_NUM_THREADS", str(count_threads_per_process(processes)))
        config = LaunchConfig(
            min_nodes=num_nodes, max_nodes=num_nodes, nproc_per_node=processes, run_id=run_id(job), max_restarts=0,
            rdzv_backend="static", rdzv_endpoint=f"{address}:{port}",
            rdzv_configs={"rank": int(os.environ.get("NODE_RANK", "0")), "timeout": START_TIMEOUT_S},
            local_addr=address if num_nodes == 1 else None, logs_specs=DefaultLogsSpecs(log_dir=folder),
        )  # fmt: skip
        try:
            elastic_launch(config, command[0])(*command[1:])
        except ChildFailedError as error:
            raise RankFailed(_describe_cause(error)) from None
        except SignalException as error:
            raise KeyboardInterrupt from error


def count_threads_per_process(processes: int) -> int:
    """Return the number of torch threads per process when ``processes`` share the available cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // processes)


def is_launched() -> bool:
    """Return whether `launch` started this process."""
    return os.environ.get("TORCHELASTIC_RUN_ID", "").startswith(_RUN_ID)


def tell_launcher(cause: str) -> bool:
    """Report the cause of this process's failure to its launcher.

    Returns:
        Whether the launcher is `launch`, which prints the cause and nothing else.
    """
    if "TORCHELASTIC_ERROR_FILE" in os.environ:  # set by torchrun and by `launch`
        get_error_handler().record_exception(RankFailed(cause))
    return is_launched()


def _describe_cause(error: ChildFailedError) -> str:
    rank, failure = error.get_first_failure()
    message = failure.message
    if isinstance(message, dict):  # written by `tell_launcher`
        return str(message["message"]).removeprefix(f"{RankFailed.__name__}: ")
    if failure.exitcode < 0:
        return f"rank {rank} was killed by {failure.signal_name()}"
    return f"rank {rank} ended with code {failure.exitcode}"


@contextmanager
def _restore_process_state() -> Iterator[None]:
    """Restore environment and signal handlers on exit, and silence the agent's log within.

    The log would repeat the causes of failures.
    """
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
