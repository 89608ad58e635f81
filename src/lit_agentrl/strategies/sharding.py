"""Sharding of networks over ranks with PyTorch's FSDP2, and the reverse, without Lightning."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._composable import checkpoint
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from lit_agentrl.strategies.background import mark_snapshot

State = dict[str, Any]


def find_blocks(network: nn.Module) -> list[nn.Module]:
    """Return the repeated layers of a network, which its class lists in ``_no_split_modules``.

    The list is empty for a network without repeated layers, such as a value head.

    Raises:
        ValueError: the network has repeated layers, and its class does not list them.
    """
    names = {name for m in network.modules() for name in getattr(m, "_no_split_modules", None) or ()}
    blocks = [m for m in network.modules() if type(m).__name__ in names]
    if not blocks and any(isinstance(m, nn.ModuleList) for m in network.modules()):
        raise ValueError(
            f"strategy=fsdp cannot shard {type(network).__name__}: its class lists no blocks in _no_split_modules; "
            "choose strategy=ddp"
        )
    return blocks


def shard(
    network: nn.Module,
    mesh: DeviceMesh,
    *,
    precision: MixedPrecisionPolicy,
    reshard_after_forward: bool = True,
    recompute_activations: bool = False,
) -> None:
    """Shard a network in place: one FSDP unit per block, one for the rest.

    A unit is gathered as a whole when it computes.  Embeddings belong to the rest, together with an output head
    that shares their weights.  A network that is already sharded is left unchanged.

    Args:
        network: on any device; moved to the device of the mesh.
        mesh: one dimension, the ranks.
        precision: precision of gathered weights and of the gradient reduction.
        reshard_after_forward: free gathered blocks until the backward pass needs them again.
        recompute_activations: keep only a block's input, and recompute the block in the backward pass.

    Raises:
        ValueError: see `find_blocks`.
    """
    if isinstance(network, FSDPModule):
        return
    for block in find_blocks(network):
        if recompute_activations:
            checkpoint(block)
        fully_shard(block, mesh=mesh, mp_policy=precision, reshard_after_forward=reshard_after_forward)
    fully_shard(network, mesh=mesh, mp_policy=precision, reshard_after_forward=False)


def find_units(network: nn.Module) -> list[FSDPModule]:
    """Return the network's FSDP units, the outermost first."""
    return [module for module in network.modules() if isinstance(module, FSDPModule)]


@contextmanager
def gather_units(network: nn.Module, *, reshard_after_forward: bool) -> Iterator[None]:
    """Gather the whole network on every rank, so that calls within need no collective.

    Entering is a collective: all ranks must enter.  Calls must be without gradient, and weights must not change
    within.

    Args:
        network: sharded by `shard`; any other is left unchanged.
        reshard_after_forward: the value that was passed to `shard`.
    """
    units = find_units(network)
    handles = [unit.unshard(async_op=True) for unit in units]  # transfers overlap with unpacking
    for unit, handle in zip(units, handles, strict=True):
        if handle is not None:
            handle.wait()
        unit.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        for index, unit in enumerate(units):
            unit.set_reshard_after_forward(reshard_after_forward and index > 0, recurse=False)
            unit.reshard()


@contextmanager
def skip_gradient_sync(networks: list[nn.Module]) -> Iterator[None]:
    """Accumulate whole gradients on each rank within, instead of reducing them over ranks."""
    units = [unit for network in networks for unit in find_units(network)]
    for unit in units:
        unit.set_requires_gradient_sync(False, recurse=False)
    try:
        yield
    finally:
        for unit in units:
            unit.set_requires_gradient_sync(True, recurse=False)


# ---------------------------------------------------------------------- whole tensors and their shards
def get_state(module: nn.Module) -> State:
    """Return ``module.state_dict()`` with tied weights as one and the same tensor."""
    seen: dict[int, Tensor] = {}
    state = module.state_dict(keep_vars=True)
    return {name: seen.setdefault(id(value), value.detach()) for name, value in state.items()}


def gather_tensors(state: Any, *, keep: bool = True) -> Any:
    """Copy nested dicts and lists, replacing sharded tensors by whole CPU tensors; a collective.

    Args:
        state: state dict of a module or an optimizer.
        keep: False on ranks that only take part; they get None in place of each sharded tensor.
    """
    seen: dict[int, Tensor | None] = {}

    def visit(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: visit(item) for key, item in value.items()}
        if isinstance(value, list):
            return [visit(item) for item in value]
        if not isinstance(value, DTensor):
            return value
        if id(value) not in seen:
            tensor = value.full_tensor()
            seen[id(value)] = whole = tensor.cpu() if keep else None
            if whole is not None and not _share_data(whole, value.to_local()):
                mark_snapshot(whole)
        return seen[id(value)]

    return visit(state)


def _share_data(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Shard ``tensor`` in the same way as ``like``.

    Every rank must hold the whole tensor; nothing is sent.
    """
    if not isinstance(like, DTensor) or isinstance(tensor, DTensor):
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def shard_optimizer_state(optimizer: torch.optim.Optimizer, state: State) -> State:
    """Return a saved optimizer state with each tensor sharded like its parameter."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    ids = [number for group in state["param_groups"] for number in group["params"]]
    if len(parameters) != len(ids):
        return state  # the optimizer's own check reports the mismatch
    owner = dict(zip(ids, parameters, strict=True))

    def visit(number: Any, value: Any) -> Any:
        is_like_parameter = isinstance(value, Tensor) and value.shape == owner[number].shape
        return shard_like(value, owner[number]) if is_like_parameter else value

    per_parameter = {
        number: {name: visit(number, value) for name, value in entries.items()}
        for number, entries in state["state"].items()
    }
    return {**state, "state": per_parameter}


def copy_structure(network: nn.Module) -> nn.Module:
    """Copy a network with parameters on the meta device; call it before sharding."""
    memo: dict[int, Any] = {
        id(p): nn.Parameter(p.detach().to("meta"), requires_grad=p.requires_grad)
        for p in network.parameters()
    }
    return copy.deepcopy(network, memo)


def fill_structure(structure: nn.Module, network: nn.Module, *, keep: bool) -> nn.Module | None:
    """Return a copy of ``structure`` with the whole weights of ``network``; a collective.

    Ranks with ``keep=False`` only take part, and get None.
    """
    state = gather_tensors(get_state(network), keep=keep)
    if not keep:
        return None
    full = copy.deepcopy(structure)
    full.load_state_dict(state, assign=True)
    return full
