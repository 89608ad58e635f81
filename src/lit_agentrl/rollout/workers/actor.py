"""The actor of a Ray worker: an engine and games that play share by share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lit_agentrl.rollout.workers.base import Played
from lit_agentrl.rollout.workers.share_player import SharePlayer
from lit_agentrl.rollout.workers.shares import Share

SentWeights = dict[str, tuple[npt.NDArray[np.uint8], torch.dtype, torch.Size]]


def serialize_weights(weights: dict[str, Tensor]) -> SentWeights:
    """Return CPU weights as bytes, without copies, because numpy lacks some of their types."""
    return {
        name: (tensor.contiguous().reshape(-1).view(torch.uint8).numpy(), tensor.dtype, tensor.shape)
        for name, tensor in weights.items()
    }


def deserialize_weights(weights: SentWeights) -> dict[str, Tensor]:
    """Return the weights of `serialize_weights` as copies.

    The copies lie in memory of torch, because the last bits of products depend on the alignment of memory.
    """
    return {
        name: torch.from_numpy(array.copy()).view(dtype).reshape(shape)
        for name, (array, dtype, shape) in weights.items()
    }


class PlayingActor:
    """A Ray actor that plays with a copy of the network.

    Args:
        payload: Rules, network and forward context, as written by ``torch.save``.
        device: Device of the network.
        threads: Torch threads for each share.
    """

    def __init__(self, payload: bytes, device: str, threads: int) -> None:
        self._signs = 0
        self._player = SharePlayer(payload, device, threads, self._count_sign)

    def _count_sign(self) -> None:
        self._signs += 1

    def play(self, share: Share, load: int, version: int, weights: Sequence[Any], get: Any) -> Played:
        """Play a share.

        Args:
            share: The episodes.
            load: Number of the load; weights are fetched if it differs from that of the last share.
            version: Version of the weights.
            weights: A reference to the weights, inside a list so that Ray does not resolve it on every call.
            get: Resolves the reference.
        """
        return self._player.play(share, load, version, lambda: deserialize_weights(get(weights[0])))

    def get_signs(self) -> int:
        """Return the number of forward passes and replies so far, even during a share."""
        return self._signs

    def close(self) -> None:
        """Close the games and the engine."""
        self._player.close()
