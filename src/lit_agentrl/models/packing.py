"""Packed rows: many episodes in one row without padding, what they begin alike in it once, each blind to the others."""

from __future__ import annotations

from dataclasses import dataclass
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

from lit_agentrl.models.onednn import padding_for

ATTENTION = "sdpa_or_packed"
_MIN_FILL = 0.92  # of the longest row of a call of attention on CPUs

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Packing:
    """How rows are put into one.

    Attributes:
        lengths: real tokens of each row.
        common: how many of them, from the front, are those of the row before, and are not put in again; none of
            the first row.
    """

    lengths: list[int]
    common: list[int]

    @classmethod
    def apart(cls, lengths: list[int]) -> Packing:
        """Rows that share nothing."""
        return cls(lengths, [0] * len(lengths))

    @property
    def num_tokens(self) -> int:
        return sum(self.lengths) - sum(self.common)

    def without_last(self) -> Packing:
        """The same without the last token of each row, from which nothing is predicted."""
        lengths = [max(1, length - 1) for length in self.lengths]
        common = [min(c, a, b) for c, a, b in zip(self.common, lengths, [0, *lengths], strict=False)]
        return Packing(lengths, common)


@dataclass(frozen=True)
class Segments:
    """Where the tokens of rows lie in a packed one; passed through the network to its attention.

    A hidden state depends on the tokens before it alone, so rows that begin alike need those states once; attention
    reads whole rows, for which the packed states are laid out again, and its results are gathered.

    Attributes:
        token_N: which of the (B x T) tokens each packed one is; any at padding, which is at the end.
        position_N: its position in its row.
        place_BT: where the real tokens of each row lie in the packed one.
        batches: rows and tokens of each call of attention, in order.
        laid_out_M: packed place of each token that attention reads; None: that of M = N in order.
        found_N: which of them has each packed token's result.
        bounds: int32, where each row that attention reads begins, and the end of the last.
    """

    token_N: Tensor
    position_N: Tensor
    place_BT: Tensor
    batches: tuple[tuple[int, int], ...]
    laid_out_M: Tensor | None
    found_N: Tensor | None
    bounds: Tensor

    @classmethod
    def of(cls, packing: Packing, width: int, device: torch.device) -> Segments:
        """For rows of ``width`` tokens each, padding included."""
        lengths = packing.lengths
        places: list[Places] = []
        tokens: list[Places] = []
        end = 0
        for row, (length, common) in enumerate(zip(lengths, packing.common, strict=True)):
            own = np.arange(end, end + length - common)
            places.append(np.concatenate([places[-1][:common], own]) if common else own)
            tokens.append(row * width + np.arange(common, length))
            end += len(own)
        is_cpu = device.type == "cpu"
        padding = np.zeros(padding_for(end) if is_cpu else 0, dtype=np.int64)
        token_N = np.concatenate([*tokens, padding])
        place_BT = np.zeros((len(lengths), width), dtype=np.int64)
        for row, place in enumerate(places):
            place_BT[row, : len(place)] = place
        batches = _batches(places, _MIN_FILL if is_cpu else None)
        laid_out_M, found_N = _laid_out(batches, places, len(token_N))
        sizes = [tokens for rows, tokens in batches for _ in rows]

        def moved(array: Places) -> Tensor:
            return torch.from_numpy(array).to(device, non_blocking=True)

        is_plain = len(laid_out_M) == len(token_N) and bool((laid_out_M == np.arange(len(token_N))).all())
        return cls(
            token_N=moved(token_N),
            position_N=moved(token_N % width),
            place_BT=moved(place_BT),
            batches=tuple((len(rows), tokens) for rows, tokens in batches),
            laid_out_M=None if is_plain else moved(laid_out_M),
            found_N=None if is_plain else moved(found_N),
            bounds=torch.tensor([0, *accumulate(sizes)], dtype=torch.int32).to(device, non_blocking=True),
        )

    def inputs(self, tokens_BT: Tensor) -> dict[str, Any]:
        """What a network takes: ids in one row, and positions that begin anew with each segment."""
        # a mask of four dimensions is taken as it is, so that none of N x N is made; the attention below ignores it
        no_mask = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=tokens_BT.device)
        return {
            "input_ids": tokens_BT.flatten()[self.token_N][None],
            "position_ids": self.position_N[None],
            "attention_mask": no_mask,
            "segments": self,
        }

    def lay_out(self, states: Tensor) -> Tensor:
        """(1, heads, N, D) -> (M, heads, D)."""
        states_NHD = states[0].transpose(0, 1)
        return states_NHD if self.laid_out_M is None else pick(states_NHD, self.laid_out_M)

    def gather(self, states_MHD: Tensor) -> Tensor:
        """(M, heads, D) -> (1, N, heads, D)."""
        return (states_MHD if self.found_N is None else pick(states_MHD, self.found_N))[None]


