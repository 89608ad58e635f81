"""The parts of a pool: workers that play share by share, and their opener."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from lit_agentrl.rollout.workers.base import Played
from lit_agentrl.rollout.workers.shares import Share


class PlayingError(RuntimeError):
    """A player of the trainer's episodes failed, died or hung; the message is one line."""


class LostWorker(Exception):
    """A worker died or was killed; another one can play its share.

    The message says how the worker ended.
    """


class WorkerHandle(Protocol):
    """One worker of a pool, used by one thread."""

    def play(self, share: Share, load: int, version: int) -> Played:
        """Play a share with the weights of the pool's load number ``load``.

        The result includes the seconds that it took.

        Raises:
            LostWorker: The worker died, or `kill` was called.
            PlayingError: The worker failed in a way that would repeat.
        """

    @property
    def is_alive(self) -> bool:
        """True if the worker can receive a share."""

    @property
    def progress(self) -> int:
        """A number that changes as long as a share makes progress."""

    def is_ready(self, seconds: float) -> bool:
        """Wait at most ``seconds`` until the worker has started; return whether it has.

        Raises:
            LostWorker: The worker died.
            PlayingError: The worker failed in a way that would repeat.
        """

    def end(self) -> None:
        """Request without waiting that the worker ends and closes its games; callable from any thread."""

    def kill(self, why: str) -> None:
        """Kill the worker at once, even if it hangs; callable from any thread.

        ``why`` becomes the message of `LostWorker`.
        """

    def close(self) -> None:
        """End the worker if it is alive, and wait until it has ended."""


class WorkerOpener(Protocol):
    """An opener of workers, which also stores their weights."""

    name: str

    @property
    def num_workers(self) -> int:
        """The intended number of workers; it may grow."""

    def open(self, slot: int) -> WorkerHandle:
        """Open a new worker for this slot of the pool; it may still be starting."""

    def write(self, weights: Mapping[str, Tensor]) -> None:
        """Set the weights of shares from now on; weights that are not named stay."""

    def differing(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return copies of the snapshot's tensors that differ; see `Worker`."""

    def close(self) -> None:
        """Release what all workers share; called after they have ended."""
