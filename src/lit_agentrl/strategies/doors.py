"""What a strategy does for modules, callbacks and entry points, and what those of Lightning itself do."""

from __future__ import annotations

from functools import partial
from typing import Protocol, runtime_checkable

from lightning.pytorch.strategies import (
    DeepSpeedStrategy,
    FSDPStrategy,
    ModelParallelStrategy,
    ParallelStrategy,
    Strategy,
)  # fmt: skip

from lit_agentrl.distributed import StrategyDoors, leave_group

_SHARDED = (DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy)


@runtime_checkable
class OffersDoors(Protocol):
    """A strategy that knows about rollouts."""

    @property
    def doors(self) -> StrategyDoors: ...


def doors_of(strategy: Strategy) -> StrategyDoors:
    """The strategy's own doors; of one of Lightning's, those of one process, or of plain data parallelism."""
    if isinstance(strategy, OffersDoors):
        return strategy.doors
    if isinstance(strategy, ParallelStrategy):
        return StrategyDoors(
            barrier=strategy.barrier, block_backward_sync=strategy.block_backward_sync,
            finish=partial(strategy.barrier, "end"), close=leave_group,
        )  # fmt: skip
    return StrategyDoors(barrier=strategy.barrier)


def require_whole_weights(strategy: Strategy) -> None:
    """Refuse strategies that leave a process with a part of the weights, where a worker is to be given them.

    Raises:
        ValueError: naming the remedy.
    """
    if isinstance(strategy, _SHARDED):
        raise ValueError(
            f"worker: one that plays for the trainer needs all weights in each process, and "
            f"{type(strategy).__name__} shards them; use strategy=single or ddp, or worker=none rollout.overlap=false"
        )
