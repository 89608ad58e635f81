"""A process that plays episodes with a snapshot of the weights, while this one trains."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import AbstractContextManager
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

import lit_agentrl.models.packing  # noqa: F401  (registers the attention that a network sent over may name)
from lit_agentrl import seeds
from lit_agentrl.rollout.rules import ForwardContext, Rules
from lit_agentrl.rollout.scheduler import Scheduler, Wave
from lit_agentrl.rollout.workers.base import Played
from lit_agentrl.rollout.workers.weights import SharedWeights, shared_bytes

_SLICE_S = 0.5  # how often a waiting parent looks whether the process still lives
_STOP_S = 5.0  # after which a process that will not end is killed


class PlayingError(RuntimeError):
    """The playing process failed, died or hung; the message is one line."""


class _Remote(Exception):
    """The stack of the other process, shown as the cause."""


class PlayingProcess:
    """Plays one wave at a time with the weights of the last :meth:`load`.

    What comes out depends on waves and weights alone, never on timing.  The process ends with this one, also if
    this one is killed.

    Args:
        rules: how episodes are played; a copy of them is sent over.
        network: structure of the policy; weights are those of :meth:`load`.
        forward_context: the strategy's precision context.
        device: where the process puts its copy of the network; None for that of ``network``.
        threads: that torch may use in it; None for half of those of this process.
        patience: seconds without any reply being finished after which it counts as hung; None for 600.

    Raises:
        ValueError: something cannot be sent to another process, or shared memory is short.
    """

    def __init__(
        self,
        rules: Rules,
        network: PreTrainedModel,
        forward_context: ForwardContext,
        *,
        device: str | None = None,
        threads: int | None = None,
        patience: float | None = None,
    ) -> None:
        rules.require_picklable()
        self.threads = threads or max(1, torch.get_num_threads() // 2)
        self._weights = SharedWeights(network)
        self._ticks = shared_bytes(8).view(torch.int64)
        self._patience = patience or 600.0
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
                "rollout.overlap=true plays in a process of its own, and model or trainer.precision cannot be sent "
                f"there ({type(error).__name__}: {error}); set rollout.overlap=false"
            ) from error
        # in shared memory: start() would wait until the process has read what its arguments hold
        payload = shared_bytes(file.getbuffer().nbytes)
        payload.copy_(torch.frombuffer(file.getbuffer(), dtype=torch.uint8))
        self._process = context.Process(
            target=_serve, name="lit_agentrl-playing", daemon=True,
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
        """End the process, whatever it is doing."""
        self._connection.close()
        self._process.terminate()
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
                    f"the process that plays ahead (rollout.overlap=true) finished no reply for {self._patience:g} s; "
                    "a game may hang (rollout.overlap=false shows where), or raise rollout.overlap_patience"
                )
        try:
            kind, value = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._death() from error
        if kind == "error":
            self.stop()
            summary, stack = value
            raise PlayingError(
                f"the process that plays ahead (rollout.overlap=true) failed: {summary}"
            ) from _Remote(f"\n{stack}")
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
        return PlayingError(f"the process that plays ahead (rollout.overlap=true) died ({how}){hint}")


# ---------------------------------------------------------------------- the other process
def _serve(
    requests: Connection,
    payload: Tensor,
    weights: SharedWeights,
    ticks: Tensor,
    device: torch.device | str,
    threads: int,
) -> None:
    """Answer requests until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both; the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        torch.set_num_threads(threads)
        # weights_only is for files from elsewhere: these are the parent's own objects
        rules, network, forward_context = torch.load(
            io.BytesIO(payload.numpy().tobytes()), map_location=device, weights_only=False
        )
        del payload

        def ticking() -> AbstractContextManager[object]:
            ticks[0] += 1
            context: AbstractContextManager[object] = forward_context()
            return context

        engine = rules.open_engine(network, ticking)
        scheduler = Scheduler(rules, engine)
        while True:
            try:
                kind, value = requests.recv()
            except EOFError:
                return
            if kind == "load":
                engine.load(weights.views(), value)
            else:
                requests.send(("played", _played(rules.seed, scheduler, value)))
    except BaseException as error:
        lines = str(error).strip().splitlines() or [""]
        summary = f"{type(error).__name__}: {lines[0]}"
        requests.send(("error", (summary, traceback.format_exc())))


def _played(seed: int, scheduler: Scheduler, wave: Wave) -> Played:
    started = time.perf_counter()
    # a game should draw from its keyed generator; one that draws from torch's does so repeatably
    torch.manual_seed(seeds.key(seed, "ahead", wave.iteration, wave.number))
    return Played(scheduler.play(wave), time.perf_counter() - started)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
