"""Two levels of one base, each with its own adapter, behind the methods of one engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from lit_agentrl.engines.base import Engine, TurnRequest, TurnResult
from lit_agentrl.episode import PLANNER, FinishReason
from lit_agentrl.models.lora import LEVELS, level_in_use


class LevelEngine:
    """An engine for each level, with states of its own: a level reads the whole dialogue with its adapter.

    What one level wrote is to the other a part of its next prompt, so each token is read once by each of them.

    Args:
        make: the engine of a level; one that computes with the trainer's own network.
        network: with the adapters of both levels.
        forward_context: the strategy's precision context.
        given: handed to ``make``.

    Raises:
        ValueError: it computes with other weights.
    """

    def __init__(
        self,
        make: Callable[..., Engine],
        network: PreTrainedModel,
        forward_context: Callable[[], AbstractContextManager[object]] = nullcontext,
        **given: Any,
    ) -> None:
        self._engines = {
            name: make(
                network=network, forward_context=partial(_of_level, network, name, forward_context), **given
            )
            for name in LEVELS
        }
        one = self._engines[LEVELS[0]]
        self.capabilities = replace(one.capabilities, fork=False)
        if self.capabilities.weights != "shared":
            raise ValueError(
                f"{type(one).__name__} has one set of weights for all replies, and each level has its own adapter; set "
                "engine=native, or model/lora=default"
            )
        self._told: dict[int, list[int]] = {}  # all tokens of an episode
        self._known: dict[tuple[int, str], int] = {}  # of these, by each level

    @property
    def capacity(self) -> int:
        return min(engine.capacity for engine in self._engines.values())

    @property
    def num_steps(self) -> int:
        return sum(engine.num_steps for engine in self._engines.values())

    @property
    def num_pending(self) -> int:
        return sum(engine.num_pending for engine in self._engines.values())

    def submit(self, request: TurnRequest) -> None:
        name, told = LEVELS[request.player == PLANNER], self._told.setdefault(request.episode, [])
        told.extend(request.prefix)
        known = self._known.get((request.episode, name), 0)
        self._engines[name].submit(replace(request, prefix=told[known:]))

    def poll(self, timeout: float | None = None, *, steps: int | None = None) -> list[TurnResult]:
        """See :class:`Engine`; executors first."""
        found: list[TurnResult] = []
        for name, engine in self._engines.items():
            for result in engine.poll(timeout, steps=steps) if engine.num_pending else ():
                if result.finish != FinishReason.CONTEXT:
                    self._told[result.episode].extend(result.tokens)
                    self._known[result.episode, name] = len(self._told[result.episode])
                found.append(result)
        return found

    def fork(self, parent: int, child: int, at: int) -> None:
        raise ValueError("episodes of two adapters are not forked")

    def close(self, episode: int) -> None:
        self._told.pop(episode, None)
        for name, engine in self._engines.items():
            self._known.pop((episode, name), None)
            engine.close(episode)

    def load(self, weights: Mapping[str, Tensor] | None, version: int) -> None:
        for engine in self._engines.values():  # the network is one: it is written once
            engine.load(weights, version)
            weights = None
        self._told.clear()
        self._known.clear()

    def stop(self) -> None:
        for engine in self._engines.values():
            engine.stop()


@contextmanager
def _of_level(
    network: PreTrainedModel, name: str, forward_context: Callable[[], AbstractContextManager[object]]
) -> Iterator[None]:
    with level_in_use(network, name), forward_context():
        yield
