"""Read the unread tokens of many slots in pieces: by the variable-length kernel, or padded."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from lit_agentrl.engines.native.attention import Layout, find_autocast_dtype
from lit_agentrl.engines.native.prefixes import Copy
from lit_agentrl.engines.native.ragged import SLACK, Packed, pack_unread
from lit_agentrl.engines.native.rows import Rows
from lit_agentrl.engines.options import PACKED, PADDED
from lit_agentrl.models.memory_plan import get_head_dim, get_kv_heads
from lit_agentrl.models.segment_attention import (
    attend_in_turn,
    attend_segments,
    find_kernel_obstacle,
    upload,
)

_log = logging.getLogger(__name__)

PIECE_TOKENS = 8192  # maximum tokens of one forward
PIECE_KEYS = 16 * PIECE_TOKENS  # maximum keys of one forward, which each layer gathers

IntArray = npt.NDArray[np.int64]


def choose_packed(prefill: str, network: PreTrainedModel) -> bool:
    """Return whether unread tokens are packed; ``auto`` packs them on CUDA where the kernel runs.

    ``packed`` is computed segment by segment on a CPU, which has no such kernel.

    Raises:
        ValueError: If ``packed`` is set on another device, and the kernel does not run there.
    """
    device = network.device
    if prefill == PADDED or device.type == "cpu":
        return prefill == PACKED
    config = network.config.get_text_config()
    heads = config.num_attention_heads, get_kv_heads(config), get_head_dim(config)
    reason = find_kernel_obstacle(
        device, find_autocast_dtype(device) or next(network.parameters()).dtype, *heads
    )
    if reason and prefill == PACKED:
        raise ValueError(f"prefill=packed: {reason}; set engine.prefill=auto")
    if reason:
        _log_once(reason)
    return not reason


@lru_cache
def _log_once(reason: str) -> None:
    _log.info("prompts are read in padded batches, not by one kernel: %s", reason)


class Span(NamedTuple):
    """Positions from ``start`` to ``end`` of a slot."""

    slot: int
    start: int
    end: int


class SpanCopy(NamedTuple):
    """A copy of a span to the same positions of another slot."""

    span: Span
    target: int


class Piece(NamedTuple):
    """The tokens of one forward, and the copies after the writes of each layer.

    The copies are independent of each other.
    """

    spans: list[Span]
    copies: list[SpanCopy]


@dataclass(kw_only=True)
class SegmentLayout(Layout):
    """Tokens of many slots, each a segment of the variable-length kernel.

    Args:
        query_bounds, key_bounds: int32 first query and key of each segment, and the end of the last.
        longest_query, longest_key: Most queries and keys of a segment.
        key_slot_M, key_position_M: Slot and position of each key.
        copy_from_C, copy_to_C, copy_position_C: Slots and positions of copied states; None without copies.
    """

    query_bounds: Tensor
    key_bounds: Tensor
    longest_query: int
    longest_key: int
    key_slot_M: Tensor
    key_position_M: Tensor
    copy_from_C: Tensor | None = None
    copy_to_C: Tensor | None = None
    copy_position_C: Tensor | None = None

    def copy_slots(self, buffer: Tensor) -> None:
        """See `Layout`."""
        if self.copy_from_C is not None:
            copied_CKD = buffer[self.copy_from_C, :, self.copy_position_C]
            buffer[self.copy_to_C, :, self.copy_position_C] = copied_CKD

    def attend(self, query_NKGD: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """See `Layout`.

        The last query of a segment sees all keys of the segment, the query before sees all but the last key.
        """
        key_MKD, value_MKD = (states[self.key_slot_M, :, self.key_position_M] for states in (key, value))
        query_NHD = query_NKGD.flatten(1, 2).to(key.dtype)
        bounds = self.query_bounds, self.key_bounds
        if query_NHD.device.type == "cpu":
            out_NHD = attend_in_turn(query_NHD, key_MKD, value_MKD, *bounds, scaling)
        else:
            longest = self.longest_query, self.longest_key
            out_NHD = attend_segments(query_NHD, key_MKD, value_MKD, *bounds, *longest, scaling)
        return out_NHD.view(*query_NKGD.shape[:3], -1)


def pack_pieces(
    rows: Rows, slots_A: IntArray, copies: Sequence[Copy], device: torch.device, *, end_S: IntArray
) -> Iterator[Packed]:
    """Yield the forwards that read these slots up to ``end_S``, in order."""
    for piece in plan_pieces(slots_A, copies, rows.cached_S, end_S):
        yield _pack_piece(rows, piece, device)


def is_limited(device: torch.device) -> bool:
    """Return whether padded forwards are limited on this device; see `pack_batches`."""
    return device.type == "cuda"


def has_many_unread(rows: Rows, device: torch.device) -> bool:
    """Return whether the unread tokens need several padded forwards."""
    if not is_limited(device):
        return False
    unread_S = rows.total_S - rows.cached_S
    return int(unread_S[rows.is_writing_S].sum()) * SLACK > PIECE_TOKENS


def pack_batches(
    rows: Rows, slots_A: IntArray, copies: Sequence[Copy], device: torch.device, *, end_S: IntArray
) -> Iterator[Packed]:
    """Yield the padded forwards that read these slots up to ``end_S``, in order.

    On CUDA a forward has at most `PIECE_TOKENS` tokens, padding included, and the tokens of a forward count as cached
    once the next is asked for.  Elsewhere one forward reads all, since other batches can change the last bits.
    """
    if not is_limited(device):
        yield pack_unread(rows, slots_A, copies, device, end_S=end_S)
        return
    for piece in plan_pieces(slots_A, copies, rows.cached_S, end_S, slack=SLACK):
        slots = np.array(sorted(span.slot for span in piece.spans))
        piece_end_S = rows.cached_S.copy()
        piece_end_S[[span.slot for span in piece.spans]] = [span.end for span in piece.spans]
        targets: dict[Span, list[int]] = {}
        for span, target in piece.copies:
            targets.setdefault(span, []).append(target)
        # the source of a span holds all tokens before it too
        whole = [Copy(span.slot, tuple(found), span.end) for span, found in targets.items()]
        yield pack_unread(rows, slots, whole, device, end_S=piece_end_S)
        rows.cached_S[slots] = piece_end_S[slots]


def plan_pieces(
    slots_A: IntArray, copies: Sequence[Copy], cached_S: IntArray, end_S: IntArray, *, slack: float = 1.0
) -> list[Piece]:
    """Cut the unread tokens of these slots into pieces.

    A slot is read after the slots from which it copies, and a copy follows as soon as its source is complete.

    Args:
        slots_A: Slots with unread tokens.
        copies: Copies by `find_common_prefixes`; their targets already count the copied tokens as cached.
        cached_S: Cached tokens of each slot.
        end_S: Position of each slot up to which tokens are read.
        slack: Maximum ratio of the tokens of a forward, padding included, to its real tokens.
    """
    targets = [target for copy in copies for target in copy.targets]
    reading_slots = set(slots_A.tolist())
    order = [*sorted(reading_slots - set(targets)), *(slot for slot in targets if slot in reading_slots)]
    waiting, pieces, cached_end = _resolve_copies(copies), [], dict(enumerate(cached_S.tolist()))
    for spans in _cut_into_pieces(order, cached_S, end_S, max(1, int(PIECE_TOKENS / slack))):
        cached_end |= {span.slot: span.end for span in spans}
        complete = [copy for copy in waiting if copy.span.end <= cached_end[copy.span.slot]]
        waiting = [copy for copy in waiting if copy not in complete]
        pieces.append(Piece(spans, complete))
    return pieces


def _cut_into_pieces(
    order: Sequence[int], cached_S: IntArray, end_S: IntArray, most_tokens: int
) -> Iterator[list[Span]]:
    """Yield the spans of each piece.

    A piece has at most ``most_tokens`` tokens and `PIECE_KEYS` keys; a piece of one slot may have more keys.
    """
    spans: list[Span] = []
    tokens = keys = 0
    for slot in order:
        start, last = int(cached_S[slot]), int(end_S[slot])
        while start < last:
            end = min(last, start + most_tokens - tokens)
            if spans and (end == start or keys + end > PIECE_KEYS):
                yield spans
                spans, tokens, keys = [], 0, 0
                continue
            spans.append(Span(slot, start, end))
            tokens, keys, start = tokens + end - start, keys + end, end
    if spans:
        yield spans


def _resolve_copies(copies: Sequence[Copy]) -> list[SpanCopy]:
    """Replace copies of copies by copies from the slots that read the tokens themselves."""
    origins: dict[int, list[Span]] = {}
    for copy in copies:
        inherited = [
            span._replace(end=min(span.end, copy.length))
            for span in origins.get(copy.source, [])
            if span.start < copy.length
        ]
        start = inherited[-1].end if inherited else 0  # of the tokens that the source itself reads
        spans = [*inherited, *([Span(copy.source, start, copy.length)] if start < copy.length else [])]
        origins |= dict.fromkeys(copy.targets, spans)
    return [SpanCopy(span, target) for target, spans in origins.items() for span in spans]


def _pack_piece(rows: Rows, piece: Piece, device: torch.device) -> Packed:
    spans, copies = piece
    sizes = [span.end - span.start for span in spans]
    ends = [span.end for span in spans]
    arrays = {
        "token_N": np.concatenate([rows.tokens_SL[s.slot, s.start : s.end] for s in spans]),
        "slot_N": np.repeat([s.slot for s in spans], sizes),
        "position_N": np.concatenate([np.arange(s.start, s.end) for s in spans]),
        "query_bounds": np.cumsum([0, *sizes]),
        "key_bounds": np.cumsum([0, *ends]),
        "key_slot_M": np.repeat([s.slot for s in spans], ends),
        "key_position_M": np.concatenate([np.arange(end) for end in ends]),
    }
    if copies:
        lengths = [c.span.end - c.span.start for c in copies]
        arrays["copy_from_C"] = np.repeat([c.span.slot for c in copies], lengths)
        arrays["copy_to_C"] = np.repeat([c.target for c in copies], lengths)
        arrays["copy_position_C"] = np.concatenate([np.arange(c.span.start, c.span.end) for c in copies])
    sent: Mapping[str, Tensor] = dict(zip(arrays, upload(list(arrays.values()), device), strict=True))
    token_N, bounds = sent["token_N"], ("query_bounds", "key_bounds")
    layout = SegmentLayout(
        num_last=1,  # unused, but models compute logits of at least one token
        max_visible=max(ends),
        longest_query=max(sizes),
        longest_key=max(ends),
        **{name: sent[name].int() if name in bounds else sent[name] for name in sent if name != "token_N"},
    )
    return Packed(token_N.unsqueeze(0), layout.position_N.unsqueeze(0), layout)
