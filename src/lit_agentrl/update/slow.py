"""Slowly updated copy of a network's weights for temporal-difference targets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class SlowWeights(nn.Module):
    """Slow copy of the trained weights of a network; DDPG, arXiv 1509.02971.

    Each step sets ``slow <- (1 - rate) slow + rate weights``.  The copies are buffers: checkpoints hold them, and no
    optimizer changes them.

    Args:
        network: its trained weights are copied; no reference to it is kept.
        rate: share of the current weights in each step, in (0, 1]; with 1 the copies equal them bit-exactly.
    """

    def __init__(self, network: nn.Module, rate: float) -> None:
        super().__init__()
        self._rate = rate
        for number, weight in enumerate(_list_trained(network)):
            self.register_buffer(str(number), weight.detach().clone())

    @torch.no_grad()
    def follow(self, network: nn.Module) -> None:
        """Move the slow weights towards the network's by ``rate``."""
        for slow, weight in zip(self.buffers(), _list_trained(network), strict=True):
            slow.lerp_(weight, self._rate)

    @contextmanager
    def use(self, network: nn.Module) -> Iterator[None]:
        """Run the network with the slow weights inside, without gradient and without copies."""
        self._exchange(network)
        try:
            yield
        finally:
            self._exchange(network)

    def _exchange(self, network: nn.Module) -> None:
        for slow, weight in zip(self.buffers(), _list_trained(network), strict=True):
            slow.data, weight.data = weight.data, slow.data
        torch.clear_autocast_cache()  # it is keyed by the weight object, not by its content


def _list_trained(network: nn.Module) -> list[Tensor]:
    return [weight for weight in network.parameters() if weight.requires_grad]
