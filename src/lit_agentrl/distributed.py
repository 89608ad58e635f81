"""The few collectives of a run, and what a strategy of several processes does; on one process nothing is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lit_agentrl.batch import padded

T = TypeVar("T")
_ORDER = "order of rows"
Deal = Callable[..., list[int]]  # (loads=, parts=, ranks=, world_size=) of all units -> the new rank of each
Context = AbstractContextManager[Any]


@contextmanager
def _moved(network: nn.Module, device: torch.device) -> Iterator[None]:
    network.to(device)
    yield


@dataclass(frozen=True, kw_only=True)
class StrategyDoors:
    """What a strategy does for the rest of a run; the defaults are those of one process.

    Attributes:
        is_sharded: whether each process holds a part of the weights alone.
        shard: (trained, frozen) cuts networks up over ranks, in place, before optimizers are made.
        in_use: (network, device) is entered around the use of a frozen network, which lies on the device within.
        gathered: (network) is entered around generation, within which there is no collective.
        whole_network: (network) as it was before it was cut up, on rank 0, None elsewhere; all ranks must call it.
        whole_copy: (network) the same on every rank, in the precision that it computes in: what a worker of a rank is
            given; all ranks must call it.
        deal: says which rank trains on each unit; see `minibatches`.  None: rows stay where they were played.
        block_backward_sync: is entered for all but the last backward of a step.
        clip_gradient_norm: (parameters, limit) scales gradients down in place, and gives their norm before.
        barrier: (name) waits until all ranks are here; one that does not come in time is named.
        finish: called once after the last use of a trainer, where nothing failed; waits for the others.
        failed: (error) is called once where something did; gives what is to be raised in place of the error.
        close: called last, also where the run was interrupted; leaves what joins the processes.
    """

    is_sharded: bool = False
    shard: Callable[[Sequence[nn.Module], Sequence[nn.Module]], None] = lambda trained, frozen: None
    in_use: Callable[[nn.Module, torch.device], Context] = _moved
    gathered: Callable[[nn.Module], Context] = nullcontext
    whole_network: Callable[[nn.Module], nn.Module | None] = lambda network: network
    whole_copy: Callable[[nn.Module], Any] = lambda network: network
    deal: Deal | None = None
    block_backward_sync: Callable[[], Context] = nullcontext
    clip_gradient_norm: Callable[..., Tensor] = nn.utils.clip_grad_norm_
    barrier: Callable[[str], None] = lambda name: None
    finish: Callable[[], None] = lambda: None
    failed: Callable[[Exception], Exception] = lambda error: error
    close: Callable[[], None] = lambda: None


def world_size() -> int:
    """Number of training processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Number of this process among them."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def leave_group() -> None:
    """Leave what joins the processes; one of its threads that is left aborts the process when the interpreter ends."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def sum_over_ranks(value: Tensor) -> Tensor:
    """Sum of a detached tensor over all ranks."""
    if world_size() == 1:
        return value
    value = value.detach().clone()
    dist.all_reduce(value)
    return value


def mean_over_ranks(x_BT: Tensor, mask_BT: Tensor) -> float:
    """Mean of ``x_BT`` where ``mask_BT`` is True, over the rows of all ranks; 0 where it is True nowhere."""
    selected_BT = torch.where(mask_BT, x_BT, torch.zeros_like(x_BT))
    pair = torch.stack([selected_BT.sum(), mask_BT.sum().to(x_BT.dtype)])
    total, count = sum_over_ranks(pair).tolist()
    return float(total / max(count, 1.0))


def max_over_ranks(value: Tensor) -> Tensor:
    """Largest value over all ranks, elementwise."""
    if world_size() == 1:
        return value
    value = value.detach().clone()
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return value


def gather_objects(items: list[T]) -> list[T]:
    """The items of all ranks, in rank order; this rank's are the same objects, the others' are copies."""
    if world_size() == 1:
        return items
    parts: list[list[T]] = [[] for _ in range(world_size())]
    dist.all_gather_object(parts, items)
    parts[rank()] = items
    return [item for part in parts for item in part]


def gather_texts(texts: Sequence[str]) -> list[str]:
    """The texts of all ranks, in rank order."""
    if world_size() == 1:
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
    """The rows of all ranks under each name, and which of them are this rank's.

    Columns are padded to the widest rank, so statistics over rows are global.

    Args:
        tensors: this rank's rows, which may be none.
        order_B: one number a row, by which the gathered rows are sorted, so that first come is the same on any
            number of ranks; a single process has them in order.  Without one, rows come in rank order.
    """
    if order_B is not None and world_size() > 1:
        everyone, mine = gather_rows({**tensors, _ORDER: order_B})
        order = torch.argsort(everyone.pop(_ORDER), stable=True)
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=order.device)
        return {name: tensor[order] for name, tensor in everyone.items()}, place[mine]
    if world_size() == 1:
        first = next(iter(tensors.values()))
        return dict(tensors), slice(0, first.shape[0])
    device = next(iter(tensors.values())).device
    rows = len(next(iter(tensors.values())))
    counts = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world_size())]
    dist.all_gather(counts, torch.tensor([rows], device=device))
    sizes = [int(count) for count in counts]
    most = max(sizes)
    gathered = {}
    for name, tensor in as_wide(tensors).items():
        plain = tensor.int() if tensor.dtype == torch.bool else tensor
        plain = torch.cat([plain, plain.new_zeros((most - rows, *plain.shape[1:]))])
        parts = [torch.empty_like(plain) for _ in range(world_size())]
        dist.all_gather(parts, plain.contiguous())
        gathered[name] = torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)]).to(
            tensor.dtype
        )
    start = sum(sizes[: rank()])
    return gathered, slice(start, start + rows)


def as_wide(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The rows, each tensor of two dimensions padded to its width on the rank where it is widest; collective."""
    names = [name for name, tensor in tensors.items() if tensor.dim() == 2]
    if not names:
        return dict(tensors)
    widths = torch.tensor([tensors[name].shape[1] for name in names], device=tensors[names[0]].device)
    return padded(tensors, dict(zip(names, max_over_ranks(widths).tolist(), strict=True)))


def send_rows(rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
    """What the ranks send to this one of their rows, in rank order.

    Args:
        rows: this rank's, those for rank 0 first; as wide on all ranks.
        sent: rows for each rank.
        received: rows from each rank.
    """
    plain = rows.to(torch.uint8) if rows.dtype == torch.bool else rows
    got = plain.new_empty((sum(received), *plain.shape[1:]))
    dist.all_to_all_single(got, plain.contiguous(), received, sent)
    return got.to(rows.dtype)
