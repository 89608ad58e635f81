"""Shares: the unit of work of those who play for a run, cut from a wave by number alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from lit_agentrl import seeds
from lit_agentrl.checks import require_whole
from lit_agentrl.rollout.scheduler import Scheduler, Wave
from lit_agentrl.rollout.sync import WeightSync
from lit_agentrl.rollout.workers.base import Played


@dataclass(frozen=True)
class Share:
    """A few whole prompts of a wave.

    What comes of it depends on the weights and on this object alone: an engine plays it by itself, beginning empty,
    and with ``threads`` of torch.  So no bit depends on who plays it, beside how many others, or how often.

    Attributes:
        number: of the wave's shares.
        wave: its episodes, in the wave's order.
        key: of torch's generator, for games that draw from it.
    """

    number: int
    wave: Wave
    key: int


def cut(wave: Wave, size: int | None, seed: int) -> list[Share]:
    """The shares of a wave: ``size`` groups each, greedy siblings included, in the order in which groups appear.

    Args:
        wave: episodes that are wanted together.
        size: prompts of a share; None: the whole wave is one.
        seed: of the run.
    """
    if size is None:
        return [Share(0, wave, seeds.make_key(seed, "ahead", wave.iteration, wave.number))]
    place: dict[int, int] = {}
    for spec in wave.specs:
        place.setdefault(spec.group, len(place))
    parts = [
        tuple(spec for spec in wave.specs if place[spec.group] // size == number)
        for number in range(-(-len(place) // size))
    ]
    return [
        Share(
            number, replace(wave, specs=specs),
            # the group, not the share's number: ranks cut waves of their own
            seeds.make_key(seed, "share", wave.iteration, wave.number, specs[0].group),
        )
        for number, specs in enumerate(parts)
    ]  # fmt: skip


def joined(wave: Wave, shares: Sequence[Share], played: Mapping[int, Played]) -> Played:
    """A wave in its order, from what came of each share by its number; seconds are left to the caller."""
    found = {
        spec: episode
        for share in shares
        for spec, episode in zip(share.wave.specs, played[share.number].episodes, strict=True)
    }
    row: dict[str, float] = {}
    for name, value in (item for each in played.values() for item in each.row.items()):
        row[name] = max(value, row.get(name, value))
    used: Counter[str] = Counter()
    for each in played.values():
        used.update(each.used)
    return Played([found[spec] for spec in wave.specs], row=row, used=used)


def play_share(share: Share, sync: WeightSync, scheduler: Scheduler, version: int) -> Played:
    """What comes of a share, with the weights of this version, which were loaded; the engine forgets all else."""
    sync.load(None, version)
    row = sync.probed(share.wave.params)
    with _drawing(share.key):
        return Played(scheduler.play(share.wave), row=row, used=sync.used())


@contextmanager
def _drawing(key: int) -> Iterator[None]:
    """A game should draw from its keyed generator; one that draws from torch's does so repeatably, without trace."""
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(key)
    try:
        yield
    finally:
        torch.set_rng_state(before)


@contextmanager
def threads_of_torch(number: int) -> Iterator[None]:
    """Compute with so many threads within."""
    before = torch.get_num_threads()
    if before == number:
        yield
        return
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_shares(share: int | None, threads: int | None) -> None:
    """Check these options of a worker.

    Raises:
        ValueError: not a whole number >= 1.
    """
    if share is not None:
        require_whole("share", share, 1)
    if threads is not None:
        require_whole("threads", threads, 1, 1024)
