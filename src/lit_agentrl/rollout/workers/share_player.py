"""The core of a worker process: an engine and games, built from the trainer's data."""

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


class SharePlayer:
    """A player of one share at a time with a copy of the network.

    Args:
        payload: Rules, network and forward context, as written by ``torch.save``.
        device: Device of the network.
        threads: Torch threads for each share.
        tick: Called as a sign of life at each forward pass and at each reply, which a server may have computed.
    """

    def __init__(
        self, payload: bytes, device: torch.device | str, threads: int, tick: Callable[[], None]
    ) -> None:
        self._threads = threads
        torch.set_num_threads(threads)
        if (place := torch.device(device)).type == "cuda" and place.index is not None:
            torch.cuda.set_device(place)  # else vLLM, and whatever names no device, would take the first GPU
        # weights_only is for files from other sources: these are the trainer's own objects
        rules, network, forward_context = torch.load(
            io.BytesIO(payload), map_location=device, weights_only=False
        )

        def enter_context() -> AbstractContextManager[object]:
            tick()
            context: AbstractContextManager[object] = forward_context()
            return context

        self._engine = engine = rules.open_engine(network, enter_context)
        self._sync = WeightSync(engine, network, rules, forward_context)
        self._scheduler = Scheduler(rules, engine, tick)
        self._loaded: int | None = None

    def play(
        self, share: Share, load: int, version: int, weights: Callable[[], Mapping[str, Tensor]]
    ) -> Played:
        """Play a share.

        Args:
            share: The episodes.
            load: Number of the load; weights are fetched if it differs from that of the last share.
            version: Version of the weights.
            weights: Fetches the weights.
        """
        started = time.perf_counter()
        torch.set_num_threads(self._threads)  # per thread, and this may be another one
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
