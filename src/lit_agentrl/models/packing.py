"""Packed rows: many episodes in one row without padding, each blind to the others."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "sdpa_or_packed"


@dataclass(frozen=True)
class Segments:
    """Where the rows lie in a packed one; passed through the network to its attention.

    Attributes:
        lengths: tokens of each row.
        bounds: int32 (rows + 1,), where each begins, and the end of the last.
    """

    lengths: tuple[int, ...]
    bounds: Tensor

    @classmethod
    def of(cls, lengths: list[int], device: torch.device) -> Segments:
        bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        return cls(tuple(lengths), bounds.to(device, non_blocking=True))

    def inputs(self, tokens_BT: Tensor, is_real_BT: Tensor) -> dict[str, Any]:
        """What a network takes: ids in one row, and positions that begin anew with each segment."""
        position_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device).expand_as(tokens_BT)
        # a mask of four dimensions is taken as it is, so that none of N x N is made; the attention below ignores it
        no_mask = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=tokens_BT.device)
        return {
            "input_ids": tokens_BT[is_real_BT][None],
            "position_ids": position_BT[is_real_BT][None],
            "attention_mask": no_mask,
            "segments": self,
        }


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

    One fused kernel over all segments on CUDA in half precision, else the fused causal kernel once a segment.
    """
    if segments is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    scale = options.get("scaling")
    groups = query.shape[1] // key.shape[1]
    if query.is_cuda and query.dtype in (torch.float16, torch.bfloat16):
        bounds, longest = segments.bounds, max(segments.lengths)
        packed: Any = varlen_attn(
            query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1),
            bounds, bounds, longest, longest, scale=scale, window_size=(-1, 0), enable_gqa=groups > 1,
        )  # fmt: skip
        return packed[None], None
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    spans = [slice(a, b) for a, b in pairwise([0, *accumulate(segments.lengths)])]
    parts = [
        scaled_dot_product_attention(
            query[:, :, span], key[:, :, span], value[:, :, span], is_causal=True, scale=scale
        )
        for span in spans
    ]
    return torch.cat(parts, dim=2).transpose(1, 2), None


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


@torch.no_grad()
def enable_packing(network: PreTrainedModel) -> str:
    """Let the network take packed rows beside ordinary ones; returns why it cannot, or nothing.

    Tried on two short rows: what the network makes of them packed must be what it makes of each alone.
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
    tokens_BT = torch.randint(1, high, (2, 6), generator=draw).to(device)
    is_real_BT = torch.tensor([[True] * 6, [True] * 4 + [False] * 2], device=device)
    segments = Segments.of([6, 4], device)
    # first come the logits, or the hidden states of a network without a head
    packed = network(**segments.inputs(tokens_BT, is_real_BT), use_cache=False)[0][0]
    alone = network(input_ids=tokens_BT, use_cache=False)[0][is_real_BT]
    unit = torch.finfo(packed.dtype).eps * max(1.0, float(alone.abs().max()))
    gap = float((packed - alone).abs().max())
    return "" if gap <= 200 * unit else f"packed rows change its logits by {gap:.2g}"
