"""Attention of packed tokens over the slots of a `SlotCache`.

The engine reads the tokens of many episodes as one row without padding.  Everything but attention is
independent per token, so only attention needs the slot of each token; a :class:`Layout` gives it.  The function is
registered with transformers, so any model that takes its attention from ``ALL_ATTENTION_FUNCTIONS`` can be served.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "lit_agentrl_slots"


def find_autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return the precision of autocast on this device, or None where it is off."""
    kind = device.type
    is_on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if is_on else None


class UnusualAttentionError(ValueError):
    """Error of a model whose attention needs a feature that slots do not support."""


@dataclass
class Visible:
    """The positions that each query sees.

    The additive mask is built once and shared by all layers.
    """

    sees: Tensor  # bool
    _additive: Tensor | None = None

    def as_additive(self, like: Tensor) -> Tensor:
        """Return the additive mask: 0 for visible positions, -inf elsewhere."""
        if self._additive is None or self._additive.dtype != like.dtype:
            zeros = torch.zeros(self.sees.shape, dtype=like.dtype, device=like.device)
            self._additive = zeros.masked_fill_(~self.sees, float("-inf"))
        return self._additive


@dataclass
class Chunk:
    """All unread tokens but the last of each of P episodes of similar lengths.

    They are padded to M in attention only.
    """

    slots_P: Tensor | slice
    index_PM: Tensor  # packed token of each query; arbitrary at padding
    real_C: Tensor  # flat indices into index_PM of the queries without padding; their tokens are contiguous
    start: int  # packed index of the first of these tokens
    length: int  # largest number of positions that a query sees
    sees_PML: Tensor  # bool

    def __post_init__(self) -> None:
        self._by_groups: dict[int, Visible] = {}

    def get_visible(self, groups: int) -> Visible:
        """Return the mask for ``groups`` query heads per key/value head, stacked along the queries."""
        if groups not in self._by_groups:
            self._by_groups[groups] = Visible(self.sees_PML.repeat(1, groups, 1).unsqueeze(1))
        return self._by_groups[groups]


