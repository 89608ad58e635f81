"""A snapshot of a network's weights in memory that two processes share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lit_agentrl.models.policy import get_named_weights

_ALIGNMENT = 64  # bytes


def allocate_shared(size: int) -> Tensor:
    """Allocate zeroed memory that child processes can access as well.

    Raises:
        ValueError: The machine does not have that much shared memory left.
    """
    try:
        shared: Tensor = torch.zeros(max(size, 1), dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise ValueError(
            f"worker=process needs {size / 1e6:.0f} MB of shared memory for a copy of the weights "
            f"({str(error).splitlines()[0]}); make /dev/shm larger, or set worker=none rollout.overlap=false"
        ) from error
    return shared


@dataclass(frozen=True)
class _Entry:
    shape: torch.Size
    dtype: torch.dtype
    start: int  # bytes

    @property
    def size(self) -> int:
        return self.shape.numel() * self.dtype.itemsize


class SharedWeights:
    """One buffer of shared memory with room for the weights of a network.

    It is one buffer because every shared tensor uses a file descriptor.  A pickled copy that is sent to a child process
    of ``multiprocessing`` refers to the same memory.

    Args:
        network: Network that gives names, shapes and types; nothing is copied yet.

    Raises:
        ValueError: The machine does not have that much shared memory left.
    """

    def __init__(self, network: nn.Module) -> None:
        self._entries: dict[str, _Entry] = {}
        total = 0
        for name, tensor in get_named_weights(network).items():
            self._entries[name] = entry = _Entry(tensor.shape, tensor.dtype, total)
            total += -(-entry.size // _ALIGNMENT) * _ALIGNMENT
        self._bytes = allocate_shared(total)

    def get_views(self) -> dict[str, Tensor]:
        """Return views of the snapshot; later writes are visible in them."""
        return {
            name: self._bytes[entry.start : entry.start + entry.size].view(entry.dtype).view(entry.shape)
            for name, entry in self._entries.items()
        }

    def write(self, weights: Mapping[str, Tensor]) -> None:
        """Copy weights in; weights that are not named keep their value."""
        views = self.get_views()
        for name, tensor in weights.items():
            views[name].copy_(tensor)

    def differing(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return copies of the tensors that differ; see `differing`."""
        return differing(self.get_views(), weights)


def differing(snapshot: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of the snapshot's tensors that differ from these weights.

    They are the weights that training has changed since the snapshot.
    """
    return {
        name: tensor.clone()
        for name, tensor in snapshot.items()
        if not torch.equal(tensor, weights[name].to(tensor.device))
    }
