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

from lit_agentrl.distributed import StrategyHooks, leave_group

_SHARDED = (DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy)


@runtime_checkable
class HasHooks(Protocol):
    """A strategy that knows about rollouts."""

    @property
    def hooks(self) -> StrategyHooks: ...


def get_hooks(strategy: Strategy) -> StrategyHooks:
    """The strategy's own hooks; of one of Lightning's, those of one process, or of plain data parallelism."""
    if isinstance(strategy, HasHooks):
        return strategy.hooks
    if isinstance(strategy, ParallelStrategy):
        return StrategyHooks(
            barrier=strategy.barrier, block_backward_sync=strategy.block_backward_sync,
            finish=partial(strategy.barrier, "end"), close=leave_group, is_sharded=isinstance(strategy, _SHARDED),
        )  # fmt: skip
    return StrategyHooks(barrier=strategy.barrier)
