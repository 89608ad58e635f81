"""Two levels of one base model, each with its own adapter, as one engine."""

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
from lit_agentrl.models.lora import LEVELS, use_level


class LevelEngine:
    """One engine per level, each with its own adapter and state.

    Each level reads every token of the dialogue once: what one level writes is part of the other's next prompt.

    Args:
        make: Builds the engine of a level; it must compute with the trainer's own network.
        network: The network with the adapters of both levels.
        forward_context: The strategy's precision context.
        options: Further arguments of ``make``.

    Raises:
        ValueError: If the engine does not compute with the trainer's own network.
    """

    def __init__(
        self,
        make: Callable[..., Engine],
        network: PreTrainedModel,
        forward_context: Callable[[], AbstractContextManager[object]] = nullcontext,
        **options: Any,
    ) -> None:
        self._engines = {
            level: make(
                network=network,
                forward_context=partial(_enter_level, network, level, forward_context),
                **options,
            )
            for level in LEVELS
        }
        first = self._engines[LEVELS[0]]
        self.capabilities = replace(first.capabilities, fork=False)
        if self.capabilities.weights != "shared":
            raise ValueError(
                f"{type(first).__name__} has one set of weights for all replies, and each level has its own adapter; "
                "set engine=native, or model/lora=default"
            )
        self._tokens: dict[int, list[int]] = {}  # all tokens of each episode
        self._num_read: dict[tuple[int, str], int] = {}  # tokens of the episode that each level has read

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
        level, tokens = LEVELS[request.player == PLANNER], self._tokens.setdefault(request.episode, [])
        tokens.extend(request.prefix)
        num_read = self._num_read.get((request.episode, level), 0)
        self._engines[level].submit(replace(request, prefix=tokens[num_read:]))

    def poll(self, timeout: float | None = None, *, steps: int | None = None) -> list[TurnResult]:
        """Return the finished replies, those of executors first; see `Engine`."""
        results: list[TurnResult] = []
        for level, engine in self._engines.items():
            for result in engine.poll(timeout, steps=steps) if engine.num_pending else ():
                if result.finish != FinishReason.CONTEXT:
                    self._tokens[result.episode].extend(result.tokens)
                    self._num_read[result.episode, level] = len(self._tokens[result.episode])
                results.append(result)
        return results

    def fork(self, parent: int, child: int, at: int) -> None:
        raise ValueError("an engine of two adapters cannot fork episodes")

    def close(self, episode: int) -> None:
        self._tokens.pop(episode, None)
        for level, engine in self._engines.items():
            self._num_read.pop((episode, level), None)
            engine.close(episode)

    def load(self, weights: Mapping[str, Tensor] | None, version: int) -> None:
        for engine in self._engines.values():  # all levels share one network, so the first copies the weights
            engine.load(weights, version)
            weights = None
        self._tokens.clear()
        self._num_read.clear()

    def stop(self) -> None:
        for engine in self._engines.values():
            engine.stop()


@contextmanager
def _enter_level(
    network: PreTrainedModel, level: str, forward_context: Callable[[], AbstractContextManager[object]]
) -> Iterator[None]:
    with use_level(network, level), forward_context():
        yield
