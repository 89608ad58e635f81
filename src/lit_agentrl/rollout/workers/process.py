"""Worker processes on this machine, which play episodes with a snapshot of the weights."""

from __future__ import annotations

import io
import multiprocessing
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lit_agentrl.rollout.rules import ForwardContext, Rules
from lit_agentrl.rollout.workers.base import Played
from lit_agentrl.rollout.workers.opener import LostWorker, PlayingError
from lit_agentrl.rollout.workers.pool import Pool
from lit_agentrl.rollout.workers.serve import serve
from lit_agentrl.rollout.workers.settings import PoolSettings
from lit_agentrl.rollout.workers.shares import Share
from lit_agentrl.rollout.workers.weights import SharedWeights, allocate_shared

_STOP_S = 5.0  # seconds after which a process that does not end is killed


class _RemoteTrace(Exception):
    """The stack trace of the other process, shown as the cause."""


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(PoolSettings):
    """Options of worker processes on this machine.

    Args:
        device: Device of the processes' copies of the network, such as ``cuda:1``, or several, assigned in turn; None
            for the trainer's device.

    Raises:
        ValueError: A value is out of range, or a device cannot be used here.
    """

    device: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for device in self._devices:
            try:
                _try_device(torch.device(device))
            except (RuntimeError, AssertionError, NotImplementedError) as error:
                raise ValueError(
                    f"device={device} cannot be used here ({str(error).splitlines()[0]}); null stands for the "
                    "trainer's device"
                ) from error

    @property
    def _devices(self) -> list[str]:
        if self.device is None:
            return []
        return [self.device] if isinstance(self.device, str) else list(self.device)

    def check(self, rules: Rules) -> None:
        rules.require_picklable()

    def open(
        self, rules: Rules, network: PreTrainedModel, forward_context: ForwardContext, *, is_ahead: bool
    ) -> Pool:
        threads = self.choose_threads(is_ahead=is_ahead)
        opener = Processes(
            rules, network, forward_context, count=self.count, threads=threads, devices=self._devices
        )
        return self.make_pool(opener, rules, is_ahead=is_ahead)


def _try_device(device: torch.device) -> None:
    """Try a device; GPUs are only counted, since a tensor would open a context.

    Raises:
        RuntimeError: It cannot be used.
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        torch.zeros(1, device=device).item()
    elif (count := torch.cuda.device_count()) <= (device.index or 0):
        raise RuntimeError(f"there are {count} GPUs, and the first is cuda:0")


class Processes:
    """An opener of processes, which also holds the weights that they share.

    Args:
        rules: Rules by which episodes are played; a copy is sent to each process.
        network: Network with the structure of the policy.
        forward_context: Precision context of the strategy.
        count: Number of processes.
        threads: Torch threads in each process.
        devices: Devices of the copies of the network, assigned in turn; empty for the device of ``network``.

    Raises:
        ValueError: Something cannot be sent to another process, or shared memory is too small.
    """

    name = "process"

    def __init__(
        self,
        rules: Rules,
        network: PreTrainedModel,
        forward_context: ForwardContext,
        *,
        count: int,
        threads: int,
        devices: Sequence[str] = (),
    ) -> None:
        self.num_workers = count
        self._weights = SharedWeights(network)
        self._threads = threads
        self._devices = list(devices) or [str(network.device)]
        sent = serialize_parts((rules, network, forward_context))
        # in shared memory, because start() would wait until the process has read its arguments
        self._payload = allocate_shared(len(sent))
        self._payload.copy_(torch.frombuffer(bytearray(sent), dtype=torch.uint8))

    def open(self, number: int) -> Process:
        device = self._devices[number % len(self._devices)]
        return Process(self._payload, self._weights, device, self._threads)

    def write(self, weights: Mapping[str, Tensor]) -> None:
        self._weights.write(weights)

    def differing(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self._weights.differing(weights)

    def close(self) -> None:
        return None


def serialize_parts(parts: tuple[Rules, PreTrainedModel, ForwardContext]) -> bytes:
    """Return the serialised parts of a worker in another process.

    Raises:
        ValueError: They cannot be sent there; the message names the remedy.
    """
    parts[0].require_picklable()
    file = io.BytesIO()
    try:
        torch.save(parts, file)
    except Exception as error:  # any error, for the reason given in require_picklable()
        raise ValueError(
            "a worker plays in a process of its own, and model or trainer.precision cannot be sent there "
            f"({type(error).__name__}: {error}); set worker=none rollout.overlap=false"
        ) from error
    return file.getvalue()


class Process:
    """A process that ends with its parent, even if the parent is killed; see `WorkerHandle`.

    Args:
        payload: See `serve`.
        weights: Weights that the process loads.
        device: Device of the process's copy of the network.
        threads: Torch threads in the process.
    """

    def __init__(self, payload: Tensor, weights: SharedWeights, device: str, threads: int) -> None:
        self._ticks = allocate_shared(8).view(torch.int64)
        self._ticks[0] = -1
        self._why = ""
        # torch's threads are unusable after a fork
        context = multiprocessing.get_context("spawn")
        self._connection, child_connection = context.Pipe()
        self._process = context.Process(
            target=serve, name="lit_agentrl-playing", daemon=True,
            args=(child_connection, payload, weights, self._ticks, device, threads),
        )  # fmt: skip
        self._process.start()
        child_connection.close()  # otherwise `recv` would not notice the end of the process

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    @property
    def progress(self) -> int:
        return int(self._ticks)

    def is_ready(self, seconds: float) -> bool:
        # before the first request, only a failure or the end of the process can be read
        if self.progress < 0 and self._connection.poll(seconds):
            self._receive()
        return self.progress >= 0

    def play(self, share: Share, load: int, version: int) -> Played:
        with suppress(OSError):  # the process has ended; `_receive` reads its last message
            self._connection.send((load, version, share))
        return self._receive()

    def _receive(self) -> Played:
        try:
            kind, value = self._connection.recv()
        except (EOFError, OSError) as error:
            raise LostWorker(self._describe_death()) from error
        if kind == "error":
            summary, stack = value
            raise PlayingError(f"the playing process (worker=process) failed: {summary}") from _RemoteTrace(
                f"\n{stack}"
            )
        assert isinstance(value, Played)
        return value

    def end(self) -> None:
        self._process.terminate()

    def kill(self, why: str) -> None:
        self._why = why
        self._process.kill()

    def close(self) -> None:
        """End the process, whatever it is doing; it closes its games."""
        self._process.terminate()
        self._connection.close()
        self._process.join(_STOP_S)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()

    def _describe_death(self) -> str:
        self._process.join(_STOP_S)
        if self._why:
            return self._why
        code = self._process.exitcode
        how = f"exit code {code}" if code is None or code >= 0 else signal.Signals(-code).name
        hint = "; the machine may be out of memory" if code == -signal.SIGKILL else ""
        return f"died ({how}){hint}"