def pick(states: Tensor, index: Tensor) -> Tensor:
    """``states[index]``, whose gradient is summed in the same order each time where an index comes twice."""
    return embedding(index, states.flatten(1)).view(len(index), *states.shape[1:])


def _batches(places: list[Places], min_fill: float | None) -> list[tuple[list[int], int]]:
    """Rows that attention reads, in batches of like length, and the tokens of the longest; None: each alone.

    A row that another continues is not read by itself.
    """
    following = [*places[1:], np.array([], dtype=np.int64)]
    whole = [
        row
        for row, (own, after) in enumerate(zip(places, following, strict=True))
        if len(after) < len(own) or own[-1] != after[len(own) - 1]
    ]
    if min_fill is None:
        return [([row], len(places[row])) for row in whole]
    batches: list[tuple[list[int], int]] = []
    for row in sorted(whole, key=lambda row: -len(places[row])):
        if batches and len(places[row]) >= min_fill * batches[-1][1]:
            batches[-1][0].append(row)
        else:
            batches.append(([row], len(places[row])))
    return batches


def _laid_out(
    batches: list[tuple[list[int], int]], places: list[Places], num_tokens: int
) -> tuple[Places, Places]:
    """``laid_out_M`` and ``found_N`` of `Segments`; padding takes and gives what no loss reads."""
    laid_out_M = np.zeros(sum(len(rows) * tokens for rows, tokens in batches), dtype=np.int64)
    found_N = np.zeros(num_tokens, dtype=np.int64)
    start = 0
    for rows, tokens in batches:
        for row in rows:
            place = places[row]
            laid_out_M[start : start + len(place)] = place
            found_N[place] = np.arange(start, start + len(place))
            start += tokens
    return laid_out_M, found_N


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    segments: Segments | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each segment of (1, heads, N, D) tensors; without segments, transformers' own.

    One fused kernel over all segments on CUDA in half precision, else the fused causal kernel once for rows of like
    length; on CPUs in float32, in which that kernel is the quicker.
    """
    if segments is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    scale = options.get("scaling")
    groups = query.shape[1] // key.shape[1]
    given = (query, key, value)
    # under autocast, rotated queries and keys are whole floats beside values in half precision
    dtype = min((states.dtype for states in given), key=lambda each: each.itemsize)
    is_half = dtype in (torch.float16, torch.bfloat16)
    if query.is_cuda and is_half:
        bounds, longest = segments.bounds, max(tokens for _, tokens in segments.batches)
        q, k, v = (segments.lay_out(states.to(dtype)) for states in given)
        packed: Any = varlen_attn(
            q, k, v, bounds, bounds, longest, longest, scale=scale, window_size=(-1, 0), enable_gqa=groups > 1
        )
        return segments.gather(packed), None
    if is_half:
        given = (query.float(), key.float(), value.float())
    with torch.autocast(query.device.type, enabled=False):
        sizes = [rows * tokens for rows, tokens in segments.batches]
        split = [torch.split(segments.lay_out(states), sizes) for states in given]
        parts = []
        for (rows, tokens), *states in zip(segments.batches, *split, strict=True):
            q, k, v = (x.view(rows, tokens, *x.shape[1:]).transpose(1, 2) for x in states)
            out = scaled_dot_product_attention(
                q, repeat_kv(k, groups), repeat_kv(v, groups), is_causal=True, scale=scale
            )
            parts.append(out.transpose(1, 2).flatten(0, 1))
        return segments.gather(torch.cat(parts)).to(dtype), None


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


@torch.no_grad()
def enable_packing(network: PreTrainedModel) -> str:
    """Let the network take packed rows beside ordinary ones; returns why it cannot, or nothing.

    Tried on three short rows that begin alike: what the network makes of them packed must be what it makes of each
    alone.
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
        reason = _difference(network)
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
    if reason:
        network.set_attn_implementation(before)
    return reason


def _difference(network: PreTrainedModel) -> str:
    device = network.device
    high = min(network.config.get_text_config().vocab_size, 32)
    draw = torch.Generator().manual_seed(0)
    tokens_BT = torch.randint(1, high, (3, 6), generator=draw).to(device)
    tokens_BT[1, :2] = tokens_BT[0, :2]
    lengths = [6, 4, 5]
    is_real_BT = torch.arange(6, device=device)[None] < torch.tensor(lengths, device=device)[:, None]
    segments = Segments.of(Packing(lengths, [0, 2, 0]), 6, device)
    # first come the logits, or the hidden states of a network without a head
    packed = network(**segments.inputs(tokens_BT), use_cache=False)[0][0][segments.place_BT[is_real_BT]]
    alone = network(input_ids=tokens_BT, use_cache=False)[0][is_real_BT]
    unit = torch.finfo(packed.dtype).eps * max(1.0, float(alone.abs().max()))
    gap = float((packed - alone).abs().max())
    return "" if gap <= 200 * unit else f"packed rows change its logits by {gap:.2g}"
