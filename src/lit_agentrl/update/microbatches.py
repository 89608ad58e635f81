"""Splits of rows of unequal length into micro-batches of tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from lit_agentrl.distributed import max_count_over_ranks
from lit_agentrl.models.onednn import compute_padding
from lit_agentrl.models.packing import Packing
from lit_agentrl.models.segment_attention import upload

Form = Literal["padded", "packed", "shared"]

# widths are rounded up to a multiple, because kernels are prepared for each new number of tokens
WIDTH_STEP = 16
# maximum tokens that attention reads in a micro-batch, as a multiple of the budget; above 1, because they take memory
# only for queries, keys and values
MAX_ATTENDED = 4


def _list_units(unit_B: Tensor | None, num_rows: int) -> list[list[int]]:
    """List the rows of each unit, in the order of the first rows."""
    if unit_B is None:
        return [[row] for row in range(num_rows)]
    rows_of: dict[int, list[int]] = {}
    for row, unit in enumerate(unit_B.tolist()):
        rows_of.setdefault(unit, []).append(row)
    return list(rows_of.values())


def split_by_tokens(
    lengths_B: Tensor, tokens_per_microbatch: int, min_fill: float = 0.6, unit_B: Tensor | None = None
) -> list[Tensor]:
    """Split rows into padded micro-batches within the budget, sorted by length.

    Units (single rows if ``unit_B`` is None) are sorted by their longest row.  A unit longer than the budget gets its
    own micro-batch.  A unit shorter than ``min_fill`` times the longest of a micro-batch starts a new micro-batch, so
    that short episodes are not padded to long ones.  Equal lengths keep their order: the split depends on lengths
    alone.

    >>> [m.tolist() for m in split_by_tokens(torch.tensor([5, 9, 6, 8]), 18)]
    [[1, 3], [2, 0]]
    """
    length_of = lengths_B.clamp(min=1).tolist()
    units_by_longest = [
        (max(length_of[row] for row in unit), unit) for unit in _list_units(unit_B, len(length_of))
    ]
    parts: list[list[int]] = []
    longest = 0
    for length, unit in sorted(units_by_longest, key=lambda pair: -pair[0]):
        # the first unit of a part is its widest, since units are sorted
        has_room = bool(parts) and (len(parts[-1]) + len(unit)) * longest <= tokens_per_microbatch
        if has_room and length >= min_fill * longest:
            parts[-1].extend(unit)
        else:
            parts.append(list(unit))
            longest = length
    return [torch.tensor(part) for part in parts]


def pad_width(longest: int, available: int) -> int:
    """Return the width of a micro-batch: a multiple of `WIDTH_STEP` plus the last token.

    >>> pad_width(20, 100), pad_width(33, 100), pad_width(34, 40)
    (33, 33, 40)
    """
    return min(available, 1 - (1 - longest) // WIDTH_STEP * WIDTH_STEP)


def split_packed(lengths_B: Tensor, tokens_per_microbatch: int, unit_B: Tensor | None = None) -> list[Tensor]:
    """Split rows into packed micro-batches within the budget, longest first, first fit.

    A unit (a single row if ``unit_B`` is None) that is longer than the budget gets its own micro-batch.

    >>> [m.tolist() for m in split_packed(torch.tensor([5, 9, 6, 8]), 15)]
    [[1, 2], [3, 0]]
    """
    length_of = lengths_B.clamp(min=1).tolist()
    units_by_size = [
        (sum(length_of[row] for row in unit), unit) for unit in _list_units(unit_B, len(length_of))
    ]
    parts: list[list[int]] = []
    room: list[int] = []
    for length, unit in sorted(units_by_size, key=lambda pair: -pair[0]):
        place = next((i for i, left in enumerate(room) if length <= left), len(parts))
        if place == len(parts):
            parts.append([])
            room.append(tokens_per_microbatch)
        parts[place].extend(unit)
        room[place] -= length
    return [torch.tensor(part) for part in parts]


def split_shared(
    tokens_BT: Tensor, lengths_B: Tensor, tokens_per_microbatch: int, unit_B: Tensor | None = None
) -> list[tuple[Tensor, Packing]]:
    """Split rows into micro-batches that compute common prefixes once.

    Rows are sorted by their tokens, and the prefix that a row shares with the previous row is counted once.  Attention
    reads whole rows, so the rows of a micro-batch have at most `MAX_ATTENDED` times the budget.  A unit (a single
    row if ``unit_B`` is None) that is longer than the budget gets its own micro-batch.

    >>> rows = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0], [1, 2, 7, 0]])
    >>> [(m.tolist(), p.lengths, p.common) for m, p in split_shared(rows, torch.tensor([4, 2, 3]), 5)]
    [([0, 2], [4, 3], [0, 2]), ([1], [2], [0])]
    """
    tokens, lengths = tokens_BT.cpu().numpy(), lengths_B.clamp(min=1).numpy()
    # big-endian bytes sort as the numbers do
    keys = [row[:length].astype(">i8").tobytes() for row, length in zip(tokens, lengths, strict=True)]
    units = [sorted(unit, key=keys.__getitem__) for unit in _list_units(unit_B, len(tokens))]
    units.sort(key=lambda unit: keys[unit[0]])
    order = [row for unit in units for row in unit]
    neighbours, shorter_lengths = tokens[order], np.minimum(lengths[order][1:], lengths[order][:-1])
    is_equal = (neighbours[1:] == neighbours[:-1]) & (np.arange(tokens.shape[1]) < shorter_lengths[:, None])
    num_common = [0, *np.logical_and.accumulate(is_equal, axis=1).sum(axis=1).tolist()]
    common = dict(zip(order, num_common, strict=False))
    parts: list[list[int]] = []
    room = attended_room = 0
    for unit in units:
        length = int(lengths[unit].sum())
        needed = length - sum(common[row] for row in unit)
        if not parts or needed > room or length > attended_room:
            parts.append([])
            room, attended_room = tokens_per_microbatch, MAX_ATTENDED * tokens_per_microbatch
            needed += common[unit[0]]
            common[unit[0]] = 0
        parts[-1].extend(unit)
        room -= needed
        attended_room -= length
    return [
        (torch.tensor(rows), Packing(lengths[rows].tolist(), [common[row] for row in rows])) for rows in parts
    ]


@dataclass(frozen=True)
class MicroBatch:
    """Rows that go through a network together.

    Attributes:
        rows: indices of the rows.
        width: tokens of the widest row, with its padding.
        packing: layout of the rows in one packed row; None if they are padded to the width.
        num_real: tokens of the rows.
        num_needed: tokens without repeated common prefixes.
        num_computed: needed tokens and padding.
        place_A: index of each token to score among the (rows x width) tokens.
        num_first: number of rows of the first unit.
    """

    rows: Tensor
    width: int
    packing: Packing | None
    num_real: int
    num_needed: int
    num_computed: int
    place_A: Tensor
    num_first: int = 1

    def keep_first(self) -> MicroBatch:
        """Return the first unit alone with zero counts, for ranks that need one more micro-batch."""
        end = self.num_first
        packing = self.packing and Packing(self.packing.lengths[:end], self.packing.common[:end])
        place_A = self.place_A[self.place_A < end * self.width]
        return replace(
            self,
            rows=self.rows[:end],
            packing=packing,
            num_real=0,
            num_needed=0,
            num_computed=0,
            place_A=place_A,
        )

    def upload(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Copy ``rows`` and ``place_A`` to a device without waiting for the copy."""
        rows, place_A = upload([self.rows.numpy(), self.place_A.numpy()], device)
        return rows, place_A


