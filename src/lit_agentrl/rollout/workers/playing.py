"""What every worker of its own runs: an engine and games, made of what the trainer has sent."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor

import lit_agentrl.models.packing  # noqa: F401  (registers the attention that a network sent over may name)
from lit_agentrl.rollout.scheduler import Scheduler
from lit_agentrl.rollout.sync import WeightSync
from lit_agentrl.rollout.workers.base import Played
from lit_agentrl.rollout.workers.shares import Share, play_share


class Playing:
    """Plays one share at a time with a copy of the network.

    Args:
        payload: rules, network and forward context, as written by ``torch.save``.
        device: of the network.
        threads: of torch, for each share.
        tick: called at each forward, and at each reply, which a server may have computed: a sign of life.
    """

    def __init__(
        self, payload: bytes, device: torch.device | str, threads: int, tick: Callable[[], None]
    ) -> None:
        self._threads = threads
        torch.set_num_threads(threads)
        # weights_only is for files from elsewhere: these are the trainer's own objects
        rules, network, forward_context = torch.load(
            io.BytesIO(payload), map_location=device, weights_only=False
        )

        def ticking() -> AbstractContextManager[object]:
            tick()
            context: AbstractContextManager[object] = forward_context()
            return context

        self._engine = engine = rules.open_engine(network, ticking)
        self._sync = WeightSync(engine, network, rules, forward_context)
        self._scheduler = Scheduler(rules, engine, tick)
        self._loaded: int | None = None

    def play(
        self, share: Share, load: int, version: int, weights: Callable[[], Mapping[str, Tensor]]
    ) -> Played:
        """What comes of a share.

        Args:
            share: the episodes.
            load: number of the loading; weights are fetched where it is another than that of the last share.
            version: of the weights.
            weights: fetches them.
        """
        started = time.perf_counter()
        torch.set_num_threads(self._threads)  # a number of each thread, and this need not be the first one
        if load != self._loaded:
            self._sync.load(weights(), version)
            self._loaded = load
        played = play_share(share, self._sync, self._scheduler, version)
        return replace(played, seconds=time.perf_counter() - started)

    def close(self) -> None:
        """Close the games and the engine."""
        try:
            self._scheduler.close()
        finally:
            self._engine.stop()
