"""An engine whose replies begin with thoughts that it is given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from lit_agentrl.engines.base import Capabilities, Engine, TurnRequest, TurnResult

ThoughtOf = Callable[[TurnRequest, int], Sequence[int]]


class Rethinking:
    """Puts a thought at the beginning of each reply, and has another engine write what follows it.

    Whoever asks finds the thought in the reply, with log-probs and entropies of 0: it was not sampled.  It counts
    towards the limit of the reply.  One wave of episodes is played with it.

    Args:
        engine: reads and writes token ids.
        thought_of: tokens by what is asked for and the number of the turn, counted from 0.
    """

    def __init__(self, engine: Engine, thought_of: ThoughtOf) -> None:
        self._engine, self._thought_of = engine, thought_of
        self._turns: Counter[int] = Counter()
        self._begun: dict[int, list[int]] = {}

    @property
    def capabilities(self) -> Capabilities:
        """Those of the engine inside, whose log-probs are not those of the whole reply."""
        return replace(self._engine.capabilities, exact_log_probs=False, fork=False)

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
        thought = list(self._thought_of(request, self._turns[request.episode]))
        self._turns[request.episode] += 1
        self._begun[request.episode] = thought
        left = max(1, request.params.max_reply_tokens - len(thought))
        params = replace(request.params, max_reply_tokens=left)
        self._engine.submit(replace(request, prefix=[*request.prefix, *thought], params=params))

    def poll(self, timeout: float | None = None, *, steps: int | None = None) -> list[TurnResult]:
        return [self._whole(result) for result in self._engine.poll(timeout, steps=steps)]

    def _whole(self, result: TurnResult) -> TurnResult:
        thought = self._begun.pop(result.episode)
        if not result.tokens:  # there was no room, or it failed
            return result
        none = [0.0] * len(thought)
        return replace(
            result, tokens=[*thought, *result.tokens], logps=[*none, *result.logps],
            entropies=[*none, *result.entropies],
        )  # fmt: skip

    def fork(self, parent: int, child: int, at: int) -> None:
        raise ValueError("an engine that is given thoughts cannot fork")

    def close(self, episode: int) -> None:
        self._engine.close(episode)

    def load(self, weights: Mapping[str, Tensor] | None, version: int) -> None:
        self._engine.load(weights, version)

    def stop(self) -> None:
        self._engine.stop()