def split_micro_batches(
    tensors: Mapping[str, Tensor], tokens_per_microbatch: int, form: Form, unit: str | None = None,
    scored: str = "is_action_BT",
) -> list[MicroBatch]:  # fmt: skip
    """Split rows into micro-batches within a budget of computed tokens before padding.

    A unit that is longer than the budget gets its own micro-batch.

    Args:
        tensors: holds ``tokens_BT``, ``is_real_BT`` and the column ``scored``.
        tokens_per_microbatch: the budget.
        form: ``padded``, ``packed`` (concatenated) or ``shared`` (concatenated, with common prefixes computed once).
        unit: column of unit numbers; rows with equal numbers stay together; None: any rows may be separated.
        scored: column that is True at the tokens to score.
    """
    is_scored_BT = tensors[scored].cpu()
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
    batches = []
    for rows, packing in parts:
        width = pad_width(int(lengths_B[rows].max()), tensors["tokens_BT"].shape[1])
        real = needed = int(lengths_B[rows].sum())
        computed = len(rows) * width
        if packing is not None:
            needed = packing.num_tokens
            computed = needed + (compute_padding(needed) if is_cpu else 0)
        first = 1 if unit_B is None else int((unit_B[rows] == unit_B[rows[0]]).sum())
        place_A = is_scored_BT[rows, :width].flatten().nonzero().squeeze(1)
        batches.append(MicroBatch(rows, width, packing, real, needed, computed, place_A, first))
    return batches


