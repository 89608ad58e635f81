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
            finish=partial(strategy.barrier, "end"), close=leave_group, is_sharded=isinstance(strategy, _SHARDED),
        )  # fmt: skip
    return StrategyDoors(barrier=strategy.barrier)
