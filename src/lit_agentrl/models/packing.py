"""Packed rows: many episodes in one row without padding.

Common beginnings occur only once, and attention keeps the episodes separate.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import embedding, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from lit_agentrl.models.onednn import compute_padding

ATTENTION = "sdpa_or_packed"
_MIN_FILL = 0.92  # minimum length, relative to the longest row, of a row in a call of attention on CPUs

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Packing:
    """The layout of rows packed into one.

    Attributes:
        lengths: Number of real tokens of each row.
        common: Number of leading tokens that each row shares with the row before, and which are not repeated; 0 for
            the first row.
    """

    lengths: list[int]
    common: list[int]

    @classmethod
    def from_lengths(cls, lengths: list[int]) -> Packing:
        """Return the packing of rows that share nothing."""
        return cls(lengths, [0] * len(lengths))

    @property
    def num_tokens(self) -> int:
        return sum(self.lengths) - sum(self.common)

    def drop_last_tokens(self) -> Packing:
        """Return the packing without the last token of each row.

        Nothing is predicted from that token.
        """
        lengths = [max(1, length - 1) for length in self.lengths]
        common = [min(c, a, b) for c, a, b in zip(self.common, lengths, [0, *lengths], strict=False)]
        return Packing(lengths, common)


@dataclass(frozen=True)
class Segments:
    """The positions of row tokens in a packed row, passed to the network's attention.

    A hidden state depends only on the tokens before it, so a common beginning needs its states only once.  Attention
    reads whole rows: the packed states are laid out again for it, and its results are gathered.

    Attributes:
        token_N: Index of each packed token among the (B x T) tokens; arbitrary at the padding, which is at the end.
        position_N: Position of each packed token in its row.
        place_BT: Index in the packed row of each row's real tokens.
        batches: Rows and tokens of each call of attention, in order.
        layout_M: Packed index of each token that attention reads; None if M = N in order.
        result_N: Index, among these, of the result of each packed token.
        bounds: int32 start of each row that attention reads, and the end of the last row.
    """

    token_N: Tensor
    position_N: Tensor
    place_BT: Tensor
    batches: tuple[tuple[int, int], ...]
    layout_M: Tensor | None
    result_N: Tensor | None
    bounds: Tensor

    @classmethod
    def of(cls, packing: Packing, width: int, device: torch.device) -> Segments:
        """Build the segments of rows of ``width`` tokens each, padding included."""
        lengths = packing.lengths
        places: list[Places] = []
        tokens: list[Places] = []
        end = 0
        for row, (length, common) in enumerate(zip(lengths, packing.common, strict=True)):
            new_places = np.arange(end, end + length - common)
            places.append(np.concatenate([places[-1][:common], new_places]) if common else new_places)
            tokens.append(row * width + np.arange(common, length))
            end += len(new_places)
        is_cpu = device.type == "cpu"
        padding = np.zeros(compute_padding(end) if is_cpu else 0, dtype=np.int64)
        token_N = np.concatenate([*tokens, padding])
        place_BT = np.zeros((len(lengths), width), dtype=np.int64)
        for row, place in enumerate(places):
            place_BT[row, : len(place)] = place
        batches = _batch_rows(places, _MIN_FILL if is_cpu else None)
        layout_M, result_N = _compute_layout(batches, places, len(token_N))
        sizes = [tokens for rows, tokens in batches for _ in rows]

        def move(array: Places) -> Tensor:
            return torch.from_numpy(array).to(device, non_blocking=True)

        is_plain = len(layout_M) == len(token_N) and bool((layout_M == np.arange(len(token_N))).all())
        return cls(
            token_N=move(token_N),
            position_N=move(token_N % width),
            place_BT=move(place_BT),
            batches=tuple((len(rows), tokens) for rows, tokens in batches),
            layout_M=None if is_plain else move(layout_M),
            result_N=None if is_plain else move(result_N),
            bounds=torch.tensor([0, *accumulate(sizes)], dtype=torch.int32).to(device, non_blocking=True),
        )

    def make_inputs(self, tokens_BT: Tensor) -> dict[str, Any]:
        """Return the network's inputs: ids in one row, and positions that restart per segment."""
        # a 4-dimensional mask is used as given, which avoids an N x N mask; the attention below ignores it
        no_mask = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=tokens_BT.device)
        return {
            "input_ids": tokens_BT.flatten()[self.token_N][None],
            "position_ids": self.position_N[None],
            "attention_mask": no_mask,
            "segments": self,
        }

    def arrange(self, states: Tensor) -> Tensor:
        """Return (M, heads, D) from (1, heads, N, D), in the layout of attention."""
        states_NHD = states[0].transpose(0, 1)
        return states_NHD if self.layout_M is None else pick(states_NHD, self.layout_M)

    def gather(self, states_MHD: Tensor) -> Tensor:
        """Return (1, N, heads, D) from (M, heads, D), in the order of packed tokens."""
        return (states_MHD if self.result_N is None else pick(states_MHD, self.result_N))[None]