def select_rows(
    tensors: Mapping[str, Tensor],
    keep_B: Tensor,
    *,
    at_least: int,
    units: str = "trajectory_B",
    among: tuple[Tensor, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Select the rows of ``keep_B``, and rows without weight if there are too few units.

    Each minibatch needs a unit: until there are ``at_least`` units, dropped units stay, without action tokens, value
    targets and return.

    Args:
        tensors: rows by name.
        keep_B: True for rows to keep.
        at_least: minimum number of units.
        units: column of the unit numbers.
        among: the columns ``units`` and ``keep_B`` of the rows of all ranks; None if there is one rank.
    """
    unit_B = tensors[units]
    all_unit_B, all_keep_B = among or (unit_B, keep_B)
    kept_units = torch.unique(all_unit_B[all_keep_B])
    dropped_unit_B = all_unit_B[~torch.isin(all_unit_B, kept_units)]
    extra_units = list(dict.fromkeys(dropped_unit_B.tolist()))[: max(0, at_least - len(kept_units))]
    rows = (keep_B | torch.isin(unit_B, kept_units.new_tensor(extra_units))).nonzero().squeeze(1)
    selected = {name: tensor[rows] for name, tensor in tensors.items()}
    for name in ("is_action_BT", "is_value_target_BT"):
        if name in selected:
            selected[name] = selected[name] & keep_B[rows, None]
    if "return_B" in selected:
        selected["return_B"] = selected["return_B"].masked_fill(~keep_B[rows], math.nan)
    return selected


@torch.no_grad()
def run_micro_batches(
    score: Callable[..., Tensor],
    tensors: Mapping[str, Tensor],
    tokens_per_microbatch: int,
    form: Form = "padded",
) -> Tensor:
    """Call ``score(tokens_BT=, is_action_BT=, packing=, place_A=)`` on all rows, without gradient.

    Rows are scored in micro-batches.  Every rank calls ``score`` equally often, since a sharded network computes on all
    ranks together.

    Args:
        score: returns a (B, T) tensor for right-padded rows, or a wider one of (B, T, K).
        tensors: holds ``tokens_BT``, ``is_action_BT`` and ``is_real_BT``; ``experts_BK`` is passed on if present.
        tokens_per_microbatch: maximum number of computed tokens of one call.
        form: see `split_micro_batches`.
    """
    shape, device = tensors["tokens_BT"].shape, tensors["tokens_BT"].device
    # explicit, so that torch's default precision has no effect
    out_BT = torch.zeros(shape, dtype=torch.float32, device=device)
    parts = split_micro_batches(tensors, tokens_per_microbatch, form)
    num_calls = max_count_over_ranks(len(parts), out_BT.device)
    for part in parts:
        index, place_A = part.upload(out_BT.device)
        columns = {name: tensors[name][index, : part.width] for name in ("tokens_BT", "is_action_BT")}
        if "experts_BK" in tensors:
            columns["experts_BK"] = tensors["experts_BK"][index]
        scored = score(**columns, packing=part.packing, place_A=place_A)
        if scored.dim() > out_BT.dim():
            out_BT = out_BT.new_zeros((*shape, *scored.shape[2:]))
        out_BT = out_BT.to(scored.dtype)  # float64 stays float64
        out_BT[index, : part.width] = scored
    filler_BT = torch.zeros((1, 2), dtype=torch.int64, device=out_BT.device)
    packing = None if form == "padded" else Packing.from_lengths([2])
    for _ in range(num_calls - len(parts)):  # another rank has more
        scored = score(
            tokens_BT=filler_BT, is_action_BT=filler_BT.bool(), packing=packing, place_A=filler_BT[0, :0]
        )
        if scored.dim() > out_BT.dim():
            out_BT = out_BT.new_zeros((*shape, *scored.shape[2:]))
        out_BT = out_BT.to(scored.dtype)  # a rank without rows returns the precision of the other ranks
    return out_BT
