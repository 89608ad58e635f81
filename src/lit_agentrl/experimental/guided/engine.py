"""An engine that samples several replies, and returns the one that a rule chooses."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from lit_agentrl.engines.base import Engine, TurnRequest, TurnResult
from lit_agentrl.engines.wrapper import EngineWrapper
from lit_agentrl.episode import FinishReason
from lit_agentrl.seeds import make_key

GUIDED = "guided"  # `Turn.player` of replies that are chosen
Choose = Callable[[Sequence[int], Sequence[Sequence[int]]], int]
_FIRST_ID = 1 << 40  # first id of the inner engine's sequences, above all ids of episodes


@dataclass
class _Choice:
    """A request with its history and its replies so far."""

    request: TurnRequest
    history: list[int]
    results: dict[int, TurnResult] = field(default_factory=dict)


class GuidedEngine(EngineWrapper):
    """An engine that samples several replies to a request, and returns one of them.

    A request of the player `GUIDED` is answered by one of ``samples`` replies.  Each continues the whole dialogue in a
    sequence of its own, with random numbers of its own; the first reply draws as the request itself would.  All other
    requests are forwarded.

    Args:
        engine: engine that reads and writes token ids.
        choose: function of the tokens of the dialogue and of each reply that returns the index of the chosen reply.
        samples: number of replies of a guided request.
        temperature: sampling temperature of these replies, in place of that of the request.
    """

    def __init__(self, engine: Engine, choose: Choose, *, samples: int, temperature: float) -> None:
        super().__init__(engine)
        self._choose = choose
        self._samples, self._temperature = samples, temperature
        self._histories: dict[int, list[int]] = {}  # all tokens of each guided episode
        self._open: dict[int, _Choice] = {}
        self._waiting: deque[tuple[int, int]] = deque()  # episode and number of replies to sample
        self._running: dict[int, tuple[int, int]] = {}  # episode and number, by the id of the sequence
        self._next_id = _FIRST_ID

    @property
    def num_pending(self) -> int:
        return len(self._open) + self._engine.num_pending - len(self._running)

    def submit(self, request: TurnRequest) -> None:
        if request.player != GUIDED:
            super().submit(request)
            return
        history = self._histories.setdefault(request.episode, [])
        history.extend(request.prefix)
        self._open[request.episode] = _Choice(request, history)
        self._waiting.extend((request.episode, number) for number in range(self._samples))

    def poll(self, timeout: float | None = None, *, steps: int | None = None) -> list[TurnResult]:
        """Return the finished replies, only the chosen ones of guided requests; see `Engine`."""
        while True:
            self._start_waiting()
            finished = [
                answer
                for result in self._engine.poll(timeout, steps=steps)
                if (answer := self._take(result)) is not None
            ]
            if finished or not self.num_pending or timeout is not None or steps is not None:
                return finished

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < self._engine.capacity:
            episode, number = self._waiting.popleft()
            choice = self._open[episode]
            request, key = choice.request, choice.request.key
            self._running[self._next_id] = (episode, number)
            self._engine.submit(
                replace(
                    request, episode=self._next_id, prefix=list(choice.history), player="",
                    key=make_key(key, "guided", number) if number else key,
                    params=replace(request.params, temperature=self._temperature),
                )
            )  # fmt: skip
            self._next_id += 1

    def _take(self, result: TurnResult) -> TurnResult | None:
        """Return the result to forward; None while other replies to its request are missing."""
        if result.episode not in self._running:
            return result
        episode, number = self._running.pop(result.episode)
        self._engine.close(result.episode)
        choice = self._open[episode]
        choice.results[number] = result
        if len(choice.results) < self._samples:
            return None
        results = [choice.results[k] for k in range(self._samples)]
        written = [k for k, each in enumerate(results) if each.tokens and not each.error]
        chosen = written[self._choose(choice.history, [results[k].tokens for k in written])] if written else 0
        del self._open[episode]
        kept = results[chosen]
        if kept.finish != FinishReason.CONTEXT:  # which ends the episode
            choice.history.extend(kept.tokens)
        num_prefilled, num_shared = (
            sum(getattr(each, name) for each in results) for name in ("num_prefilled", "num_shared")
        )
        return replace(kept, episode=episode, num_prefilled=num_prefilled, num_shared=num_shared)

    def close(self, episode: int) -> None:
        if self._histories.pop(episode, None) is None:
            super().close(episode)
            return
        if self._open.pop(episode, None) is not None:  # abandoned, as after an error of its game
            self._waiting = deque((other, k) for other, k in self._waiting if other != episode)
            for sequence in [id for id, (running, _) in self._running.items() if running == episode]:
                del self._running[sequence]
                self._engine.close(sequence)

    def load(self, weights: Mapping[str, Tensor] | None, version: int) -> None:
        super().load(weights, version)
        self._histories.clear()
        self._open.clear()
        self._waiting.clear()
        self._running.clear()
