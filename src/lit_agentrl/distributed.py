"""Collectives of a run, and the hooks of a strategy; one process sends nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lit_agentrl.batch import pad_columns

T = TypeVar("T")
_ORDER = "order of rows"
Deal = Callable[..., list[int]]  # (loads=, parts=, ranks=, world_size=) of all units -> new rank of each
Context = AbstractContextManager[Any]


@contextmanager
def _move_to_device(network: nn.Module, device: torch.device) -> Iterator[None]:
    network.to(device)
    yield


@dataclass(frozen=True, kw_only=True)
class StrategyHooks:
    """Functions that a strategy offers to a run; the defaults serve one process.

    Attributes:
        is_sharded: whether each process holds only a part of the weights.
        shard: (trained, frozen) shards networks over ranks, in place, before optimizers are made.
        place_on_device: (network, device) context around the use of a frozen network, which is on the device inside it.
        gather_weights: (network) context around generation; inside it there are no collectives.
        unshard_on_rank_zero: (network) returns the unsharded network on rank 0, None elsewhere; all ranks must call it.
        unshard_on_every_rank: (network) returns the unsharded network, in its compute precision, for the worker of the
            rank; all ranks must call it.
        deal: assigns the units of training to ranks; see `minibatches`.  None: rows stay where they were played.
        block_backward_sync: context around all backward passes of a step but the last.
        clip_gradient_norm: (parameters, limit) scales gradients down in place and returns their norm before.
        barrier: (name) waits for all ranks; the error names a rank that does not arrive in time.
        finish: called once after the last use of a trainer if nothing failed; waits for the other ranks.
        resolve_failure: (error) called once if something failed; returns the error to raise in its place.
        close: called last, also after an interrupt; leaves the process group.
    """

    is_sharded: bool = False
    shard: Callable[[Sequence[nn.Module], Sequence[nn.Module]], None] = lambda trained, frozen: None
    place_on_device: Callable[[nn.Module, torch.device], Context] = _move_to_device
    gather_weights: Callable[[nn.Module], Context] = nullcontext
    unshard_on_rank_zero: Callable[[nn.Module], nn.Module | None] = lambda network: network
    unshard_on_every_rank: Callable[[nn.Module], Any] = lambda network: network
    deal: Deal | None = None
    block_backward_sync: Callable[[], Context] = nullcontext
    clip_gradient_norm: Callable[..., Tensor] = nn.utils.clip_grad_norm_
    barrier: Callable[[str], None] = lambda name: None
    finish: Callable[[], None] = lambda: None
    resolve_failure: Callable[[Exception], Exception] = lambda error: error
    close: Callable[[], None] = lambda: None


def get_world_size() -> int:
    """Return the number of training processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def get_rank() -> int:
    """Return the number of this training process."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def leave_group() -> None:
    """Leave the process group, whose threads would abort the process at interpreter exit."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def sum_over_ranks(value: Tensor) -> Tensor:
    """Sum a tensor over all ranks; the result is detached."""
    if get_world_size() == 1:
        return value
    value = value.detach().clone()
    dist.all_reduce(value)
    return value


def mean_over_ranks(x_BT: Tensor, mask_BT: Tensor) -> float:
    """Average ``x_BT`` where ``mask_BT`` is True, over the rows of all ranks.

    The mean is 0 if the mask is True nowhere.
    """
    selected_BT = torch.where(mask_BT, x_BT, torch.zeros_like(x_BT))
    pair = torch.stack([selected_BT.sum(), mask_BT.sum().to(x_BT.dtype)])
    total, count = sum_over_ranks(pair).tolist()
    return float(total / max(count, 1.0))


def max_over_ranks(value: Tensor) -> Tensor:
    """Return the elementwise maximum over all ranks."""
    if get_world_size() == 1:
        return value
    value = value.detach().clone()
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return value


def max_count_over_ranks(count: int, device: torch.device) -> int:
    """Return the maximum of a number over all ranks.

    A single process does not wait for a GPU.
    """
    return count if get_world_size() == 1 else int(max_over_ranks(torch.tensor(count, device=device)))


