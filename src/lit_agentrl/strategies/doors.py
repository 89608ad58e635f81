"""What a strategy does for modules, callbacks and entry points, and what those of Lightning itself do."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from lightning.pytorch.strategies import ParallelStrategy, Strategy

from lit_agentrl.distributed import StrategyDoors


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
        return StrategyDoors(barrier=strategy.barrier, block_backward_sync=strategy.block_backward_sync)
    return StrategyDoors(barrier=strategy.barrier)
