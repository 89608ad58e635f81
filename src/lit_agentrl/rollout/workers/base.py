"""The door of workers: where the episodes of a wave are played."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from lit_agentrl.episode import Episode
from lit_agentrl.rollout.scheduler import Wave


@dataclass(frozen=True)
class Played:
    """The episodes of a wave, in its order, and how long they took elsewhere (s; 0 where this process played)."""

    episodes: list[Episode]
    seconds: float = 0.0


class Worker(Protocol):
    """Plays one wave at a time with a snapshot of the weights; what comes out depends on these two alone.

    Attributes:
        threads: that it keeps busy on this machine's cores while it plays.
    """

    threads: int

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Play later waves with these weights; those that are not named stay.  Only between waves."""

    def submit(self, wave: Wave) -> None:
        """Have these episodes played; this may return before they are."""

    def take(self) -> Played:
        """What was submitted, once it is complete."""

    def differing(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies of what in the snapshot is not equal to these weights: what training has moved since."""

    def stop(self) -> None:
        """Give back what it holds, whatever it is doing."""


def play(worker: Worker, wave: Wave) -> Played:
    """Submitted and awaited."""
    worker.submit(wave)
    return worker.take()
