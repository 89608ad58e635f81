"""The scripted engine: plays given replies, to test the code around a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from lit_agentrl.engines.base import Capabilities, TurnRequest, TurnResult
from lit_agentrl.episode import FinishReason

Script = Callable[[int, int], str | Exception]


class ScriptedEngine:
    """Answers turn k of episode e with ``script(e, k)``, at log-prob 0 and entropy 0.

    Turns are counted since the last ``load``, across ``close``.

    Args:
        script: ``(episode, turn) -> text``; a returned exception becomes the result's error.
        encode: Encodes text as token ids.
        capacity: Maximum number of episodes held at once.
    """

    capabilities = Capabilities(exact_log_probs=False, fork=False)

    def __init__(
        self, script: Script, *, encode: Callable[[str], Sequence[int]], capacity: int = 1_000_000
    ) -> None:
        self._script = script
        self._encode = encode
        self._turns: dict[int, int] = {}
        self._lengths: dict[int, int] = {}
        self._queue: list[TurnRequest] = []
        self._version = 0
        self.capacity = capacity
        self.num_steps = 0

    @property
    def num_pending(self) -> int:
        return len(self._queue)

    def submit(self, request: TurnRequest) -> None:
        self._queue.append(request)

    def poll(self, timeout: float | None = None, *, steps: int | None = None) -> list[TurnResult]:
        self.num_steps += 1  # a reply is one step, whatever its length
        queue, self._queue = self._queue, []
        return [self._reply(request) for request in queue]

    def _reply(self, request: TurnRequest) -> TurnResult:
        turn = self._turns.get(request.episode, 0)
        self._turns[request.episode] = turn + 1
        num_read = self._lengths.get(request.episode, 0) + len(request.prefix)
        result = TurnResult(request.episode, policy_version=self._version, num_prefilled=num_read)
        room = request.params.max_context_tokens - num_read
        if room <= 0:
            result.finish, result.num_prefilled = FinishReason.CONTEXT, 0
            return result
        text = self._script(request.episode, turn)
        if isinstance(text, Exception):
            result.finish, result.error = FinishReason.ERROR, f"{type(text).__name__}: {text}"
            return result
        tokens = list(self._encode(text))
        limit = min(request.params.max_reply_tokens, room)
        if len(tokens) > limit:
            tokens = tokens[:limit]
            result.finish = FinishReason.CONTEXT if limit == room else FinishReason.LENGTH
        result.tokens, result.logps, result.entropies = tokens, [0.0] * len(tokens), [0.0] * len(tokens)
        self._lengths[request.episode] = num_read + len(tokens)
        return result

    def fork(self, parent: int, child: int, at: int) -> None:
        raise ValueError("the scripted engine cannot fork; use engine=native")

    def close(self, episode: int) -> None:
        # the turn count continues: an episode may restart from a new prompt
        self._lengths.pop(episode, None)

    def load(self, weights: Mapping[str, Tensor] | None, version: int) -> None:
        self._version = version
        self._turns.clear()
        self._lengths.clear()
        self._queue.clear()

    def stop(self) -> None:
        """Release nothing, since the engine holds only memory."""
