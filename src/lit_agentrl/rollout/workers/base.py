"""The interface of workers, which play the episodes of a wave."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lit_agentrl.distributed import gather_objects, sum_over_ranks
from lit_agentrl.episode import Episode
from lit_agentrl.requirements import Fact, Requirement
from lit_agentrl.rollout.rules import ForwardContext, Rules
from lit_agentrl.rollout.scheduler import Wave


@dataclass(frozen=True)
class Played:
    """The episodes of a wave, in its order, with measurements.

    Attributes:
        seconds: Seconds that the episodes took in another process; 0 if this process played.
        metrics: Logged measurements of the engine, such as the gap of its log-probs to the trainer's.
        used: Usage of the engine by name, see `MeteredEngine`.
        counts: Logged as ``worker/NAME``, summed over the waves of an iteration and over ranks; always the same names.
    """

    episodes: list[Episode]
    seconds: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    used: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, float] = field(default_factory=dict)


Play = Callable[[Wave, int], Played]  # plays a wave with the weights of a version


class Worker(Protocol):
    """A player of one wave at a time with a snapshot of the weights.

    Its episodes depend only on the wave and the snapshot.

    Attributes:
        threads: CPU threads that it uses while the trainer trains; 0 if it plays in this process on request.
    """

    threads: int

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Play later waves with these weights, others unchanged; called only between waves."""

    def submit(self, wave: Wave) -> None:
        """Request the episodes of a wave; may return before they are played."""

    def take(self) -> Played:
        """Return the submitted wave once it is complete."""

    def differing(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return copies of the snapshot's tensors that differ from these weights; see `weights.differing`."""

    def stop(self) -> None:
        """Release all resources, whatever the worker is doing."""


class WorkerSettings(ABC):
    """Options of ``worker=NAME``, checked when created, and the constructor of the worker.

    Attributes:
        share: Prompts that are played together, see `shares.Share`; None for whole waves.
        threads: Torch threads that play a share; None for 1.
        opens_worker: Whether each process of a run opens a worker; otherwise the trainer plays itself.
    """

    share: int | None = None
    threads: int | None = None
    opens_worker: ClassVar[bool] = True
    renamed_members: ClassVar[Mapping[str, str]] = {"place": "opens_worker"}  # names of 0.2

    def check(self, rules: Rules) -> None:
        """Check that the worker can play by these rules, before anything starts.

        Raises:
            ValueError: The worker cannot; the message names the option and the remedy.
        """
        return None

    @property
    def requires(self) -> Iterable[Fact | Requirement]:
        """Facts that other parts of the run must provide."""
        return ()

    @abstractmethod
    def open(
        self, rules: Rules, network: PreTrainedModel, forward_context: ForwardContext, *, is_ahead: bool
    ) -> Worker:
        """Open a worker, which receives weights before it plays.

        Args:
            rules: Rules by which episodes are played.
            network: The trainer's network, which must not change; it has the structure of the policy.
            forward_context: Precision context of the strategy.
            is_ahead: Whether the worker plays while the trainer trains, which leaves it some cores; otherwise the
                trainer waits, and the worker must return what this process would play, bit by bit where possible.
        """


def play_wave(worker: Worker, wave: Wave) -> Played:
    """Submit a wave and wait for its episodes."""
    worker.submit(wave)
    return worker.take()


def sum_counts(played: Sequence[Played]) -> dict[str, float]:
    """Return the counts of workers as ``worker/NAME``, summed over waves and ranks; collective."""
    names = sorted({name for result in played for name in result.counts})
    if not names:
        return {}
    own_counts = torch.tensor(
        [sum(result.counts.get(name, 0.0) for result in played) for name in names], dtype=torch.float64
    )
    return {
        f"worker/{name}": value
        for name, value in zip(names, sum_over_ranks(own_counts).tolist(), strict=True)
    }


def sum_usage(played: Sequence[Played]) -> dict[str, float]:
    """Return the usage of the engines of all ranks; collective."""
    own_usage: Counter[str] = Counter()
    for result in played:
        own_usage.update(result.used)
    if not int(sum_over_ranks(torch.tensor(len(own_usage)))):  # equal on all ranks
        return {}
    total: Counter[str] = Counter()
    for rank_usage in gather_objects([dict(own_usage)]):
        total.update(rank_usage)
    return dict(total)
