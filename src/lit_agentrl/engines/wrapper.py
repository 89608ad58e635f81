"""A base class of engines that change what another engine reads or writes."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from lit_agentrl.engines.base import Capabilities, Engine, TurnRequest, TurnResult


class EngineWrapper:
    """An engine that hands every call on to another engine; see `Engine` for the calls.

    Args:
        engine: The inner engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def capabilities(self) -> Capabilities:
        return self._engine.capabilities

    @property
    def capacity(self) -> int:
        return self._engine.capacity

    @property
    def num_steps(self) -> int:
        return self._engine.num_steps

    @property
    def num_pending(self) -> int:
        return self._engine.num_pending

    def submit(self, request: TurnRequest) -> None:
        self._engine.submit(request)

    def poll(self, timeout: float | None = None, *, steps: int | None = None) -> list[TurnResult]:
        return self._engine.poll(timeout, steps=steps)

    def fork(self, parent: int, child: int, at: int) -> None:
        self._engine.fork(parent, child, at)

    def close(self, episode: int) -> None:
        self._engine.close(episode)

    def load(self, weights: Mapping[str, Tensor] | None, version: int) -> None:
        self._engine.load(weights, version)

    def stop(self) -> None:
        self._engine.stop()