@dataclass(kw_only=True)
class Layout(ABC):
    """The slots to which one forward writes its packed tokens, and what their queries see.

    Args:
        slot_N, position_N: Target slot and position of each packed token's key and value.
        num_last: Number of tokens at the end that need logits.
        max_visible: Largest number of positions that a query sees.
    """

    slot_N: Tensor
    position_N: Tensor
    num_last: int
    max_visible: int

    def __post_init__(self) -> None:
        self._places: dict[tuple[int, int], Tensor] = {}

    def compute_places(self, kv_heads: int, length: int) -> Tensor:
        """Return the matrix rows (kv heads x N) to which keys or values are written.

        Rows are ordered head by head; the store (slots, kv heads, length, dim) is seen as a matrix with rows of size
        dim.
        """
        if (kv_heads, length) not in self._places:
            first_N = self.slot_N * (kv_heads * length) + self.position_N
            heads = torch.arange(kv_heads, device=first_N.device) * length
            self._places[kv_heads, length] = (heads.unsqueeze(1) + first_N).flatten()
        return self._places[kv_heads, length]

    @abstractmethod
    def copy_slots(self, buffer: Tensor) -> None:
        """Copy states between slots of (slots, kv heads, length, dim), after a layer's writes."""

    @abstractmethod
    def attend(self, query_NKGD: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """Compute attention over the store (slots, kv heads, length, dim).

        Each key/value head serves G query heads.

        Returns:
            (N, kv heads, G, dim).
        """


@dataclass(kw_only=True)
class MaskedLayout(Layout):
    """A layout of the tokens of many episodes, with a mask for each query.

    The packed tokens are, in this order: padding, the tokens of ``chunks``, and the last unread token of each
    episode that is read, by ascending slot.  Only the last tokens need logits.

    Args:
        num_rows: Number of leading slots that hold live episodes.
        last_sees_R: For each live slot, the positions that its last token sees (R, 1, 1, max_visible).
        last_R: For each live slot, its index among the ``num_last`` queries; None if all live slots are read.
        rows_of_last: Inverse of ``last_R``.
        chunks: The tokens before the last ones.
        num_padding: Number of leading tokens that belong to no episode.
        copies: (source slot, target slots, length), executed in order after the writes of a layer.
    """

    num_rows: int
    last_sees_R: Visible
    last_R: Tensor | None = None
    rows_of_last: Tensor | None = None
    chunks: Sequence[Chunk] = ()
    num_padding: int = 0
    copies: Sequence[tuple[int, Tensor, int]] = ()

    def copy_slots(self, buffer: Tensor) -> None:
        """See `Layout`."""
        for source, targets, length in self.copies:
            buffer[targets, :, :length] = buffer[source, :, :length]

    def attend(self, query_NKGD: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """See `Layout`; all last tokens take one call, and each chunk takes another."""
        total, kv_heads, groups, _ = query_NKGD.shape
        if total == self.num_last:
            return self._attend_last(query_NKGD, key, value, scaling)
        out_NKGD = query_NKGD.new_empty((*query_NKGD.shape[:3], value.shape[3]))
        out_NKGD[: self.num_padding] = 0.0
        first_last = total - self.num_last
        out_NKGD[first_last:] = self._attend_last(query_NKGD[first_last:], key, value, scaling)
        for chunk in self.chunks:
            rows_P, tokens_M = chunk.index_PM.shape
            seen = slice(0, chunk.length)
            out = scaled_dot_product_attention(
                query_NKGD[chunk.index_PM]
                .permute(0, 2, 3, 1, 4)
                .reshape(rows_P, kv_heads, groups * tokens_M, -1),
                key[chunk.slots_P, :, seen],
                value[chunk.slots_P, :, seen],
                attn_mask=chunk.get_visible(groups).as_additive(query_NKGD),
                scale=scaling,
            )
            out = out.view(rows_P, kv_heads, groups, tokens_M, -1).permute(0, 3, 1, 2, 4)
            out = out.reshape(rows_P * tokens_M, kv_heads, groups, -1)
            out_NKGD[chunk.start : chunk.start + len(chunk.real_C)] = out[chunk.real_C]
        return out_NKGD

    def _attend_last(self, last_NKGD: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """Compute attention (num_last, kv heads, G, dim) of each episode's last unread token."""
        if self.last_R is not None:
            last_NKGD = last_NKGD[self.last_R]
        # the query heads of a group are queries of one key/value head
        keys = key[: self.num_rows, :, : self.max_visible]
        values = value[: self.num_rows, :, : self.max_visible]
        attend_rows = attend_by_products if last_NKGD.device.type == "cpu" else attend
        out = attend_rows(last_NKGD, keys, values, self.last_sees_R.as_additive(last_NKGD), scaling)
        return out if self.rows_of_last is None else out[self.rows_of_last]


def attend_slots(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    scaling: float | None = None,
    layout: Layout | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute attention over slot buffers.

    Queries are (1, heads, N, dim), keys and values (slots, kv heads, length, dim).

    Returns:
        (1, N, heads, dim), and no weights.

    Raises:
        UnusualAttentionError: If the model needs an unsupported mask, cap, bias or window.
    """
    if layout is None or attention_mask is not None:
        raise UnusualAttentionError("its attention passes no arguments on, or uses a mask of its own")
    if sliding_window is not None and sliding_window < layout.max_visible:
        raise UnusualAttentionError(f"its attention looks back over {sliding_window} tokens only")
    for name in ("softcap", "s_aux", "position_bias", "head_mask"):
        if options.get(name) is not None:
            raise UnusualAttentionError(f"its attention uses {name}")
    tokens, dim = query.shape[2:]
    query_NKGD = query[0].transpose(0, 1).view(tokens, key.shape[1], -1, dim)
    if query.device.type != "cpu":
        return layout.attend(query_NKGD, key, value, scaling).flatten(1, 2)[None], None
    # the store is float32 if the network computes in half precision
    with torch.autocast("cpu", enabled=False):
        out = layout.attend(query_NKGD.to(key.dtype), key, value.to(key.dtype), scaling)
    return out.to(query.dtype).flatten(1, 2)[None], None


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None) -> Tensor:
    """Compute attention of few queries (rows, kv heads, groups, dim) by the fused kernel."""
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)


def attend_by_products(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None
) -> Tensor:
    """Compute `attend` by matrix products.

    For the few queries of last tokens the fused kernel takes 1.4 times as long on CPUs.  Views of the store
    (rows, kv heads, length, dim) stay views when rows and heads become one dimension.
    """
    rows, kv_heads, groups, dim = query.shape
    scale = dim**-0.5 if scaling is None else scaling
    scores = torch.bmm((query * scale).flatten(0, 1), key.flatten(0, 1).transpose(1, 2))
    scores.view(rows, kv_heads, groups, -1).add_(mask)
    return torch.bmm(scores.softmax(-1), value.flatten(0, 1)).view(rows, kv_heads, groups, -1)


AttentionInterface.register(NAME, attend_slots)
