"""Fully sharded data parallelism: weights, gradients and optimizer states cut up over ranks (PyTorch FSDP2)."""

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

from lit_agentrl.checks import require_one_of
from lit_agentrl.distributed import StrategyHooks
from lit_agentrl.facts import HELD_REFERENCE, NO_ADAPTERS, STILL_REFERENCE
from lit_agentrl.requirements import Fact, Requirement
from lit_agentrl.strategies import sharding
from lit_agentrl.strategies.multiprocess import Multiprocess

DTYPES = {"float32": None, "bfloat16": torch.bfloat16}  # None: as stored


@runtime_checkable
class ShardedIO(Protocol):
    """A ``CheckpointIO`` that also writes folders, each rank its share, as `checkpoint_io.AtomicIO` does."""

    mesh: DeviceMesh | None

    def save_sharded(
        self, checkpoint: dict[str, Any], path: Any, storage_options: dict[str, int] | None = None
    ) -> None: ...


class FSDP(Multiprocess, ModelParallelStrategy):
    """Lightning's `ModelParallelStrategy` with one dimension, the ranks; `Multiprocess` is what it shares with DDP.

    Policy, critic and reference are cut up each by its own plan (`sharding.shard`).  Blocks are gathered one by
    one in training, and all together for generation, within which ranks decode different numbers of steps.

    What Lightning's own does differently, and why it is replaced here:

    - its device mesh splits the network inside a node (tensor parallelism): here all ranks share the data;
    - it keys the states of optimizers by the place of a parameter in the whole module, so that a checkpoint of
      two optimizers cannot be read by another strategy: here a consolidated checkpoint is, to the name and the
      number, what one process would have written;
    - it writes checkpoints past the ``CheckpointIO``: here they are replaced whole, and verified on load.

    It needs no CUDA: on CPUs ranks talk through gloo.

    Args:
        compute_dtype: precision of gathered weights and of activations, ``float32`` (as stored) | ``bfloat16``.
        reduce_dtype: precision in which gradients are averaged over ranks.
        reshard_after_forward: free a block's gathered weights between its forward and its backward.
        activation_checkpointing: keep a block's input alone and compute it again in the backward.
        accumulate_sharded: average gradients over ranks after every micro-batch instead of after the last, which
            takes more traffic but keeps no whole gradients.
        offload_frozen: keep the shares of frozen networks on the CPU between uses.
        sharded_checkpoints: write a folder, each rank its share, in place of one file.
        timeout_s: see `Multiprocess`.

    Raises:
        ValueError: a value that is unknown or has no effect, naming the option.
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
        require_one_of("compute_dtype", compute_dtype, tuple(DTYPES))
        require_one_of("reduce_dtype", reduce_dtype, tuple(DTYPES))
        super().__init__(timeout_s=timeout_s, save_distributed_checkpoint=sharded_checkpoints)
        self.precision = MixedPrecisionPolicy(
            param_dtype=DTYPES[compute_dtype],
            # gradients of bfloat16 weights are bfloat16 unless the exchange is told otherwise
            reduce_dtype=torch.float32 if reduce_dtype == "float32" else torch.bfloat16,
        )
        self._reshard_after_forward = reshard_after_forward
        self._activation_checkpointing = activation_checkpointing
        self._accumulate_sharded = accumulate_sharded
        self._offload_frozen = offload_frozen
        self._trained: list[nn.Module] = []
        self._hollow: dict[int, nn.Module] = {}

    # ------------------------------------------------------------------ set-up
    def setup_environment(self) -> None:
        self._data_parallel_size, self._tensor_parallel_size = self.num_nodes * self.num_processes, 1
        super().setup_environment()
        if isinstance(self.checkpoint_io, ShardedIO):
            self.checkpoint_io.mesh = self.device_mesh["data_parallel"]

    @property
    def requires(self) -> list[Fact | Requirement]:
        """A model without adapters, and what stands still to put away."""
        whole = Requirement(NO_ADAPTERS, reason="it does not shard adapters yet", remedy="strategy=ddp")
        if not self._offload_frozen:
            return [whole]
        by, off = "strategy.offload_frozen=true", "strategy.offload_frozen=false"
        still = [Requirement(fact, by=by, remedy=off) for fact in (STILL_REFERENCE, HELD_REFERENCE)]
        return [whole, *still]

    def shard(self, trained: Sequence[nn.Module], frozen: Sequence[nn.Module]) -> None:
        """Cut these networks up, in place, the first time they are seen; the module calls it in ``configure_model``.

        Raises:
            ValueError: an option of this strategy has no effect in this run, or a trained network has adapters.
        """
        # also refused by `requires`, before there are processes
        if any(not parameter.requires_grad for network in trained for parameter in network.parameters()):
            raise ValueError(
                "strategy=fsdp does not shard adapters (model/lora) yet; use strategy=ddp, or model/lora=none"
            )
        self._refuse_idle_options(frozen)
        mesh = self.device_mesh["data_parallel"]
        for network in (*trained, *frozen):
            if not sharding.units_of(network):
                is_trained = any(network is each for each in trained)
                if is_trained:
                    self._hollow[id(network)] = sharding.hollow(network)
                sharding.shard(
                    network, mesh, precision=self.precision, reshard_after_forward=self._reshard_after_forward,
                    recompute_activations=self._activation_checkpointing and is_trained,
                )  # fmt: skip
        self._trained = list(trained)
        for network in frozen:
            self._put_away(network)

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
            super().hooks, is_sharded=True, shard=self.shard, in_use=self.in_use, gathered=self.gathered,
            whole_network=self.whole_network, whole_copy=self.whole_copy,
            clip_gradient_norm=self.clip_gradient_norm,
        )  # fmt: skip

    def gathered(self, network: nn.Module) -> AbstractContextManager[None]:
        """Around generation: no collective within; see `sharding.gathered`."""
        return sharding.gathered(network, reshard_after_forward=self._reshard_after_forward)

    @contextmanager
    def in_use(self, network: nn.Module, device: torch.device) -> Iterator[None]:
        """Around the use of a frozen network, whose share may lie on the CPU otherwise."""
        if self._offload_frozen:
            network.to(device)
        try:
            yield
        finally:
            self._put_away(network)

    def _put_away(self, network: nn.Module) -> None:
        if self._offload_frozen:
            network.to("cpu")

    @contextmanager
    def block_backward_sync(self) -> Generator[None, None, None]:
        """Around all backwards of a step but the last."""
        with nullcontext() if self._accumulate_sharded else sharding.unsynchronised(self._trained):
            yield

    def clip_gradient_norm(self, parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
        """As ``clip_grad_norm_``, by the norm over all shares; the same number on every rank."""
        norm = nn.utils.clip_grad_norm_(parameters, limit)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    # ------------------------------------------------------------------ whole weights
    def whole_network(self, network: nn.Module) -> nn.Module | None:
        """The network as it was before it was cut up, with the weights of now, on rank 0; None elsewhere.

        A collective.  It lies on the CPU, in the precision that weights are stored in.
        """
        return sharding.filled(self._hollow[id(network)], network, keep=self.is_global_zero)

    def whole_copy(self, network: nn.Module) -> PreTrainedModel:
        """As `whole_network` on every rank, with parameters in the precision that gathered ones compute in."""
        full = sharding.filled(self._hollow[id(network)], network, keep=True)
        assert isinstance(full, PreTrainedModel)
        full.tie_weights()  # which lie in one place again, but are one parameter only now
        if self.precision.param_dtype is not None:
            for parameter in full.parameters():
                parameter.data = parameter.data.to(self.precision.param_dtype)
        return full

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Whole weights, on rank 0, or each rank's shares; in a network's own names either way."""
        assert self.lightning_module is not None
        return self._saved(sharding.state_of(self.lightning_module))

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Whole states, on rank 0, or each rank's shares; in the optimizer's own numbers either way."""
        return self._saved(getattr(optimizer, "optimizer", optimizer).state_dict())

    def _saved(self, state: dict[str, Any]) -> dict[str, Any]:
        if self._save_distributed_checkpoint:
            return state
        whole: dict[str, Any] = sharding.whole(state, keep=self.is_global_zero)
        return whole

    # ------------------------------------------------------------------ checkpoints
    @property
    def lightning_restore_optimizer(self) -> bool:
        return True

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None
    ) -> None:
        """Through the ``CheckpointIO``: one file from rank 0, or a folder from all ranks."""
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
        """A file as it is, to be cut up; of a folder each rank reads its share."""
        torch.cuda.empty_cache()
        return self.checkpoint_io.load_checkpoint(checkpoint_path, weights_only=weights_only)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        assert self.lightning_module is not None
        own = self.lightning_module.state_dict()
        saved = checkpoint["state_dict"]
        shares = {name: sharding.share_like(value, own.get(name, value)) for name, value in saved.items()}
        self.lightning_module.load_state_dict(shares, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            optimizer.load_state_dict(sharding.optimizer_shares(optimizer, state))
