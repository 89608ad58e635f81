"""A server with an API like OpenAI's: by token ids, as vLLM has it, or by chat messages alone."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from lit_agentrl.engines.base import Capabilities, TurnRequest, TurnResult, require_fork
from lit_agentrl.engines.native.stops import StopRule, StopTable
from lit_agentrl.engines.served.answers import Answer, read_chat, read_scores, read_tokens
from lit_agentrl.engines.served.http import ServerError
from lit_agentrl.engines.served.pushing import Pusher
from lit_agentrl.engines.served.settings import ServerSettings
from lit_agentrl.engines.served.usage import Usage
from lit_agentrl.episode import FinishReason

_SILENCE_S = 30.0  # after which poll() comes back, though nothing has finished
_GLANCE_S = 0.05  # the same, where a game may have answered meanwhile
_SEEDS = 2**63  # servers take seeds of so many bits


@dataclass
class _Asked:
    """A request on its way: what the episode then holds, and what came of it."""

    request: TurnRequest
    serial: int
    history: list[int]
    answer: Answer | None = None  # None: there was no room for a reply, or there is an error
    error: str = ""


class OpenAIEngine:
    """Asks a server for each reply, several at a time.

    ``mode=tokens``: ids go in and come out of ``/v1/completions``, with their log-probs; the server must take
    ``return_token_ids``, as vLLM and SGLang do.  It can be trained with: weights reach it by a folder that both see.
    ``mode=chat``: messages go to ``/v1/chat/completions`` and a text comes back; for evaluation and judges.

    A request that fails is sent again.  One that stays without a usable answer ends its episode with an error, which is
    counted and never trained on.

    Args:
        network: the trainer's, whose structure is that of the server's; unused in ``mode=chat``.
        stop: completes a reply; what the server wrote after it is cut off.
        end_of_turn_ids: token ids that also complete a reply.
        max_context_tokens: limit on an episode.
        forward_context: unused: nothing is computed here.
        url: of the server, without ``/v1``.
        mode: ``tokens`` | ``chat``.
        model: name by which the server knows it.
        key_variable: environment variable with the key; None for none.
        concurrency: requests at a time.
        timeout_s, retries, backoff_s: see `Server`.
        stop_texts: at which the server ends a reply, to save what is cut off anyhow.
        body: further entries of each request; None takes one out.
        price_in, price_out, price_cached: see `Usage`.
        weights_folder: where weights are put for the server; needed for training.
        push: calls after weights were put there, each ``{path: …, json: …}``, with ``{folder}`` and ``{version}`` to be
            filled in.
        max_sync_gap: see `GivenEngine`.

    Raises:
        ValueError: an option makes no sense, naming it.
    """

    def __init__(
        self,
        network: PreTrainedModel | None = None,
        *,
        stop: StopRule,
        end_of_turn_ids: Sequence[int],
        max_context_tokens: int,
        forward_context: Callable[[], AbstractContextManager[object]] | None = None,
        url: str,
        mode: str,
        model: str,
        key_variable: str | None = None,
        concurrency: int = 16,
        timeout_s: float = 120.0,
        retries: int = 5,
        backoff_s: float = 0.5,
        stop_texts: Sequence[str] = (),
        body: Mapping[str, Any] | None = None,
        price_in: float = 0.0,
        price_out: float = 0.0,
        price_cached: float | None = None,
        weights_folder: str | None = None,
        push: Sequence[Mapping[str, Any]] = (),
        max_sync_gap: float = 1e-3,
    ) -> None:
        settings = ServerSettings(
            url=url, mode=mode, model=model, key_variable=key_variable, concurrency=concurrency,
            timeout_s=timeout_s, retries=retries, backoff_s=backoff_s, stop_texts=stop_texts, body=body,
            price_in=price_in, price_out=price_out, price_cached=price_cached, weights_folder=weights_folder, push=push,
            max_sync_gap=max_sync_gap,
        )  # fmt: skip
        if network is None and not settings.is_chat:
            raise ValueError(f"mode={mode} must be chat: tokens needs a network, and model has none")
        self._server, self.capabilities = settings.server(), settings.capabilities
        self._is_chat, self._model, self._body = settings.is_chat, model, dict(body or {})
        self._stop_texts, self._usage = list(stop_texts), Usage(price_in, price_out, price_cached)
        self._pusher = None if weights_folder is None else Pusher(self._server, network, weights_folder, push)
        self.max_sync_gap, self.capacity, self.num_steps = max_sync_gap, concurrency, 0
        vocabulary = 0 if network is None else network.config.get_text_config().vocab_size
        self._stops, self._end_ids = StopTable(stop, vocabulary), set(end_of_turn_ids)
        self._vocabulary, self._max_context = vocabulary, max_context_tokens
        self._history: dict[int, list[int]] = {}
        self._asked: dict[int, _Asked] = {}  # by serial number
        self._serial = self._version = 0
        self._to_ask: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()  # None: no more
        self._answered: queue.SimpleQueue[_Asked] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    @classmethod
    def foretold(cls, **options: Any) -> Capabilities:
        """See `Foretelling`."""
        return ServerSettings.among(options).capabilities

    @classmethod
    def reach(cls, **options: Any) -> None:
        """See `ServedEngine`."""
        with ServerSettings.among(options).server() as server:
            server.greet()

    # ------------------------------------------------------------------ protocol
    @property
    def num_pending(self) -> int:
        return len(self._asked)

    def submit(self, request: TurnRequest) -> None:
        history = self._history.setdefault(request.episode, [])
        self._serial += 1
        asked = _Asked(request, self._serial, [*history, *request.prefix])
        self._asked[self._serial] = asked
        if not self._is_chat and len(asked.history) >= self._limit(request):
            self._answered.put(asked)
            return
        history += request.prefix
        if len(self._threads) < self.capacity:
            thread = threading.Thread(target=self._work, name="lit_agentrl-openai", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._to_ask.put(asked)

    def poll(self, timeout: float | None = None, *, steps: int | None = None) -> list[TurnResult]:
        found: list[TurnResult] = []
        wait_s = timeout if timeout is not None else _SILENCE_S if steps is None else _GLANCE_S
        while self._asked and not found:
            try:
                asked = self._answered.get(timeout=wait_s)
            except queue.Empty:
                return []
            if self._asked.pop(asked.serial, None) is not None:  # its episode has not been closed
                found.append(self._taken(asked))
        return found

    def fork(self, parent: int, child: int, at: int) -> None:
        """Start ``child`` from the first ``at`` tokens of ``parent``; the server's prefix cache saves reading them."""
        length = len(self._history[parent]) if parent in self._history and not self._is_chat else None
        require_fork(parent, child, at, length=length, is_new=child not in self._history)
        self._history[child] = self._history[parent][:at]

    def close(self, episode: int) -> None:
        self._history.pop(episode, None)
        self._asked = {n: asked for n, asked in self._asked.items() if asked.request.episode != episode}

    def load(self, weights: Mapping[str, Tensor] | None, version: int) -> None:
        """See `Engine`.

        Raises:
            ServerError: the server did not take them.
        """
        self._history.clear()
        self._asked.clear()
        if weights is not None and self._pusher is not None:
            self._pusher.push(weights, version)
        self._version = version

    def score(self, tokens: Sequence[int]) -> list[float]:
        """See `GivenEngine`."""
        # logprobs=1, since SGLang takes 0 for none of the prompt
        body = {"prompt": list(tokens), "max_tokens": 1, "temperature": 1.0, "logprobs": 1, "echo": True}
        return self._server.ask(
            "/v1/completions", self._common(body), lambda raw: read_scores(raw, len(tokens))
        )

    def meter(self) -> dict[str, float]:
        """What has been asked for so far: requests, retries, tokens, cost."""
        return self._usage.row(self._server.counts)

    def stop(self) -> None:
        """See `Engine`; requests on their way are given up, and the folder of weights is removed."""
        self._asked.clear()
        for _ in self._threads:
            self._to_ask.put(None)
        self._threads.clear()
        self._server.close()
        if self._pusher is not None:
            self._pusher.close()

    # ------------------------------------------------------------------ one reply
    def _work(self) -> None:
        """Of each thread: ask for one reply after another."""
        while (asked := self._to_ask.get()) is not None:
            if asked.serial not in self._asked:  # its episode has been closed meanwhile
                continue
            try:
                asked.answer = self._answer(asked)
                self._usage.add(asked.answer)
            except ServerError as error:
                asked.error = str(error)
            except Exception as error:  # nothing may end a thread while an episode waits for it
                asked.error = f"{type(error).__name__}: {error}"
            self._answered.put(asked)

    def _common(self, body: Mapping[str, Any]) -> dict[str, Any]:
        named = {"model": self._model} if self._model else {}
        merged = {**named, **body, **self._body}
        return {name: value for name, value in merged.items() if value is not None}

    def _sampling(self, request: TurnRequest) -> dict[str, Any]:
        params = request.params
        body: dict[str, Any] = {
            "temperature": params.temperature, "top_p": params.top_p, "seed": request.key % _SEEDS,
        }  # fmt: skip
        if params.top_k > 0:
            body["top_k"] = params.top_k
        if self._stop_texts:
            body["stop"] = self._stop_texts
        return body

    def _answer(self, asked: _Asked) -> Answer:
        request, body = asked.request, self._sampling(asked.request)
        if self._is_chat:
            body |= {"messages": list(request.messages), "max_tokens": request.params.max_reply_tokens}
            if request.tools:
                body["tools"] = list(request.tools)
            return self._server.ask("/v1/chat/completions", self._common(body), read_chat)
        limit = min(request.params.max_reply_tokens, self._limit(request) - len(asked.history))
        body |= {
            "prompt": asked.history, "max_tokens": limit, "logprobs": 0, "return_token_ids": True,
            "stop_token_ids": sorted(self._end_ids), "include_stop_str_in_output": True,
        }  # fmt: skip
        return self._server.ask(
            "/v1/completions", self._common(body),
            lambda raw: read_tokens(raw, asked.history, limit, self._vocabulary),
        )  # fmt: skip

    def _taken(self, asked: _Asked) -> TurnResult:
        """A reply as the caller gets it, in the calling thread: what only it may change is changed here."""
        answer, result = asked.answer, TurnResult(asked.request.episode, policy_version=self._version)
        if answer is None:
            result.finish, result.error = FinishReason.CONTEXT, asked.error
            if asked.error:
                result.finish = FinishReason.ERROR
            return result
        result.num_prefilled = answer.read - answer.cached
        self.num_steps += answer.written
        if self._is_chat:
            result.text, result.calls = answer.text, answer.calls
            result.finish = FinishReason.LENGTH if answer.finish == "length" else FinishReason.STOP
            return result
        self._cut(result, answer, asked.request.params.max_reply_tokens)
        self._history[asked.request.episode] = [*asked.history, *result.tokens]
        return result

    def _cut(self, result: TurnResult, answer: Answer, limit: int) -> None:
        """The reply up to where it is complete: what the server wrote after it did not influence what came before."""
        state_A, count, is_complete = np.zeros(1, dtype=np.int32), 0, False
        while count < len(answer.tokens) and not is_complete:
            token = answer.tokens[count]
            state_A, stopped_A = self._stops.advance(state_A, np.array([token]))
            is_complete = bool(stopped_A[0]) or token in self._end_ids
            count += 1
        result.tokens, result.logps = answer.tokens[:count], answer.logps[:count]
        result.entropies = [math.nan] * count
        if is_complete or answer.finish == "stop":
            result.finish = FinishReason.STOP
        elif count >= limit:
            result.finish = FinishReason.LENGTH
        else:
            result.finish = FinishReason.CONTEXT

    def _limit(self, request: TurnRequest) -> int:
        return min(self._max_context, request.params.max_context_tokens)
