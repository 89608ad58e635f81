"""A copy of a network's weights that follows it slowly: where the targets of temporal differences come from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class SlowWeights(nn.Module):
    """``slow <- (1 - rate) slow + rate weights``, of the trained weights of a network; DDPG, arXiv 1509.02971.

    They are buffers, so they lie in checkpoints and no optimizer moves them.

    Args:
        network: on its trained weights; it is not held.
        rate: share that each step takes over, in (0, 1]; 1: the weights themselves, to the bit.
    """

    def __init__(self, network: nn.Module, rate: float) -> None:
        super().__init__()
        self._rate = rate
        for number, weight in enumerate(_trained(network)):
            self.register_buffer(str(number), weight.detach().clone())

    @torch.no_grad()
    def follow(self, network: nn.Module) -> None:
        """Take a share of the weights over."""
        for slow, weight in zip(self.buffers(), _trained(network), strict=True):
            slow.lerp_(weight, self._rate)

    @contextmanager
    def in_use(self, network: nn.Module) -> Iterator[None]:
        """Within, the network computes with the slow weights, for passes without gradient; none is copied."""
        self._exchange(network)
        try:
            yield
        finally:
            self._exchange(network)

    def _exchange(self, network: nn.Module) -> None:
        for slow, weight in zip(self.buffers(), _trained(network), strict=True):
            slow.data, weight.data = weight.data, slow.data
        torch.clear_autocast_cache()  # it knows a weight by its object, and not by what it holds


def _trained(network: nn.Module) -> list[Tensor]:
    return [weight for weight in network.parameters() if weight.requires_grad]
