"""A preallocated key/value store with one slot per live episode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache

from lit_agentrl.engines.native.attention import Layout, find_autocast_dtype

_ALIGNMENT = 64  # bytes, of PyTorch's tensors in host memory


def make_zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Make zeros in host memory, whose pages are taken only when they are written.

    So slots that no episode uses cost nothing.  The address is a multiple of 64, as that of PyTorch's own tensors,
    since the last bits of a product may depend on it.
    """
    size = math.prod(shape) * dtype.itemsize
    raw = np.zeros(size + _ALIGNMENT, dtype=np.uint8)
    begin = -raw.ctypes.data % _ALIGNMENT
    return torch.from_numpy(raw[begin : begin + size]).view(dtype).view(*shape)


class SlotCache(Cache):
    """Key/value buffers of shape (slots, kv heads, length, dim) per layer, written token by token.

    A :class:`Layout` gives the targets of the packed tokens of a forward.  :meth:`update` writes them, executes the
    copies between slots, and returns the whole buffers, which attention reads as views.

    On CPUs half precision is stored as float32 without loss, since attention is faster in it.
    """

    def __init__(self, num_slots: int, max_length: int) -> None:
        super().__init__(layers=[])
        self.num_slots = num_slots
        self.max_length = max_length
        self.layout: Layout | None = None
        self._buffers: list[tuple[Tensor, Tensor]] = []

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store (1, kv heads, N, dim) states of packed tokens; return the layer's buffers."""
        layout = self.layout
        assert layout is not None, "`layout` is set before the forward"
        while len(self._buffers) <= layer_idx:
            self._buffers.append((self._make_buffer(key_states[0]), self._make_buffer(value_states[0])))
        for buffer, states in zip(self._buffers[layer_idx], (key_states, value_states), strict=True):
            places = layout.compute_places(states.shape[1], self.max_length)
            buffer.flatten(0, 2).index_copy_(0, places, states[0].flatten(0, 1).to(buffer.dtype))
            layout.copy_slots(buffer)
        return self._buffers[layer_idx]

    def write(self, layer_idx: int, layout: Layout, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store (N, kv heads, dim) states by one kernel each; return the layer's buffers."""
        while len(self._buffers) <= layer_idx:
            self._buffers.append(
                (self._make_buffer(key.transpose(0, 1)), self._make_buffer(value.transpose(0, 1)))
            )
        for buffer, states in zip(self._buffers[layer_idx], (key, value), strict=True):
            buffer[layout.slot_N, :, layout.position_N] = states.to(buffer.dtype)
            layout.copy_slots(buffer)
        return self._buffers[layer_idx]

    def _make_buffer(self, states: Tensor) -> Tensor:
        """Make the buffer of a layer with (kv heads, N, dim) states."""
        # an extra slot takes the writes of padding
        shape = (self.num_slots + 1, states.shape[0], self.max_length, states.shape[2])
        is_half = states.dtype in (torch.float16, torch.bfloat16)
        if states.device.type == "cpu":
            dtype = torch.float32 if is_half else states.dtype
        else:  # under autocast, attention would cast the whole buffer at each step
            dtype = find_autocast_dtype(states.device) or states.dtype
        return (
            make_zeros(shape, dtype) if states.device.type == "cpu" else states.new_zeros(shape, dtype=dtype)
        )

    @torch.inference_mode()
    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of one slot over another."""
        for pair in self._buffers:
            for buffer in pair:
                buffer[target, :, :length] = buffer[source, :, :length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of visible positions, for models that ask despite explicit positions."""
        return self.layout.max_visible if self.layout is not None else 0


class SecondNetworkCache(Cache):
    """The state of a second network in the slots of a `SlotCache`.

    Its layers follow the ``layers`` of the first network, which must read first.  Moves and copies of slots apply to
    both networks.
    """

    def __init__(self, slots: SlotCache, layers: int) -> None:
        super().__init__(layers=[])
        self._slots, self._layers = slots, layers

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store states in the layers after those of the first network."""
        return self._slots.update(key_states, value_states, self._layers + layer_idx)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._slots.get_seq_length()