def pick(states: Tensor, index: Tensor) -> Tensor:
    """Return ``states[index]``, with a deterministic gradient.

    The gradient of an index that occurs twice is always summed in the same order.
    """
    return embedding(index, states.flatten(1)).view(len(index), *states.shape[1:])


def _batch_rows(places: list[Places], min_fill: float | None) -> list[tuple[list[int], int]]:
    """Group the rows that attention reads into batches of similar length.

    A row that the next row continues is not read separately.

    Args:
        places: Packed indices of each row.
        min_fill: Minimum ratio of a row's length to the longest of its batch; None puts each row into a batch of its
            own.

    Returns:
        The rows of each batch, and the tokens of its longest row.
    """
    next_places = [*places[1:], np.array([], dtype=np.int64)]
    complete = [
        row
        for row, (own, after) in enumerate(zip(places, next_places, strict=True))
        if len(after) < len(own) or own[-1] != after[len(own) - 1]
    ]
    if min_fill is None:
        return [([row], len(places[row])) for row in complete]
    batches: list[tuple[list[int], int]] = []
    for row in sorted(complete, key=lambda row: -len(places[row])):
        if batches and len(places[row]) >= min_fill * batches[-1][1]:
            batches[-1][0].append(row)
        else:
            batches.append(([row], len(places[row])))
    return batches


def _compute_layout(
    batches: list[tuple[list[int], int]], places: list[Places], num_tokens: int
) -> tuple[Places, Places]:
    """Return ``layout_M`` and ``result_N`` of `Segments`; padding gets arbitrary values."""
    layout_M = np.zeros(sum(len(rows) * tokens for rows, tokens in batches), dtype=np.int64)
    result_N = np.zeros(num_tokens, dtype=np.int64)
    start = 0
    for rows, tokens in batches:
        for row in rows:
            place = places[row]
            layout_M[start : start + len(place)] = place
            result_N[place] = np.arange(start, start + len(place))
            start += tokens
    return layout_M, result_N


