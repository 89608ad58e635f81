"""What a Ray worker runs: an engine and games, which play one share at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lit_agentrl.rollout.workers.base import Played
from lit_agentrl.rollout.workers.playing import Playing
from lit_agentrl.rollout.workers.shares import Share

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
        self._signs = 0
        self._playing = Playing(payload, device, threads, self._tick)

    def _tick(self) -> None:
        self._signs += 1

    def play(self, share: Share, load: int, version: int, weights: Sequence[Any], get: Any) -> Played:
        """What comes of a share.

        Args:
            share: the episodes.
            load: number of the loading; weights are fetched where it is another than that of the last share.
            version: of the weights.
            weights: a reference to them, in a list, so that it is not followed each time.
            get: follows it.
        """
        return self._playing.play(share, load, version, lambda: received(get(weights[0])))

    def signs(self) -> int:
        """Forward passes and replies so far; answered while a share is being played."""
        return self._signs

    def close(self) -> None:
        """Close the games."""
        self._playing.close()
