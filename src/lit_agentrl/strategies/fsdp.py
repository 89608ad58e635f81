"""Fully sharded data parallelism (PyTorch FSDP2): ranks share weights, gradients and optimizer states."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import torch
from lightning.pytorch.strategies import ModelParallelStrategy, Strategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from lit_agentrl.distributed import StrategyHooks
from lit_agentrl.facts import HELD_REFERENCE, NO_ADAPTERS, STILL_REFERENCE
from lit_agentrl.requirements import Fact, Requirement
from lit_agentrl.strategies import sharding
from lit_agentrl.strategies.multiprocess import Multiprocess
from lit_agentrl.strategies.options import check_fsdp

DTYPES = {"float32": None, "bfloat16": torch.bfloat16}  # None: as stored


@runtime_checkable
class ShardedIO(Protocol):
    """A ``CheckpointIO`` that also writes sharded folders, such as `checkpoint_io.AtomicIO`."""

    mesh: DeviceMesh | None

    def save_sharded(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None: ...


class FSDP(Multiprocess, ModelParallelStrategy):
    """Lightning's `ModelParallelStrategy` with one mesh dimension, the ranks.

    It shares `Multiprocess` with DDP.  Policy, critic and reference are sharded separately (`sharding.shard`).
    Blocks are gathered one by one in training, and all together for generation, in which ranks decode different
    numbers of steps.

    It differs from Lightning's strategy in three points:

    - Lightning's device mesh splits the network inside a node (tensor parallelism); here all ranks are data-parallel;
    - Lightning keys optimizer states by the place of a parameter in the whole module, so another strategy cannot
      read a checkpoint of two optimizers; here a consolidated checkpoint has the same names and numbers as one
      that a single process writes;
    - Lightning bypasses the ``CheckpointIO``; here checkpoints are replaced atomically and verified on load.

    It needs no CUDA: on CPUs ranks communicate through gloo.

    Args:
        compute_dtype: precision of gathered weights and of activations, ``float32`` (as stored) | ``bfloat16``.
        reduce_dtype: precision in which gradients are averaged over ranks.
        reshard_after_forward: free a block's gathered weights between its forward and its backward pass.
        activation_checkpointing: keep only a block's input, and recompute the block in the backward pass.
        accumulate_sharded: average gradients over ranks after every micro-batch instead of after the last, which
            needs more communication but stores no whole gradients.
        offload_frozen: keep the shards of frozen networks on the CPU between uses.
        sharded_checkpoints: write a folder, each rank its shards, instead of one file.
        timeout_s: see `Multiprocess`.

    Raises:
        ValueError: a value is unknown or has no effect; the message names the option.
    """

    def __init__(
        self,
        *,
        compute_dtype: str = "float32",
        reduce_dtype: str = "float32",
        reshard_after_forward: bool = True,
        activation_checkpointing: bool = False,
        accumulate_sharded: bool = False,
        offload_frozen: bool = False,
        sharded_checkpoints: bool = False,
        timeout_s: float = 1800.0,
    ) -> None:
        check_fsdp(compute_dtype=compute_dtype, reduce_dtype=reduce_dtype)
        super().__init__(timeout_s=timeout_s, save_distributed_checkpoint=sharded_checkpoints)
        self.precision = MixedPrecisionPolicy(
            param_dtype=DTYPES[compute_dtype],
            # without reduce_dtype, gradients of bfloat16 weights would be reduced in bfloat16
            reduce_dtype=torch.float32 if reduce_dtype == "float32" else torch.bfloat16,
        )
        self._reshard_after_forward = reshard_after_forward
        self._activation_checkpointing = activation_checkpointing
        self._accumulate_sharded = accumulate_sharded
        self._offload_frozen = offload_frozen
        self._trained: list[nn.Module] = []
        self._structures: dict[int, nn.Module] = {}

    # ------------------------------------------------------------------ set-up
    def setup_environment(self) -> None:
        self._data_parallel_size, self._tensor_parallel_size = self.num_nodes * self.num_processes, 1
        super().setup_environment()
        if isinstance(self.checkpoint_io, ShardedIO):
            self.checkpoint_io.mesh = self.device_mesh["data_parallel"]

    @property
    def requires(self) -> list[Fact | Requirement]:
        """A model without adapters; with ``offload_frozen`` also a fixed reference read in every update."""
        unadapted = Requirement(NO_ADAPTERS, reason="it does not shard adapters yet", remedy="strategy=ddp")
        if not self._offload_frozen:
            return [unadapted]
        by, off = "strategy.offload_frozen=true", "strategy.offload_frozen=false"
        still = [Requirement(fact, by=by, remedy=off) for fact in (STILL_REFERENCE, HELD_REFERENCE)]
        return [unadapted, *still]

    def shard(self, trained: Sequence[nn.Module], frozen: Sequence[nn.Module]) -> None:
        """Shard networks in place, each once; the module calls this in ``configure_model``.

        Raises:
            ValueError: an option of this strategy has no effect in this run, or a trained network has adapters.
        """
        # `requires` also refuses adapters, before processes start
        if any(not parameter.requires_grad for network in trained for parameter in network.parameters()):
            raise ValueError(
                "strategy=fsdp does not shard adapters (model/lora) yet; use strategy=ddp, or model/lora=none"
            )
        self._refuse_idle_options(frozen)
        mesh = self.device_mesh["data_parallel"]
        for network in (*trained, *frozen):
            if not sharding.find_units(network):
                is_trained = any(network is module for module in trained)
                if is_trained:
                    self._structures[id(network)] = sharding.copy_structure(network)
                sharding.shard(
                    network, mesh, precision=self.precision, reshard_after_forward=self._reshard_after_forward,
                    recompute_activations=self._activation_checkpointing and is_trained,
                )  # fmt: skip
        self._trained = list(trained)
        for network in frozen:
            self._offload(network)

    def _refuse_idle_options(self, frozen: Sequence[nn.Module]) -> None:
        if self._offload_frozen and not frozen:
            raise ValueError(
                "strategy.offload_frozen=true has no effect: without a reference, of a KL term, no network is frozen"
            )
        if self._offload_frozen and self.root_device.type == "cpu":
            raise ValueError("strategy.offload_frozen=true has no effect: training is on the CPU already")
        precision = str(self.precision_plugin.precision)
        if self.precision.param_dtype is not None and precision != "32-true":
            raise ValueError(
                f"strategy.compute_dtype=bfloat16 and trainer.precision={precision} both choose a precision; "
                "leave trainer.precision at 32-true"
            )

    # ------------------------------------------------------------------ hooks of a rollout and of a training step
    @property
    def hooks(self) -> StrategyHooks:
        return replace(
            super().hooks, is_sharded=True, shard=self.shard, place_on_device=self.place_on_device,
            gather_weights=self.gather_weights, unshard_on_rank_zero=self.unshard_on_rank_zero,
            unshard_on_every_rank=self.unshard_on_every_rank, clip_gradient_norm=self.clip_gradient_norm,
        )  # fmt: skip

    def gather_weights(self, network: nn.Module) -> AbstractContextManager[None]:
        """Gather a network for generation, without collectives within; see `sharding.gather_units`."""
        return sharding.gather_units(network, reshard_after_forward=self._reshard_after_forward)

    @contextmanager
    def place_on_device(self, network: nn.Module, device: torch.device) -> Iterator[None]:
        """Move an offloaded frozen network to ``device`` while it is used."""
        if self._offload_frozen:
            network.to(device)
        try:
            yield
        finally:
            self._offload(network)

    def _offload(self, network: nn.Module) -> None:
        if self._offload_frozen:
            network.to("cpu")

    @contextmanager
    def block_backward_sync(self) -> Generator[None, None, None]:
        """Skip gradient reduction in all backward passes of a step but the last."""
        with nullcontext() if self._accumulate_sharded else sharding.skip_gradient_sync(self._trained):
            yield

    def clip_gradient_norm(self, parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
        """Clip gradients as ``clip_grad_norm_`` does, and return their norm over all shards.

        The norm is the same number on every rank.
        """
        norm = nn.utils.clip_grad_norm_(parameters, limit)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    # ------------------------------------------------------------------ whole weights
    def unshard_on_rank_zero(self, network: nn.Module) -> nn.Module | None:
        """Return the unsharded network with current weights on rank 0, None elsewhere; a collective.

        The network lies on the CPU, in the precision in which weights are stored.
        """
        return sharding.fill_structure(self._structures[id(network)], network, keep=self.is_global_zero)

    def unshard_on_every_rank(self, network: nn.Module) -> PreTrainedModel:
        """Return the unsharded network on every rank, with parameters in the compute precision."""
        full = sharding.fill_structure(self._structures[id(network)], network, keep=True)
        assert isinstance(full, PreTrainedModel)
        full.tie_weights()  # loading shares the storage of tied weights, but makes separate parameters
        if self.precision.param_dtype is not None:
            for parameter in full.parameters():
                parameter.data = parameter.data.to(self.precision.param_dtype)
        return full

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return whole weights on rank 0, or each rank's shards, under unsharded names."""
        assert self.lightning_module is not None
        return self._unshard_for_saving(sharding.get_state(self.lightning_module))

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return whole states on rank 0, or each rank's shards, under the optimizer's own numbers."""
        return self._unshard_for_saving(getattr(optimizer, "optimizer", optimizer).state_dict())

    def _unshard_for_saving(self, state: dict[str, Any]) -> dict[str, Any]:
        if self._save_distributed_checkpoint:
            return state
        gathered: dict[str, Any] = sharding.gather_tensors(state, keep=self.is_global_zero)
        return gathered

    # ------------------------------------------------------------------ checkpoints
    @property
    def lightning_restore_optimizer(self) -> bool:
        return True

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None
    ) -> None:
        """Save through the ``CheckpointIO``: one file from rank 0, or a folder from all ranks."""
        if not self._save_distributed_checkpoint:
            Strategy.save_checkpoint(self, checkpoint, filepath, storage_options)
            return
        if not isinstance(self.checkpoint_io, ShardedIO):
            kind = type(self.checkpoint_io).__name__
            raise ValueError(
                f"strategy.sharded_checkpoints=true needs AtomicIO among trainer.plugins, not {kind}"
            )
        self.checkpoint_io.save_sharded(checkpoint, self.broadcast(filepath), storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Load a whole file, to be sharded later, or this rank's shards of a folder."""
        torch.cuda.empty_cache()
        return self.checkpoint_io.load_checkpoint(checkpoint_path, weights_only=weights_only)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        assert self.lightning_module is not None
        current = self.lightning_module.state_dict()
        saved = checkpoint["state_dict"]
        own_shards = {
            name: sharding.shard_like(value, current.get(name, value)) for name, value in saved.items()
        }
        self.lightning_module.load_state_dict(own_shards, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            optimizer.load_state_dict(sharding.shard_optimizer_state(optimizer, state))
