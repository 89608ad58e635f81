"""Cutting a batch of ragged rows into minibatches of trajectories and micro-batches of tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from lit_agentrl.modules.collective import max_over_ranks

# of the widths of micro-batches: products are prepared anew for each number of tokens that they have not met
WIDTH_STEP = 16


def split_by_tokens(lengths_B: Tensor, tokens_per_microbatch: int, min_fill: float = 0.6) -> list[Tensor]:
    """Row indices of micro-batches: rows sorted by length, each padded micro-batch within the budget.

    A row longer than the budget stands alone; a row shorter than ``min_fill`` of the longest starts a new
    micro-batch, so that short episodes are not padded to long ones.  Equal lengths keep their order: the
    split is a function of the lengths.

    >>> [m.tolist() for m in split_by_tokens(torch.tensor([5, 9, 6, 8]), 18)]
    [[1, 3], [2, 0]]
    """
    parts: list[list[int]] = []
    longest = 0
    for row in torch.argsort(lengths_B, descending=True, stable=True).tolist():
        length = max(1, int(lengths_B[row]))  # sorted: the first row of a part is its widest
        has_room = bool(parts) and (len(parts[-1]) + 1) * longest <= tokens_per_microbatch
        if has_room and length >= min_fill * longest:
            parts[-1].append(row)
        else:
            parts.append([row])
            longest = length
    return [torch.tensor(part) for part in parts]


def padded_width(longest: int, available: int) -> int:
    """Tokens of each row of a micro-batch: one, which nothing is predicted from, and a multiple of `WIDTH_STEP`.

    >>> padded_width(20, 100), padded_width(33, 100), padded_width(34, 40)
    (33, 33, 40)
    """
    return min(available, 1 - (1 - longest) // WIDTH_STEP * WIDTH_STEP)


def split_packed(lengths_B: Tensor, tokens_per_microbatch: int) -> list[Tensor]:
    """Row indices of micro-batches whose real tokens are within the budget: longest rows first, first fit.

    A row longer than the budget stands alone.

    >>> [m.tolist() for m in split_packed(torch.tensor([5, 9, 6, 8]), 15)]
    [[1, 2], [3, 0]]
    """
    parts: list[list[int]] = []
    room: list[int] = []
    for row in torch.argsort(lengths_B, descending=True, stable=True).tolist():
        length = max(1, int(lengths_B[row]))
        place = next((i for i, left in enumerate(room) if length <= left), len(parts))
        if place == len(parts):
            parts.append([])
            room.append(tokens_per_microbatch)
        parts[place].append(row)
        room[place] -= length
    return [torch.tensor(part) for part in parts]


def split_trajectories(trajectory_B: Tensor, count: int, generator: torch.Generator | None) -> list[Tensor]:
    """Row indices of ``count`` minibatches of near-equal numbers of whole trajectories.

    Args:
        trajectory_B: id of each row's trajectory; rows of one trajectory stay together.
        count: number of minibatches; 1 keeps the order.
        generator: shuffles trajectories when there are several minibatches.

    Raises:
        ValueError: fewer trajectories than minibatches.
    """
    ids, index_B = torch.unique(trajectory_B, return_inverse=True)
    if len(ids) < count:
        raise ValueError(
            f"update.minibatches={count} exceeds the {len(ids)} trajectories selected for training"
        )
    if count == 1:
        return [torch.arange(len(trajectory_B))]
    place = torch.randperm(len(ids), generator=generator)
    part_B = place[index_B] * count // len(ids)
    return [torch.nonzero(part_B == part).squeeze(1) for part in range(count)]


def kept_rows(
    tensors: Mapping[str, Tensor],
    keep_B: Tensor,
    *,
    at_least: int,
    among: tuple[Tensor, Tensor] | None = None,
) -> dict[str, Tensor]:
    """The rows where ``keep_B`` is True of each tensor; where they are too few, also some without weight.

    A minibatch must not be left without trajectories: dropped ones stay, with neither action tokens nor value
    targets, until there are ``at_least`` as many, or none is left.

    Args:
        tensors: rows under each name.
        keep_B: of these rows.
        at_least: trajectories.
        among: ``trajectory_B`` and ``keep_B`` of the rows of all ranks, where there are several.
    """
    trajectory_B = tensors["trajectory_B"]
    all_B, all_keep_B = among or (trajectory_B, keep_B)
    kept = torch.unique(all_B[all_keep_B])
    dropped = list(dict.fromkeys(all_B[~all_keep_B].tolist()))[: max(0, at_least - len(kept))]
    stays = torch.cat([kept, kept.new_tensor(dropped)])
    rows = torch.isin(trajectory_B, stays).nonzero().squeeze(1)
    found = {name: tensor[rows] for name, tensor in tensors.items()}
    for name in ("is_action_BT", "is_value_target_BT"):
        if name in found:
            found[name] = found[name] & keep_B[rows, None]
    return found


@torch.no_grad()
def micro_batched(
    score: Callable[..., Tensor],
    tensors: Mapping[str, Tensor],
    tokens_per_microbatch: int,
    is_packed: bool = False,
) -> Tensor:
    """``score(tokens_BT=, is_action_BT=, lengths=)`` of every row, a micro-batch at a time; (B, T), no gradient.

    Every rank calls ``score`` equally often, since a network that is cut up computes with all of them.

    Args:
        score: gives a (B, T) tensor for right-padded rows.
        tensors: holds ``tokens_BT``, ``is_action_BT`` and ``is_real_BT``.
        tokens_per_microbatch: padded tokens of one call.
        is_packed: pass ``lengths``, for rows that are to be packed; else it is None, and padding counts.
    """
    lengths_B = tensors["is_real_BT"].sum(1).cpu()
    shape, device = tensors["tokens_BT"].shape, tensors["tokens_BT"].device
    out_BT = torch.zeros(shape, dtype=torch.float32, device=device)  # whatever the default of a precision is
    split = split_packed if is_packed else split_by_tokens
    parts = split(lengths_B, tokens_per_microbatch)
    most = int(max_over_ranks(torch.tensor(len(parts), device=out_BT.device)))
    for rows in parts:
        width, index = padded_width(int(lengths_B[rows].max()), out_BT.shape[1]), rows.to(out_BT.device)
        given = {name: tensors[name][index, :width] for name in ("tokens_BT", "is_action_BT")}
        scored = score(**given, lengths=lengths_B[rows].tolist() if is_packed else None)
        out_BT = out_BT.to(scored.dtype)  # float64 stays float64
        out_BT[index, :width] = scored
    nothing_BT = torch.zeros((1, 2), dtype=torch.int64, device=out_BT.device)
    for _ in range(most - len(parts)):  # another rank has more
        scored = score(
            tokens_BT=nothing_BT, is_action_BT=nothing_BT.bool(), lengths=[2] if is_packed else None
        )
        out_BT = out_BT.to(scored.dtype)  # a rank without rows gives what the others give
    return out_BT