def gather_objects(items: list[T]) -> list[T]:
    """Gather the items of all ranks in rank order; those of other ranks are copies."""
    if get_world_size() == 1:
        return items
    parts: list[list[T]] = [[] for _ in range(get_world_size())]
    dist.all_gather_object(parts, items)
    parts[get_rank()] = items
    return [item for part in parts for item in part]


def gather_texts(texts: Sequence[str]) -> list[str]:
    """Gather the texts of all ranks in rank order."""
    if get_world_size() == 1:
        return list(texts)
    parts = [text.encode("utf-8", "surrogatepass") for text in texts]
    rows = torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8) if any(parts) else torch.empty(0)
    sizes = gather_rows({"size": torch.tensor([len(part) for part in parts], dtype=torch.int64)})[0]["size"]
    joined = gather_rows({"bytes": rows.to(torch.uint8)})[0]["bytes"].numpy().tobytes()
    ends = torch.cumsum(sizes, 0).tolist()
    return [
        joined[end - size : end].decode("utf-8", "surrogatepass")
        for end, size in zip(ends, sizes.tolist(), strict=True)
    ]


def gather_rows(
    tensors: Mapping[str, Tensor], order_B: Tensor | None = None
) -> tuple[dict[str, Tensor], slice | Tensor]:
    """Gather the rows of all ranks by name, and the index of this rank's rows.

    Columns are padded to the widest rank, so statistics over rows are global.

    Args:
        tensors: this rank's rows, possibly none.
        order_B: sort key of each row; the gathered rows are then in the same order on any number of ranks.  The rows
            of a single process must be sorted already.  None: rank order.
    """
    if order_B is not None and get_world_size() > 1:
        gathered, own_rows = gather_rows({**tensors, _ORDER: order_B})
        order = torch.argsort(gathered.pop(_ORDER), stable=True)
        position = torch.empty_like(order)
        position[order] = torch.arange(len(order), device=order.device)
        return {name: tensor[order] for name, tensor in gathered.items()}, position[own_rows]
    if get_world_size() == 1:
        first = next(iter(tensors.values()))
        return dict(tensors), slice(0, first.shape[0])
    device = next(iter(tensors.values())).device
    rows = len(next(iter(tensors.values())))
    counts = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(get_world_size())]
    dist.all_gather(counts, torch.tensor([rows], device=device))
    sizes = [int(count) for count in counts]
    max_size = max(sizes)
    gathered = {}
    for name, tensor in pad_to_widest(tensors).items():
        plain = tensor.int() if tensor.dtype == torch.bool else tensor
        plain = torch.cat([plain, plain.new_zeros((max_size - rows, *plain.shape[1:]))])
        parts = [torch.empty_like(plain) for _ in range(get_world_size())]
        dist.all_gather(parts, plain.contiguous())
        gathered[name] = torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)]).to(
            tensor.dtype
        )
    start = sum(sizes[: get_rank()])
    return gathered, slice(start, start + rows)


def pad_to_widest(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Pad each two-dimensional tensor to its largest width over all ranks; collective."""
    names = [name for name, tensor in tensors.items() if tensor.dim() == 2]
    if not names:
        return dict(tensors)
    widths = torch.tensor([tensors[name].shape[1] for name in names], device=tensors[names[0]].device)
    return pad_columns(tensors, dict(zip(names, max_over_ranks(widths).tolist(), strict=True)))


def send_rows(rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
    """Exchange rows between ranks; return the rows received, in rank order.

    Args:
        rows: this rank's rows, those for rank 0 first; equally wide on all ranks.
        sent: number of rows for each rank.
        received: number of rows from each rank.
    """
    plain = rows.to(torch.uint8) if rows.dtype == torch.bool else rows
    output = plain.new_empty((sum(received), *plain.shape[1:]))
    dist.all_to_all_single(output, plain.contiguous(), received, sent)
    return output.to(rows.dtype)
