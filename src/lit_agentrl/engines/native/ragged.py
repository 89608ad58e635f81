"""Pack the unread tokens of many slots into one forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lit_agentrl.engines.native.attention import Chunk, Layout, MaskedLayout, Visible
from lit_agentrl.engines.native.prefixes import Copy
from lit_agentrl.engines.native.rows import Rows
from lit_agentrl.models.onednn import compute_padding

SLACK = 1.3  # maximum ratio of a chunk's padded work to its real work


class Packed(NamedTuple):
    """The input of one forward."""

    token_1N: Tensor
    position_1N: Tensor
    layout: Layout


def send(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Copy an array to a device without waiting for the copy."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def pack_unread(
    rows: Rows,
    slots_A: npt.NDArray[np.int64],
    copies: Sequence[Copy],
    device: torch.device,
    *,
    end_S: npt.NDArray[np.int64] | None = None,
) -> Packed:
    """Return the unread tokens and positions of these ascending slots, and how to read them.

    With ``end_S``, the tokens of a slot from that position on stay unread.  Padding precedes all other tokens; its keys
    and values go to an extra slot after the last.
    """
    end_S = rows.total_S if end_S is None else end_S
    last_A = end_S[slots_A] - 1
    num_real = int((end_S[slots_A] - rows.cached_S[slots_A]).sum())
    start = num_padding = compute_padding(num_real) if device.type == "cpu" else 0
    tokens, positions = [np.zeros(num_padding, dtype=np.int64)], [np.zeros(num_padding, dtype=np.int64)]
    slots, chunks = [np.full(num_padding, rows.num_slots)], []
    for group in _group_by_length(slots_A[last_A > rows.cached_S[slots_A]], rows.cached_S, end_S):
        lengths = [int(end_S[slot] - rows.cached_S[slot] - 1) for slot in group]
        chunks.append(_make_chunk(group, lengths, rows, start, device))
        for slot, length in zip(group, lengths, strict=True):
            num_cached = int(rows.cached_S[slot])
            tokens.append(rows.tokens_SL[slot, num_cached : num_cached + length])
            slots.append(np.full(length, slot))
            positions.append(np.arange(num_cached, num_cached + length))
        start += sum(lengths)
    tokens.append(rows.tokens_SL[slots_A, last_A])
    slots.append(slots_A)
    positions.append(last_A)
    packed = np.stack([np.concatenate(part) for part in (tokens, slots, positions)])
    token_N, slot_N, position_N = send(packed, device)
    layout = MaskedLayout(
        slot_N=slot_N,
        position_N=position_N,
        num_padding=num_padding,
        copies=[(copy.source, send(np.array(copy.targets), device), copy.length) for copy in copies],
        chunks=chunks,
        **_describe_last(slots_A, last_A, rows.num_live, device),
    )
    return Packed(token_N.unsqueeze(0), position_N.unsqueeze(0), layout)


def _describe_last(
    slots_A: npt.NDArray[np.int64], last_A: npt.NDArray[np.int64], num_rows: int, device: torch.device
) -> dict[str, Any]:
    """Return the fields of a `MaskedLayout` for the last token of each slot."""
    max_visible = int(last_A.max()) + 1
    are_all_read = len(slots_A) == num_rows
    last_R = np.zeros(num_rows, dtype=np.int64)  # the result of an idle slot is not used
    last_R[slots_A] = last_A
    query_R = np.zeros(num_rows, dtype=np.int64)
    query_R[slots_A] = np.arange(len(slots_A))
    is_visible = np.arange(max_visible) <= last_R[:, None]
    return {
        "num_last": len(slots_A),
        "num_rows": num_rows,
        "max_visible": max_visible,
        "last_sees_R": Visible(send(is_visible[:, None, None], device)),
        "last_R": None if are_all_read else send(query_R, device),
        "rows_of_last": None if are_all_read else send(slots_A, device),
    }


def _group_by_length(
    slots: npt.NDArray[np.int64], cached_S: npt.NDArray[np.int64], end_S: npt.NDArray[np.int64]
) -> list[list[int]]:
    """Group slots of similar lengths, so that padding to the longest costs little."""
    groups: list[list[int]] = []
    work = widest = deepest = 0
    order = sorted(slots.tolist(), key=lambda slot: (end_S[slot] - cached_S[slot], end_S[slot], slot))
    for slot in order:
        width, depth = int(end_S[slot] - cached_S[slot] - 1), int(end_S[slot] - 1)
        size = len(groups[-1]) + 1 if groups else 0
        padded = size * max(widest, width) * max(deepest, depth)
        if groups and padded <= SLACK * (work + width * depth):
            groups[-1].append(slot)
            work, widest, deepest = work + width * depth, max(widest, width), max(deepest, depth)
        else:
            groups.append([slot])
            work, widest, deepest = width * depth, width, depth
    return [sorted(group) for group in groups]


def _make_chunk(group: list[int], lengths: list[int], rows: Rows, start: int, device: torch.device) -> Chunk:
    width = max(lengths)
    is_real_PM = np.arange(width) < np.array(lengths)[:, None]
    index_PM = np.where(is_real_PM, 0, start)
    index_PM[is_real_PM] = start + np.arange(sum(lengths))
    cached_P = rows.cached_S[group]
    length = int((cached_P + lengths).max())
    position_PM = np.where(is_real_PM, cached_P[:, None] + np.arange(width), 0)
    sees_PML = np.arange(length) <= position_PM[:, :, None]
    is_contiguous = group[-1] - group[0] == len(group) - 1
    return Chunk(
        slots_P=slice(group[0], group[-1] + 1) if is_contiguous else send(np.array(group), device),
        index_PM=send(index_PM, device),
        real_C=send(np.flatnonzero(is_real_PM), device),
        start=start,
        length=length,
        sees_PML=send(sees_PML, device),
    )
