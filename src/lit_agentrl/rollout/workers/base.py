"""The door of workers: where the episodes of a wave are played."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

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
    """The episodes of a wave, in its order.

    Attributes:
        seconds: that they took elsewhere; 0 where this process played.
        row: what is logged of the engine that wrote them, such as how well it has the weights.
        used: what the engine was asked for, by name, see `MeteredEngine`.
        counts: logged as ``worker/NAME``, summed over the waves of an iteration and over ranks; the same names always.
    """

    episodes: list[Episode]
    seconds: float = 0.0
    row: dict[str, float] = field(default_factory=dict)
    used: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, float] = field(default_factory=dict)


class Worker(Protocol):
    """Plays one wave at a time with a snapshot of the weights; what comes out depends on these two alone.

    Attributes:
        threads: that it keeps busy while the trainer trains; 0 if it plays in this process, when asked.
    """

    threads: int

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Play later waves with these weights; those that are not named stay.  Only between waves."""

    def submit(self, wave: Wave) -> None:
        """Have these episodes played; this may return before they are."""

    def take(self) -> Played:
        """What was submitted, once it is complete."""

    def differing(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies of what in the snapshot is not equal to these weights; see `weights.differing`."""

    def stop(self) -> None:
        """Give back what it holds, whatever it is doing."""


class WorkerSettings(ABC):
    """What ``worker=NAME`` describes: options, which it checks when it is made, and how to open such a worker.

    Attributes:
        share: prompts that are played together, see `shares.Share`; None: whole waves.
        threads: of torch, with which a share is played; None for 1.
        place: ``"here"``: no worker is opened; ``"rank"``: each process of a run opens its own.
    """

    share: int | None = None
    threads: int | None = None
    place: ClassVar[Literal["here", "rank"]] = "rank"

    def check(self, rules: Rules) -> None:
        """Find what such a worker cannot play, before anything starts.

        Raises:
            ValueError: naming the option and the remedy.
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
        """A worker, which is given weights before it plays.

        Args:
            rules: how episodes are played.
            network: the trainer's, which is to stay as it is; its structure is the policy's.
            forward_context: the strategy's precision context.
            is_ahead: whether it plays while the trainer trains, which leaves it some cores; otherwise the trainer
                waits, and what it plays is to be what this process would, to the bit where that is possible.
        """


def play(worker: Worker, wave: Wave) -> Played:
    """Submitted and awaited."""
    worker.submit(wave)
    return worker.take()


def counted(played: Sequence[Played]) -> dict[str, float]:
    """What workers counted, over waves and ranks, as ``worker/NAME``; collective."""
    names = sorted({name for each in played for name in each.counts})
    if not names:
        return {}
    own = torch.tensor(
        [sum(each.counts.get(name, 0.0) for each in played) for name in names], dtype=torch.float64
    )
    return {f"worker/{name}": value for name, value in zip(names, sum_over_ranks(own).tolist(), strict=True)}


def used_by_all(played: Sequence[Played]) -> dict[str, float]:
    """What the engines of all ranks were asked for; collective."""
    own: Counter[str] = Counter()
    for each in played:
        own.update(each.used)
    if not int(sum_over_ranks(torch.tensor(len(own)))):  # which all ranks find alike
        return {}
    total: Counter[str] = Counter()
    for of_rank in gather_objects([dict(own)]):
        total.update(of_rank)
    return dict(total)
