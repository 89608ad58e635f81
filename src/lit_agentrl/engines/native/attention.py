"""Attention of packed tokens over the slots of a :class:`~lit_agentrl.engines.native.cache.SlotCache`.

The engine reads the tokens of many episodes as one row without padding.  Everything but attention is
independent per token, so only attention needs to know which token belongs to which slot; it is told by a
:class:`Reading`.  The function is registered with transformers, so any model that takes its attention from
``ALL_ATTENTION_FUNCTIONS`` can be served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "lit_agentrl_slots"


class UnusualAttentionError(ValueError):
    """The model asks of attention what slots cannot give."""


@dataclass
class Visible:
    """Which positions each query sees; the additive form is made once and shared by all layers."""

    sees: Tensor  # bool
    _additive: Tensor | None = None

    def additive(self, like: Tensor) -> Tensor:
        """0 where seen and -inf elsewhere."""
        if self._additive is None or self._additive.dtype != like.dtype:
            zeros = torch.zeros(self.sees.shape, dtype=like.dtype, device=like.device)
            self._additive = zeros.masked_fill_(~self.sees, float("-inf"))
        return self._additive


@dataclass
class Chunk:
    """The tokens before the last one of P episodes of like lengths, padded to M for attention alone."""

    slots_P: Tensor | slice
    index_PM: Tensor  # packed token of each query, any at padding
    real_C: Tensor  # the queries of index_PM, flattened, that are no padding; their tokens are contiguous
    start: int  # packed index of the first of them
    length: int  # positions that any of them sees
    sees_PML: Tensor  # bool

    def __post_init__(self) -> None:
        self._by_groups: dict[int, Visible] = {}

    def visible(self, groups: int) -> Visible:
        """For queries whose ``groups`` heads to a key/value head are laid out behind each other."""
        if groups not in self._by_groups:
            self._by_groups[groups] = Visible(self.sees_PML.repeat(1, groups, 1).unsqueeze(1))
        return self._by_groups[groups]


@dataclass
class Reading:
    """One forward over packed tokens.

    The packed tokens are padding, those of ``chunks`` in order, then the last unread token of each reading episode
    by ascending slot; only the latter need logits.

    Args:
        slot_N, position_N: where each packed token's key and value go.
        num_last: episodes that read.
        num_rows: slots from the front that hold live episodes.
        filled: positions that any last token sees.
        last_sees_R: for each live slot, which positions its last token sees (R, 1, 1, filled).
        last_R: which of the ``num_last`` queries each live slot takes; None if all of them read.
        rows_of_last: inverse of ``last_R``.
        chunks: the tokens before the last.
        num_padding: tokens before all others that belong to no episode.
        copies: (source slot, target slots, length), to be done in order after the writes of a layer.
    """

    slot_N: Tensor
    position_N: Tensor
    num_last: int
    num_rows: int
    filled: int
    last_sees_R: Visible
    last_R: Tensor | None = None
    rows_of_last: Tensor | None = None
    chunks: Sequence[Chunk] = ()
    num_padding: int = 0
    copies: Sequence[tuple[int, Tensor, int]] = ()

    def __post_init__(self) -> None:
        self._places: dict[tuple[int, int], Tensor] = {}

    def places(self, kv_heads: int, length: int) -> Tensor:
        """Rows (kv heads x N), head by head, of a store (slots, kv heads, length, dim) seen as a matrix of dim."""
        if (kv_heads, length) not in self._places:
            first_N = self.slot_N * (kv_heads * length) + self.position_N
            heads = torch.arange(kv_heads, device=first_N.device) * length
            self._places[kv_heads, length] = (heads.unsqueeze(1) + first_N).flatten()
        return self._places[kv_heads, length]


def slot_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    scaling: float | None = None,
    reading: Reading | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of queries (1, heads, N, dim) over whole slot buffers (slots, kv heads, length, dim).

    Returns:
        (1, N, heads, dim), and no weights.

    Raises:
        UnusualAttentionError: the model wants a mask, cap, bias or window that is not served.
    """
    if reading is None or attention_mask is not None:
        raise UnusualAttentionError("its attention hands on no arguments, or brings a mask of its own")
    if sliding_window is not None and sliding_window < reading.filled:
        raise UnusualAttentionError(f"its attention looks back over {sliding_window} tokens only")
    for name in ("softcap", "s_aux", "position_bias", "head_mask"):
        if others.get(name) is not None:
            raise UnusualAttentionError(f"its attention uses {name}")
    if query.device.type != "cpu":
        return _over_slots(query, key, value, reading, scaling)[None], None
    # the store is float32 where the network computes in half precision
    with torch.autocast("cpu", enabled=False):
        out_NHD = _over_slots(query.to(key.dtype), key, value.to(key.dtype), reading, scaling)
    return out_NHD.to(query.dtype)[None], None


