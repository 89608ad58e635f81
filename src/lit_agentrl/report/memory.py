"""Peak memory of tensors.

On CUDA it is read from the allocator; elsewhere the storages that operations create are counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary


def measure_peak(work: Callable[[], None], held: Sequence[Tensor], device: torch.device) -> float:
    """Measure the most bytes alive at once while ``work`` runs, ``held`` included."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        work()
        return float(torch.cuda.max_memory_allocated(device))
    with StorageCounter(held) as counter:
        work()
    return float(counter.peak)


class StorageCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that counts the bytes of all storages until they are freed."""

    def __init__(self, held: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive = self.peak = 0
        self._seen: WeakIdKeyDictionary = WeakIdKeyDictionary()
        for tensor in held:
            self._add(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tree_map_only(Tensor, self._add, result)
        return result

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage in self._seen:
            return
        self._seen[storage] = size = storage.nbytes()
        self.alive += size
        self.peak = max(self.peak, self.alive)
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self.alive -= size
