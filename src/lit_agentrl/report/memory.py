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

from lit_agentrl.distributed import get_world_size, max_over_ranks


def measure_peak(work: Callable[[], None], held: Sequence[Tensor], device: torch.device) -> float:
    """Measure the most bytes alive at once while ``work`` runs, ``held`` included."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        work()
        return float(torch.cuda.max_memory_allocated(device))
    with StorageCounter(held) as counter:
        work()
    return float(counter.peak)


def read_peaks(device: torch.device) -> dict[str, float]:
    """Read the peaks of a GPU's memory since the last call; a collective.

    Returns:
        The largest peaks of all ranks, in GiB: of tensors, and of what the allocator holds for them; empty on a CPU.
    """
    if device.type != "cuda":
        return {}
    read = torch.cuda.max_memory_allocated, torch.cuda.max_memory_reserved
    # a single process does not wait for the GPU
    place = device if get_world_size() > 1 else torch.device("cpu")
    peaks = torch.tensor([float(each(device)) for each in read], device=place)
    torch.cuda.reset_peak_memory_stats(device)
    allocated, reserved = (max_over_ranks(peaks) / 2**30).tolist()
    return {"memory/allocated_gib": allocated, "memory/reserved_gib": reserved}


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
