"""Hooks that strategies offer to modules, callbacks and entry points; defaults for Lightning's own strategies."""

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
    """A strategy that supports rollouts."""

    @property
    def hooks(self) -> StrategyHooks: ...


def get_hooks(strategy: Strategy) -> StrategyHooks:
    """Return the strategy's hooks, or defaults for one of Lightning's own strategies.

    The defaults are those of plain data parallelism for a `ParallelStrategy`, else those of a single process.
    """
    if isinstance(strategy, HasHooks):
        return strategy.hooks
    if isinstance(strategy, ParallelStrategy):
        return StrategyHooks(
            barrier=strategy.barrier, block_backward_sync=strategy.block_backward_sync,
            finish=partial(strategy.barrier, "end"), close=leave_group, is_sharded=isinstance(strategy, _SHARDED),
        )  # fmt: skip
    return StrategyHooks(barrier=strategy.barrier)
