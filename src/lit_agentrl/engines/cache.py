"""A preallocated key/value store with one slot per live episode."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache


class SlotCache(Cache):
    """Key/value buffers of shape (slots, length, heads, dim) per layer, written at ragged positions.

    A forward names the slots that its rows belong to and the positions of their tokens
    (:meth:`select`); :meth:`update` then writes only real tokens and hands attention the filled part of
    those slots.  Rows in use are kept at the front (:meth:`move`), so decoding reads a view, not a copy.
    """

    def __init__(self, num_slots: int, max_length: int) -> None:
        super().__init__(layers=[])
        self.num_slots = num_slots
        self.max_length = max_length
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._rows: Tensor | slice = slice(0)
        self._write: tuple[Tensor, Tensor] | None = None
        self._source: tuple[Tensor, Tensor] | None = None
        self._filled = 0

    def select(
        self,
        rows: Tensor | slice,
        *,
        write: tuple[Tensor, Tensor],
        source: tuple[Tensor, Tensor],
        filled: int,
    ) -> None:
        """Aim the next forward.

        Args:
            rows: slots of the batch rows; a slice reads a view.
            write: slot and position of every real token of the forward.
            source: batch row and column of these tokens.
            filled: how many positions attention must see.
        """
        self._rows, self._write, self._source, self._filled = rows, write, source, filled

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store the real tokens of (batch, heads, query, dim) states; return the selected slots' states."""
        assert self._write is not None and self._source is not None, "select() comes before the forward"
        while len(self._keys) <= layer_idx:
            for buffers, states in ((self._keys, key_states), (self._values, value_states)):
                heads, dim = states.shape[1], states.shape[3]
                buffers.append(states.new_zeros((self.num_slots, self.max_length, heads, dim)))
        seen = slice(0, self._filled)
        outputs = []
        for buffer, states in (
            (self._keys[layer_idx], key_states),
            (self._values[layer_idx], value_states),
        ):
            buffer[self._write] = states.transpose(1, 2)[self._source]
            outputs.append(buffer[self._rows, seen].transpose(1, 2))
        return outputs[0], outputs[1]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy one slot over another (the first ``length`` positions)."""
        for buffer in (*self._keys, *self._values):
            buffer[target, :length] = buffer[source, :length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions are passed explicitly; models that ask anyway get the filled length."""
        return self._filled

    def clear(self) -> None:
        """Release the buffers (they are allocated anew at the next forward)."""
        self._keys, self._values = [], []
