"""A process that plays episodes with a snapshot of the weights, while this one trains."""

from __future__ import annotations

import io
import multiprocessing
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lit_agentrl.checks import require_number, require_whole
from lit_agentrl.rollout.rules import ForwardContext, Rules
from lit_agentrl.rollout.scheduler import Wave
from lit_agentrl.rollout.workers.base import Played, WorkerSettings
from lit_agentrl.rollout.workers.serve import serve
from lit_agentrl.rollout.workers.weights import SharedWeights, shared_bytes

_SLICE_S = 0.5  # how often a waiting parent looks whether the process still lives
_PATIENCE_S = 600.0
_STOP_S = 5.0  # after which a process that will not end is killed


class PlayingError(RuntimeError):
    """The playing process failed, died or hung; the message is one line."""


class _Remote(Exception):
    """The stack of the other process, shown as the cause."""


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(WorkerSettings):
    """Another process of this machine.

    Args:
        device: of its copy of the network, such as ``cuda:1``; None for the trainer's.
        threads: of torch in it; None for the trainer's, or half of them where it plays ahead.
        patience: seconds without a finished reply after which it counts as hung; None for 600.

    Raises:
        ValueError: a value out of range, or a device that cannot be used here.
    """

    device: str | None = None
    threads: int | None = None
    patience: float | None = None

    def __post_init__(self) -> None:
        if self.threads is not None:
            require_whole("threads", self.threads, 1)
        if self.patience is not None:
            require_number("patience", self.patience, "a number > 0, in seconds", lambda s: s > 0)
        if self.device is None:
            return
        try:
            torch.zeros(1, device=self.device).item()
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise ValueError(
                f"device={self.device} cannot be used here ({str(error).splitlines()[0]}); null stands for the "
                "trainer's device"
            ) from error

    def check(self, rules: Rules) -> None:
        rules.require_picklable()

    def open(
        self, rules: Rules, network: PreTrainedModel, forward_context: ForwardContext, *, is_ahead: bool
    ) -> PlayingProcess:
        threads = torch.get_num_threads()
        if is_ahead:
            threads = max(1, threads // 2)  # the trainer uses the others meanwhile
        return PlayingProcess(
            rules, network, forward_context, threads=self.threads or threads, device=self.device,
            patience=self.patience or _PATIENCE_S,
        )  # fmt: skip


class PlayingProcess:
    """Plays one wave at a time with the weights of the last :meth:`load`.

    What comes out depends on waves and weights alone, never on timing.  The process ends with this one, also if
    this one is killed.

    Args:
        rules: how episodes are played; a copy of them is sent over.
        network: structure of the policy; weights are those of :meth:`load`.
        forward_context: the strategy's precision context.
        threads: that torch may use in it.
        device: where the process puts its copy of the network; None for that of ``network``.
        patience: seconds without any reply being finished after which it counts as hung.

    Raises:
        ValueError: something cannot be sent to another process, or shared memory is short.
    """

    def __init__(
        self,
        rules: Rules,
        network: PreTrainedModel,
        forward_context: ForwardContext,
        *,
        threads: int,
        device: str | None = None,
        patience: float = _PATIENCE_S,
    ) -> None:
        rules.require_picklable()
        self.threads = threads
        self._weights = SharedWeights(network)
        self._ticks = shared_bytes(8).view(torch.int64)
        self._patience = patience
        self._is_idle = True
        context = multiprocessing.get_context(
            "spawn"
        )  # a fork would inherit torch's threads in no usable state
        self._connection, theirs = context.Pipe()
        file = io.BytesIO()
        try:
            torch.save((rules, network, forward_context), file)
        except Exception as error:  # as in require_picklable()
            raise ValueError(
                "worker=process plays in a process of its own, and model or trainer.precision cannot be sent there "
                f"({type(error).__name__}: {error}); set worker=none rollout.overlap=false"
            ) from error
        # in shared memory: start() would wait until the process has read what its arguments hold
        payload = shared_bytes(file.getbuffer().nbytes)
        payload.copy_(torch.frombuffer(file.getbuffer(), dtype=torch.uint8))
        self._process = context.Process(
            target=serve, name="lit_agentrl-playing", daemon=True,
            args=(theirs, payload, self._weights, self._ticks, device or network.device, self.threads),
        )  # fmt: skip
        self._process.start()
        theirs.close()  # so that the end of the process is seen here

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process.pid is not None
        return self._process.pid

    def differing(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies of what in the snapshot is not equal to these weights."""
        return self._weights.differing(weights)

    @property
    def is_idle(self) -> bool:
        """Whether what was submitted has been taken back."""
        return self._is_idle

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Play later waves with these weights.

        Raises:
            PlayingError: the process has failed or died.
        """
        assert self.is_idle, "the weights of episodes that are being played must stay as they are"
        self._weights.write(weights)
        self._send(("load", version))

    def submit(self, wave: Wave) -> None:
        """Have these episodes played in the background.

        Raises:
            PlayingError: the process has failed or died.
        """
        assert self.is_idle, "one wave at a time"
        self._send(("play", wave))
        self._is_idle = False

    def take(self) -> Played:
        """The episodes that were submitted.

        Raises:
            PlayingError: the process failed, died, or finished no reply for ``patience`` seconds.
        """
        assert not self.is_idle, "nothing was submitted"
        played = self._receive()
        self._is_idle = True
        assert isinstance(played, Played)
        return played

    def stop(self) -> None:
        """End the process, whatever it is doing; it closes its games."""
        self._process.terminate()
        self._connection.close()
        self._process.join(_STOP_S)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()

    def _send(self, message: tuple[str, Any]) -> None:
        try:
            self._connection.send(message)
        except OSError as error:
            raise self._what_it_said_last() from error

    def _receive(self) -> Any:
        waited, ticks = 0.0, -1
        # slices are counted, not the clock: a machine that was suspended has not waited
        while not self._connection.poll(_SLICE_S):
            waited = waited + _SLICE_S if ticks == int(self._ticks) else 0.0
            ticks = int(self._ticks)
            if waited >= self._patience:
                self.stop()
                raise PlayingError(
                    f"the playing process (worker=process) finished no reply for {self._patience:g} s; a game may "
                    "hang (worker=none rollout.overlap=false shows where), or raise worker.patience"
                )
        try:
            kind, value = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._death() from error
        if kind == "error":
            self.stop()
            summary, stack = value
            raise PlayingError(f"the playing process (worker=process) failed: {summary}") from _Remote(
                f"\n{stack}"
            )
        return value

    def _what_it_said_last(self) -> PlayingError:
        """Why nothing more can be sent."""
        try:
            while True:
                self._receive()
        except PlayingError as error:
            return error

    def _death(self) -> PlayingError:
        self._process.join(_STOP_S)
        code = self._process.exitcode
        how = f"exit code {code}" if code is None or code >= 0 else signal.Signals(-code).name
        hint = "; the machine may be out of memory" if code == -signal.SIGKILL else ""
        return PlayingError(f"the playing process (worker=process) died ({how}){hint}")
