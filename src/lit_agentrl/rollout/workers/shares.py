"""Shares, the unit of work of workers: a wave cut by number of prompts alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from lit_agentrl import seeds
from lit_agentrl.rollout.scheduler import Scheduler, Wave
from lit_agentrl.rollout.sync import WeightSync
from lit_agentrl.rollout.workers.base import Played


@dataclass(frozen=True)
class Share:
    """A few whole prompts of a wave.

    The result depends only on the weights and on this object, because an engine plays a share alone, starting empty,
    with ``threads`` of torch.  So no bit depends on which worker plays it, on the number of workers, or on repetitions.

    Attributes:
        number: Number of the share among those of the wave.
        wave: Episodes of the share, in the order of the whole wave.
        key: Seed of torch's generator, for games that draw from it.
    """

    number: int
    wave: Wave
    key: int


def cut_wave(wave: Wave, size: int | None, seed: int) -> list[Share]:
    """Cut a wave into shares of ``size`` groups, in the order in which groups appear.

    Greedy episodes stay with their group.

    Args:
        wave: Episodes that are played together.
        size: Prompts of a share; None for one share of the whole wave.
        seed: Seed of the run.
    """
    if size is None:
        return [Share(0, wave, seeds.make_key(seed, "ahead", wave.iteration, wave.number))]
    index_of: dict[int, int] = {}
    for spec in wave.specs:
        index_of.setdefault(spec.group, len(index_of))
    parts = [
        tuple(spec for spec in wave.specs if index_of[spec.group] // size == number)
        for number in range(-(-len(index_of) // size))
    ]
    return [
        Share(
            number, replace(wave, specs=specs),
            # the group, not the share's number, because each rank cuts its own waves
            seeds.make_key(seed, "share", wave.iteration, wave.number, specs[0].group),
        )
        for number, specs in enumerate(parts)
    ]  # fmt: skip


def join_shares(wave: Wave, shares: Sequence[Share], played: Mapping[int, Played]) -> Played:
    """Join the results of shares in the order of the wave; leave seconds at 0."""
    episodes = {
        spec: episode
        for share in shares
        for spec, episode in zip(share.wave.specs, played[share.number].episodes, strict=True)
    }
    metrics: dict[str, float] = {}
    for name, value in (item for result in played.values() for item in result.metrics.items()):
        metrics[name] = max(value, metrics.get(name, value))
    used: Counter[str] = Counter()
    for result in played.values():
        used.update(result.used)
    return Played([episodes[spec] for spec in wave.specs], metrics=metrics, used=used)


def play_share(share: Share, sync: WeightSync, scheduler: Scheduler, version: int) -> Played:
    """Play a share with the loaded weights of this version on an emptied engine."""
    sync.load(None, version)
    metrics = sync.probe(share.wave.params)
    with _seed_torch(share.key):
        return Played(scheduler.play(share.wave), metrics=metrics, used=sync.measure_usage())


@contextmanager
def _seed_torch(key: int) -> Iterator[None]:
    """Seed torch's generator within the context, and restore it afterwards.

    Games should draw from their keyed generator; with this, those that draw from torch's are repeatable and leave no
    trace.
    """
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(key)
    try:
        yield
    finally:
        torch.set_rng_state(before)


@contextmanager
def use_torch_threads(number: int) -> Iterator[None]:
    """Compute with ``number`` torch threads within the context."""
    before = torch.get_num_threads()
    if before == number:
        yield
        return
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
