"""Cutting rows of unequal length into micro-batches of tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from lit_agentrl.distributed import max_over_ranks
from lit_agentrl.models.onednn import compute_padding
from lit_agentrl.models.packing import Packing

Form = Literal["padded", "packed", "shared"]

# of the widths of micro-batches: products are prepared anew for each number of tokens that they have not met
WIDTH_STEP = 16
# tokens that attention reads in a micro-batch over its budget; only queries, keys and values are so many
_MOST_LAID_OUT = 4


def _blocks(unit_B: Tensor | None, rows: int) -> list[list[int]]:
    """Rows that must stay together, in the order of their first; each alone without units."""
    if unit_B is None:
        return [[row] for row in range(rows)]
    found: dict[int, list[int]] = {}
    for row, unit in enumerate(unit_B.tolist()):
        found.setdefault(unit, []).append(row)
    return list(found.values())


def split_by_tokens(
    lengths_B: Tensor, tokens_per_microbatch: int, min_fill: float = 0.6, unit_B: Tensor | None = None
) -> list[Tensor]:
    """Row indices of micro-batches: units sorted by their longest row, each padded micro-batch within the budget.

    A unit, a row without ``unit_B``, that is longer than the budget stands alone; one shorter than ``min_fill`` of
    the longest starts a new micro-batch, so that short episodes are not padded to long ones.  Equal lengths keep
    their order: the split is a function of the lengths.

    >>> [m.tolist() for m in split_by_tokens(torch.tensor([5, 9, 6, 8]), 18)]
    [[1, 3], [2, 0]]
    """
    length_of = lengths_B.clamp(min=1).tolist()
    longest_of = [(max(length_of[row] for row in block), block) for block in _blocks(unit_B, len(length_of))]
    parts: list[list[int]] = []
    longest = 0
    for length, block in sorted(longest_of, key=lambda pair: -pair[0]):
        # sorted: the first unit of a part is its widest
        has_room = bool(parts) and (len(parts[-1]) + len(block)) * longest <= tokens_per_microbatch
        if has_room and length >= min_fill * longest:
            parts[-1].extend(block)
        else:
            parts.append(list(block))
            longest = length
    return [torch.tensor(part) for part in parts]


def padded_width(longest: int, available: int) -> int:
    """Tokens of each row of a micro-batch: one, which nothing is predicted from, and a multiple of `WIDTH_STEP`.

    >>> padded_width(20, 100), padded_width(33, 100), padded_width(34, 40)
    (33, 33, 40)
    """
    return min(available, 1 - (1 - longest) // WIDTH_STEP * WIDTH_STEP)


def split_packed(lengths_B: Tensor, tokens_per_microbatch: int, unit_B: Tensor | None = None) -> list[Tensor]:
    """Row indices of micro-batches whose real tokens are within the budget: longest units first, first fit.

    A unit, a row without ``unit_B``, that is longer than the budget stands alone.

    >>> [m.tolist() for m in split_packed(torch.tensor([5, 9, 6, 8]), 15)]
    [[1, 2], [3, 0]]
    """
    length_of = lengths_B.clamp(min=1).tolist()
    sums = [(sum(length_of[row] for row in block), block) for block in _blocks(unit_B, len(length_of))]
    parts: list[list[int]] = []
    room: list[int] = []
    for length, block in sorted(sums, key=lambda pair: -pair[0]):
        place = next((i for i, left in enumerate(room) if length <= left), len(parts))
        if place == len(parts):
            parts.append([])
            room.append(tokens_per_microbatch)
        parts[place].extend(block)
        room[place] -= length
    return [torch.tensor(part) for part in parts]


def split_shared(
    tokens_BT: Tensor, lengths_B: Tensor, tokens_per_microbatch: int, unit_B: Tensor | None = None
) -> list[tuple[Tensor, Packing]]:
    """Micro-batches of rows that begin alike: in the order of their tokens, what is common to neighbours counted once.

    Attention reads whole rows, so that those of a micro-batch have at most `_MOST_LAID_OUT` times the budget.  A
    unit, a row without ``unit_B``, that is longer than the budget stands alone.

    >>> rows = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0], [1, 2, 7, 0]])
    >>> [(m.tolist(), p.lengths, p.common) for m, p in split_shared(rows, torch.tensor([4, 2, 3]), 5)]
    [([0, 2], [4, 3], [0, 2]), ([1], [2], [0])]
    """
    tokens, lengths = tokens_BT.cpu().numpy(), lengths_B.clamp(min=1).numpy()
    # big-endian bytes sort as the numbers do
    keys = [row[:length].astype(">i8").tobytes() for row, length in zip(tokens, lengths, strict=True)]
    blocks = [sorted(block, key=keys.__getitem__) for block in _blocks(unit_B, len(tokens))]
    blocks.sort(key=lambda block: keys[block[0]])
    order = [row for block in blocks for row in block]
    neighbours, shorter = tokens[order], np.minimum(lengths[order][1:], lengths[order][:-1])
    is_alike = (neighbours[1:] == neighbours[:-1]) & (np.arange(tokens.shape[1]) < shorter[:, None])
    alike = [0, *np.logical_and.accumulate(is_alike, axis=1).sum(axis=1).tolist()]
    common = dict(zip(order, alike, strict=False))
    parts: list[list[int]] = []
    room = laid_out = 0
    for block in blocks:
        length = int(lengths[block].sum())
        needed = length - sum(common[row] for row in block)
        if not parts or needed > room or length > laid_out:
            parts.append([])
            room, laid_out = tokens_per_microbatch, _MOST_LAID_OUT * tokens_per_microbatch
            needed += common[block[0]]
            common[block[0]] = 0
        parts[-1].extend(block)
        room -= needed
        laid_out -= length
    return [
        (torch.tensor(rows), Packing(lengths[rows].tolist(), [common[row] for row in rows])) for rows in parts
    ]


@dataclass(frozen=True)
class MicroBatch:
    """Rows that go through a network together.

    Attributes:
        rows: their indices.
        width: tokens of the widest, and what padding it is given.
        packing: how they are put into one row; None: they are padded to the width.
        num_real: tokens of the rows.
        num_needed: of them, those that are to be computed, the others being common to two rows.
        num_computed: with padding.
        num_first: rows of its first unit.
    """

    rows: Tensor
    width: int
    packing: Packing | None
    num_real: int
    num_needed: int
    num_computed: int
    num_first: int = 1

    def first(self) -> MicroBatch:
        """Its first unit alone, to run along with other ranks: it counts as nothing."""
        end = self.num_first
        packing = self.packing and Packing(self.packing.lengths[:end], self.packing.common[:end])
        rows = self.rows[:end]
        return replace(self, rows=rows, packing=packing, num_real=0, num_needed=0, num_computed=0)


def micro_batches(
    tensors: Mapping[str, Tensor], tokens_per_microbatch: int, form: Form, unit: str | None = None
) -> list[MicroBatch]:
    """How rows are cut into micro-batches of so many computed tokens, before padding; a longer unit stands alone.

    Args:
        tensors: holds ``tokens_BT`` and ``is_real_BT``.
        tokens_per_microbatch: the budget.
        form: ``padded`` rows; ``packed``: one after the other; ``shared``: so, and what they begin alike in once.
        unit: column whose equal numbers stay together; None: rows may be cut apart.
    """
    lengths_B = tensors["is_real_BT"].sum(1).cpu()
    unit_B = None if unit is None else tensors[unit].cpu()
    parts: list[tuple[Tensor, Packing | None]]
    if form == "shared":
        parts = [*split_shared(tensors["tokens_BT"], lengths_B, tokens_per_microbatch, unit_B)]
    elif form == "packed":
        rows_of = split_packed(lengths_B, tokens_per_microbatch, unit_B)
        parts = [(rows, Packing.from_lengths(lengths_B[rows].tolist())) for rows in rows_of]
    else:
        rows_of = split_by_tokens(lengths_B, tokens_per_microbatch, unit_B=unit_B)
        parts = [(rows, None) for rows in rows_of]
    is_cpu = tensors["tokens_BT"].device.type == "cpu"
    found = []
    for rows, packing in parts:
        width = padded_width(int(lengths_B[rows].max()), tensors["tokens_BT"].shape[1])
        real = needed = int(lengths_B[rows].sum())
        computed = len(rows) * width
        if packing is not None:
            needed = packing.num_tokens
            computed = needed + (compute_padding(needed) if is_cpu else 0)
        first = 1 if unit_B is None else int((unit_B[rows] == unit_B[rows[0]]).sum())
        found.append(MicroBatch(rows, width, packing, real, needed, computed, first))
    return found


def kept_rows(
    tensors: Mapping[str, Tensor],
    keep_B: Tensor,
    *,
    at_least: int,
    units: str = "trajectory_B",
    among: tuple[Tensor, Tensor] | None = None,
) -> dict[str, Tensor]:
    """The rows where ``keep_B`` is True of each tensor; where they are too few, also some without weight.

    A minibatch must not be left without units: dropped ones stay, with neither action tokens, value targets nor a
    return, until there are ``at_least`` as many, or none is left.

    Args:
        tensors: rows under each name.
        keep_B: of these rows.
        at_least: units.
        units: column of their numbers.
        among: that column and ``keep_B`` of the rows of all ranks, where there are several.
    """
    unit_B = tensors[units]
    all_B, all_keep_B = among or (unit_B, keep_B)
    kept = torch.unique(all_B[all_keep_B])
    others_B = all_B[~torch.isin(all_B, kept)]
    dropped = list(dict.fromkeys(others_B.tolist()))[: max(0, at_least - len(kept))]
    rows = (keep_B | torch.isin(unit_B, kept.new_tensor(dropped))).nonzero().squeeze(1)
    found = {name: tensor[rows] for name, tensor in tensors.items()}
    for name in ("is_action_BT", "is_value_target_BT"):
        if name in found:
            found[name] = found[name] & keep_B[rows, None]
    if "return_B" in found:
        found["return_B"] = found["return_B"].masked_fill(~keep_B[rows], math.nan)
    return found


@torch.no_grad()
def micro_batched(
    score: Callable[..., Tensor],
    tensors: Mapping[str, Tensor],
    tokens_per_microbatch: int,
    form: Form = "padded",
) -> Tensor:
    """``score(tokens_BT=, is_action_BT=, packing=)`` of every row, a micro-batch at a time; (B, T), no gradient.

    Every rank calls ``score`` equally often, since a network that is cut up computes with all of them.

    Args:
        score: gives a (B, T) tensor for right-padded rows, or a wider one of (B, T, K).
        tensors: holds ``tokens_BT``, ``is_action_BT`` and ``is_real_BT``; ``experts_BK`` too is handed on.
        tokens_per_microbatch: computed tokens of one call.
        form: see `micro_batches`.
    """
    shape, device = tensors["tokens_BT"].shape, tensors["tokens_BT"].device
    out_BT = torch.zeros(shape, dtype=torch.float32, device=device)  # whatever the default of a precision is
    parts = micro_batches(tensors, tokens_per_microbatch, form)
    most = int(max_over_ranks(torch.tensor(len(parts), device=out_BT.device)))
    for part in parts:
        index = part.rows.to(out_BT.device)
        given = {name: tensors[name][index, : part.width] for name in ("tokens_BT", "is_action_BT")}
        if "experts_BK" in tensors:
            given["experts_BK"] = tensors["experts_BK"][index]
        scored = score(**given, packing=part.packing)
        if scored.dim() > out_BT.dim():
            out_BT = out_BT.new_zeros((*shape, *scored.shape[2:]))
        out_BT = out_BT.to(scored.dtype)  # float64 stays float64
        out_BT[index, : part.width] = scored
    nothing_BT = torch.zeros((1, 2), dtype=torch.int64, device=out_BT.device)
    packing = None if form == "padded" else Packing.from_lengths([2])
    for _ in range(most - len(parts)):  # another rank has more
        scored = score(tokens_BT=nothing_BT, is_action_BT=nothing_BT.bool(), packing=packing)
        if scored.dim() > out_BT.dim():
            out_BT = out_BT.new_zeros((*shape, *scored.shape[2:]))
        out_BT = out_BT.to(scored.dtype)  # a rank without rows gives what the others give
    return out_BT
