"""What a pool is made of: workers that play one share at a time, and whoever opens them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from lit_agentrl.rollout.workers.base import Played
from lit_agentrl.rollout.workers.shares import Share


class PlayingError(RuntimeError):
    """What plays for the trainer failed, died or hung; the message is one line."""


class LostWorker(Exception):
    """A worker is gone, or was ended; another one can play its share.  The message says how it ended."""


class Seat(Protocol):
    """One worker of a pool; one thread talks to it."""

    def play(self, share: Share, load: int, version: int) -> Played:
        """What comes of a share, and the seconds that it took, with the weights of the pool's ``load``-th loading.

        Raises:
            LostWorker: it died, or `kill` was called.
            PlayingError: it failed in a way that would come again.
        """

    @property
    def is_alive(self) -> bool:
        """Whether it can be given a share."""

    @property
    def signs(self) -> int:
        """Changes as long as it gets on with a share."""

    def is_ready(self, seconds: float) -> bool:
        """Wait for it to start, for so long at most.

        Raises:
            LostWorker: it died.
            PlayingError: it failed in a way that would come again.
        """

    def end(self) -> None:
        """Have it stop and close its games, without waiting; from any thread."""

    def kill(self, why: str) -> None:
        """End it at once, even if it hangs; from any thread.  ``why`` is what `LostWorker` then says."""

    def close(self) -> None:
        """End it if it lives, and wait until it has ended."""


class Crew(Protocol):
    """Opens workers and keeps what they are given weights from."""

    name: str

    @property
    def places(self) -> int:
        """How many workers there should be; it may grow."""

    def open(self, number: int) -> Seat:
        """A new worker at this place of the pool; it may still be starting."""

    def write(self, weights: Mapping[str, Tensor]) -> None:
        """The weights that shares are played with from now on; those not named stay."""

    def differing(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """See `Worker`."""

    def close(self) -> None:
        """Give back what all workers share; they are gone by then."""