def attend_packed(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    segments: Segments | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute causal attention within each segment of (1, heads, N, D) tensors.

    Without segments this is transformers' own attention.  On CUDA in half precision one fused kernel computes all
    segments; otherwise the fused causal kernel runs once per batch of rows of similar length, on CPUs in float32,
    where it is faster.
    """
    if segments is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    scale = options.get("scaling")
    groups = query.shape[1] // key.shape[1]
    states_QKV = (query, key, value)
    # under autocast, rotated queries and keys are float32 while values are in half precision
    dtype = min((states.dtype for states in states_QKV), key=lambda each: each.itemsize)
    is_half = dtype in (torch.float16, torch.bfloat16)
    if query.is_cuda and is_half:
        bounds, longest = segments.bounds, max(tokens for _, tokens in segments.batches)
        q, k, v = (segments.arrange(states.to(dtype)) for states in states_QKV)
        return segments.gather(attend_segments(q, k, v, bounds, longest, scale)), None
    if is_half:
        states_QKV = (query.float(), key.float(), value.float())
    with torch.autocast(query.device.type, enabled=False):
        sizes = [rows * tokens for rows, tokens in segments.batches]
        split = [torch.split(segments.arrange(states), sizes) for states in states_QKV]
        parts = []
        for (rows, tokens), *states in zip(segments.batches, *split, strict=True):
            q, k, v = (x.view(rows, tokens, *x.shape[1:]).transpose(1, 2) for x in states)
            out = scaled_dot_product_attention(
                q, repeat_kv(k, groups), repeat_kv(v, groups), is_causal=True, scale=scale
            )
            parts.append(out.transpose(1, 2).flatten(0, 1))
        return segments.gather(torch.cat(parts)).to(dtype), None


def attend_segments(
    query_MHD: Tensor, key_MGD: Tensor, value_MGD: Tensor, bounds: Tensor, longest: int, scale: float | None
) -> Tensor:
    """Compute causal attention within each segment by the kernel for rows of any length.

    G key heads serve H query heads; where the kernel of this torch has no ``enable_gqa`` (2.11), they are repeated.
    """
    options: dict[str, Any] = {"scale": scale, "window_size": (-1, 0)}
    groups = query_MHD.shape[1] // key_MGD.shape[1]
    if groups > 1:
        if _has_grouped_heads(varlen_attn):
            options["enable_gqa"] = True
        else:
            key_MGD, value_MGD = (_repeat_heads(states, groups) for states in (key_MGD, value_MGD))
    output_MHD = varlen_attn(query_MHD, key_MGD, value_MGD, bounds, bounds, longest, longest, **options)
    assert isinstance(output_MHD, Tensor)  # no auxiliary output is asked for
    return output_MHD


@lru_cache
def _has_grouped_heads(kernel: Callable[..., Any]) -> bool:
    """Return whether a kernel lets several query heads read one key head."""
    return "enable_gqa" in inspect.signature(kernel).parameters


def _repeat_heads(states_MGD: Tensor, groups: int) -> Tensor:
    """Return (M, G x groups, D): each head ``groups`` times in a row."""
    return states_MGD[:, :, None].expand(-1, -1, groups, -1).flatten(1, 2)


AttentionInterface.register(ATTENTION, attend_packed)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


@torch.no_grad()
def enable_packing(network: PreTrainedModel) -> str:
    """Enable a network to take packed rows as well as ordinary ones.

    Checked on three short rows with a common beginning: the packed result must equal that of each row alone.

    Returns:
        Why packing is not possible; empty if it is.
    """
    before = network.config._attn_implementation
    if before == ATTENTION:
        return ""
    if before != "sdpa":
        return f"its attention is {before}, not sdpa"
    window = getattr(network.config, "sliding_window", None)
    if window is not None and getattr(network.config, "use_sliding_window", True):
        return f"its attention sees a window of {window} tokens"
    try:
        network.set_attn_implementation(ATTENTION)
        reason = _find_difference(network)
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
    if reason:
        network.set_attn_implementation(before)
    return reason


def _find_difference(network: PreTrainedModel) -> str:
    device = network.device
    high = min(network.config.get_text_config().vocab_size, 32)
    draw = torch.Generator().manual_seed(0)
    tokens_BT = torch.randint(1, high, (3, 6), generator=draw).to(device)
    tokens_BT[1, :2] = tokens_BT[0, :2]
    lengths = [6, 4, 5]
    is_real_BT = torch.arange(6, device=device)[None] < torch.tensor(lengths, device=device)[:, None]
    segments = Segments.of(Packing(lengths, [0, 2, 0]), 6, device)
    # the first output holds the logits, or the hidden states of a network without a head
    packed = network(**segments.make_inputs(tokens_BT), use_cache=False)[0][0][segments.place_BT[is_real_BT]]
    alone = network(input_ids=tokens_BT, use_cache=False)[0][is_real_BT]
    unit = torch.finfo(packed.dtype).eps * max(1.0, float(alone.abs().max()))
    gap = float((packed - alone).abs().max())
    return "" if gap <= 200 * unit else f"packed rows change its logits by {gap:.2g}"