def _over_slots(query: Tensor, key: Tensor, value: Tensor, reading: Reading, scaling: float | None) -> Tensor:
    """(N, heads, dim)."""
    heads, kv_heads = query.shape[1], key.shape[1]
    groups = heads // kv_heads
    query_NHD = query[0].transpose(0, 1)
    total = query_NHD.shape[0]
    out_NHD = query_NHD.new_empty((total, heads, value.shape[3]))

    out_NHD[: reading.num_padding] = 0.0
    last = query_NHD[total - reading.num_last :]
    out_NHD[total - reading.num_last :] = _attend_last(last, key, value, reading, scaling)
    for chunk in reading.chunks:
        rows_P, tokens_M = chunk.index_PM.shape
        queries = query_NHD[chunk.index_PM].view(rows_P, tokens_M, kv_heads, groups, -1)
        seen = slice(0, chunk.length)
        out = scaled_dot_product_attention(
            queries.permute(0, 2, 3, 1, 4).reshape(rows_P, kv_heads, groups * tokens_M, -1),
            key[chunk.slots_P, :, seen],
            value[chunk.slots_P, :, seen],
            attn_mask=chunk.visible(groups).additive(query),
            scale=scaling,
        )
        out = out.view(rows_P, kv_heads, groups, tokens_M, -1).permute(0, 3, 1, 2, 4)
        out = out.reshape(rows_P * tokens_M, heads, -1)
        out_NHD[chunk.start : chunk.start + len(chunk.real_C)] = out[chunk.real_C]
    return out_NHD


def _attend_last(last: Tensor, key: Tensor, value: Tensor, reading: Reading, scaling: float | None) -> Tensor:
    """Attention (num_last, heads, dim) of the last token of each reading episode."""
    heads, kv_heads = last.shape[1], key.shape[1]
    if reading.last_R is not None:
        last = last[reading.last_R]
    # heads of one group are queries of one head
    last = last.reshape(reading.num_rows, kv_heads, heads // kv_heads, -1)
    keys = key[: reading.num_rows, :, : reading.filled]
    values = value[: reading.num_rows, :, : reading.filled]
    attend = _attend_by_products if last.device.type == "cpu" else _attend
    out = attend(last, keys, values, reading.last_sees_R.additive(last), scaling)
    out = out.reshape(reading.num_rows, heads, -1)
    return out if reading.rows_of_last is None else out[reading.rows_of_last]


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None) -> Tensor:
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)


def _attend_by_products(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None
) -> Tensor:
    """The same for the few queries of a last token, for which the fused kernel takes 1.4 times as long on CPUs.

    Views of the store (rows, kv heads, length, dim) stay views when rows and heads become one dimension.
    """
    rows, kv_heads, groups, dim = query.shape
    scale = dim**-0.5 if scaling is None else scaling
    scores = torch.bmm((query * scale).flatten(0, 1), key.flatten(0, 1).transpose(1, 2))
    scores.view(rows, kv_heads, groups, -1).add_(mask)
    return torch.bmm(scores.softmax(-1), value.flatten(0, 1)).view(rows, kv_heads, groups, -1)


AttentionInterface.register(NAME, slot_attention)
