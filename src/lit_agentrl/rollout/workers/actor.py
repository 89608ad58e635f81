"""What a Ray worker runs: an engine and games, which play one share at a time."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import lit_agentrl.models.packing  # noqa: F401  (registers the attention that a network sent over may name)
from lit_agentrl.rollout.scheduler import Scheduler
from lit_agentrl.rollout.sync import WeightSync
from lit_agentrl.rollout.workers.base import Played
from lit_agentrl.rollout.workers.shares import Share, play_share

Sent = dict[str, tuple[npt.NDArray[np.uint8], torch.dtype, torch.Size]]


def sent(weights: dict[str, Tensor]) -> Sent:
    """Weights as bytes, for types that numpy lacks; on the CPU already, and not copied."""
    return {
        name: (tensor.contiguous().reshape(-1).view(torch.uint8).numpy(), tensor.dtype, tensor.shape)
        for name, tensor in weights.items()
    }


def received(weights: Sent) -> dict[str, Tensor]:
    """Inverse of `sent`; copies, which lie in torch's own memory: bits depend on where numbers lie."""
    return {
        name: torch.from_numpy(array.copy()).view(dtype).reshape(shape)
        for name, (array, dtype, shape) in weights.items()
    }


class PlayingActor:
    """Plays with a copy of the network.

    Args:
        payload: rules, network and forward context, as written by ``torch.save``.
        device: of the network.
        threads: of torch, for each share.
    """

    def __init__(self, payload: bytes, device: str, threads: int) -> None:
        self._threads = threads
        self._signs = 0
        torch.set_num_threads(threads)
        # weights_only is for files from elsewhere: these are the trainer's own objects
        rules, network, forward_context = torch.load(
            io.BytesIO(payload), map_location=device, weights_only=False
        )

        def ticking() -> AbstractContextManager[object]:
            self._signs += 1
            context: AbstractContextManager[object] = forward_context()
            return context

        engine = rules.open_engine(network, ticking)
        self._sync = WeightSync(engine, network, rules, forward_context)
        self._scheduler = Scheduler(rules, engine)
        self._loaded: int | None = None

    def play(self, share: Share, load: int, version: int, weights: Sequence[Any], get: Any) -> Played:
        """What comes of a share.

        Args:
            share: the episodes.
            load: number of the loading; weights are fetched where it is another than that of the last share.
            version: of the weights.
            weights: a reference to them, in a list, so that it is not followed each time.
            get: follows it.
        """
        started = time.perf_counter()
        torch.set_num_threads(self._threads)  # a number of each thread, and this need not be the first one
        if load != self._loaded:
            self._sync.load(received(get(weights[0])), version)
            self._loaded = load
        played = play_share(share, self._sync, self._scheduler, version)
        return replace(played, seconds=time.perf_counter() - started)

    def signs(self) -> int:
        """Forward passes so far; answered while a share is being played."""
        return self._signs

    def close(self) -> None:
        """Close the games."""
        self._scheduler.close()
