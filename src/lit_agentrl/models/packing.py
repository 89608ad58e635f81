"""Packed rows: many episodes in one row without padding.

Common beginnings occur only once, and attention keeps the episodes separate.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from lit_agentrl.models.onednn import compute_padding
from lit_agentrl.models.segment_attention import (
    BatchLayout,
    KernelLayout,
    Places,
    find_kernel_obstacle,
    upload,
)

_log = logging.getLogger(__name__)
ATTENTION = "sdpa_or_packed"


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
        triples = zip(self.common, lengths, [0, *lengths], strict=False)
        common = [min(shared, length, length_before) for shared, length, length_before in triples]
        return Packing(lengths, common)


@dataclass
class Segments:
    """The positions of row tokens in a packed row, passed to the network's attention.

    A hidden state depends only on the tokens before it, so a common beginning needs its states only once.  Attention
    reads whole rows, laid out as its kernel needs them.

    Attributes:
        token_N: Index of each packed token among the (B x T) tokens; arbitrary at the padding, which is at the end.
        position_N: Position of each packed token in its row.
        place_BT: Index in the packed row of each row's real tokens.
        obstacle: Why attention did not use the variable-length kernel; empty if it did, or has not run yet.
        is_trial: Whether the caller reads ``obstacle``, so that the log need not name it.
    """

    token_N: Tensor
    position_N: Tensor
    place_BT: Tensor
    _places: list[Places]
    _common: list[int]
    _layout: KernelLayout | BatchLayout | None = None
    obstacle: str = ""
    is_trial: bool = False

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
        padding = np.zeros(compute_padding(end) if device.type == "cpu" else 0, dtype=np.int64)
        token_N = np.concatenate([*tokens, padding])
        place_BT = np.zeros((len(lengths), width), dtype=np.int64)
        for row, place in enumerate(places):
            place_BT[row, : len(place)] = place
        tokens_N, positions_N, places_BT = upload([token_N, token_N % width, place_BT], device)
        return cls(tokens_N, positions_N, places_BT, places, packing.common)

    def make_inputs(self, tokens_BT: Tensor) -> dict[str, Any]:
        """Return the network's inputs: ids in one row, and positions that restart per segment."""
        # transformers takes a 4-dimensional mask as given, instead of making an N x N one; `attend_packed` ignores it
        no_mask = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=tokens_BT.device)
        return {
            "input_ids": tokens_BT.flatten()[self.token_N][None],
            "position_ids": self.position_N[None],
            "attention_mask": no_mask,
            "segments": self,
        }

    def choose_layout(self, query: Tensor, key: Tensor, value: Tensor) -> KernelLayout | BatchLayout:
        """Return the layout of attention over (1, heads, N, D) tensors, equal in all layers."""
        if self._layout is None:
            # under autocast, rotated queries and keys are float32 while values are in half precision
            dtype = min((query.dtype, key.dtype, value.dtype), key=lambda dtype: dtype.itemsize)
            heads = query.shape[1], key.shape[1], query.shape[3]
            self.obstacle = find_kernel_obstacle(query.device, dtype, *heads)
            if self.obstacle:
                if query.is_cuda and not self.is_trial:
                    _log_once(self.obstacle)
                self._layout = BatchLayout.of(self._places, len(self.token_N), query.device)
            else:
                self._layout = KernelLayout.of(self._places, self._common, query.device)
        return self._layout


@lru_cache
def _log_once(obstacle: str) -> None:
    _log.info("packed rows are read in batches of similar length, not by one kernel: %s", obstacle)


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
    return segments.choose_layout(query, key, value).attend(query, key, value, options.get("scaling")), None


AttentionInterface.register(ATTENTION, attend_packed)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


@torch.no_grad()
def enable_packing(network: PreTrainedModel, *, by_kernel: bool = False) -> str:
    """Enable a network to read packed rows as well as ordinary rows.

    Three short rows with a common beginning are tried: their packed result must equal that of each row alone.

    Args:
        network: A causal LM or its trunk.
        by_kernel: Whether one variable-length kernel must read the rows, in the precision of the calling context.

    Returns:
        Why packing is not possible; empty if it is.
    """
    before = network.config._attn_implementation
    if before == ATTENTION and not by_kernel:
        return ""
    if before not in ("sdpa", ATTENTION):
        return f"its attention is {before}, not sdpa"
    window = getattr(network.config, "sliding_window", None)
    if window is not None and getattr(network.config, "use_sliding_window", True):
        return f"its attention sees a window of {window} tokens"
    try:
        network.set_attn_implementation(ATTENTION)
        reason = _find_difference(network, by_kernel)
    except torch.OutOfMemoryError:  # this says nothing about packing
        raise
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
    if reason:
        network.set_attn_implementation(before)
    return reason


def _find_difference(network: PreTrainedModel, by_kernel: bool) -> str:
    device = network.device
    num_ids = min(network.config.get_text_config().vocab_size, 32)
    generator = torch.Generator().manual_seed(0)
    tokens_BT = torch.randint(1, num_ids, (3, 6), generator=generator).to(device)
    tokens_BT[1, :2] = tokens_BT[0, :2]
    lengths = [6, 4, 5]
    is_real_BT = torch.arange(6, device=device)[None] < torch.tensor(lengths, device=device)[:, None]
    segments = Segments.of(Packing(lengths, [0, 2, 0]), 6, device)
    segments.is_trial = by_kernel
    # the first output holds the logits, or the hidden states of a network without a head
    packed = network(**segments.make_inputs(tokens_BT), use_cache=False)[0][0][segments.place_BT[is_real_BT]]
    if by_kernel and segments.obstacle:
        return segments.obstacle
    alone = network(input_ids=tokens_BT, use_cache=False)[0][is_real_BT]
    rounding = torch.finfo(packed.dtype).eps * max(1.0, float(alone.abs().max()))
    gap = float((packed - alone).abs().max())
    return "" if gap <= 200 * rounding else f"packed rows change its logits by {gap:.2g}"
