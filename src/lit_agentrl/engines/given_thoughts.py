"""An engine whose replies begin with given thoughts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from lit_agentrl.engines.base import Capabilities, Engine, TurnRequest, TurnResult
from lit_agentrl.engines.wrapper import EngineWrapper

ThoughtOf = Callable[[TurnRequest, int], Sequence[int]]


class ThoughtEngine(EngineWrapper):
    """Puts a thought at the start of each reply; another engine writes the rest.

    The thought appears in the reply with log-probs and entropies of 0, since it was not sampled.  It counts towards
    the reply limit.  The engine serves one wave of episodes.

    Args:
        engine: An engine that reads and writes token ids.
        thought_of: Returns the tokens of the thought for a request and the number of its turn, counted from 0.
    """

    def __init__(self, engine: Engine, thought_of: ThoughtOf) -> None:
        super().__init__(engine)
        self._thought_of = thought_of
        self._num_turns: Counter[int] = Counter()
        self._thoughts: dict[int, list[int]] = {}

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the inner engine, without exact log-probs and forks."""
        return replace(self._engine.capabilities, exact_log_probs=False, fork=False)

    def submit(self, request: TurnRequest) -> None:
        thought = list(self._thought_of(request, self._num_turns[request.episode]))
        self._num_turns[request.episode] += 1
        self._thoughts[request.episode] = thought
        reply_limit = max(1, request.params.max_reply_tokens - len(thought))
        params = replace(request.params, max_reply_tokens=reply_limit)
        self._engine.submit(replace(request, prefix=[*request.prefix, *thought], params=params))

    def poll(self, timeout: float | None = None, *, steps: int | None = None) -> list[TurnResult]:
        return [self._add_thought(result) for result in self._engine.poll(timeout, steps=steps)]

    def _add_thought(self, result: TurnResult) -> TurnResult:
        thought = self._thoughts.pop(result.episode)
        if not result.tokens:  # the context was full, or the request failed
            return result
        zeros = [0.0] * len(thought)
        return replace(
            result, tokens=[*thought, *result.tokens], logps=[*zeros, *result.logps],
            entropies=[*zeros, *result.entropies],
        )  # fmt: skip

    def fork(self, parent: int, child: int, at: int) -> None:
        raise ValueError("an engine with given thoughts cannot fork")
