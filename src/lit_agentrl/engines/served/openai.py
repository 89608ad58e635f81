"""An engine behind an OpenAI-like API, by token ids or by chat messages."""

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

_POLL_TIMEOUT_S = 30.0  # poll() returns after this time even if nothing has finished
_STEPPED_POLL_TIMEOUT_S = 0.05  # the same for poll() with ``steps``; short, since a game may answer meanwhile
_SEEDS = 2**63  # servers accept seeds below this


@dataclass
class _PendingRequest:
    """A request in progress, the episode's tokens up to its end, and its answer."""

    request: TurnRequest
    serial: int
    history: list[int]
    answer: Answer | None = None  # None if the context is full or there is an error
    error: str = ""


class OpenAIEngine:
    """Requests each reply from a server, several at a time.

    ``mode=tokens``: token ids go to ``/v1/completions`` and come back with their log-probs; the server must support
    ``return_token_ids``, as vLLM and SGLang do.  This mode can train: weights reach the server through a shared
    folder. ``mode=chat``: messages go to ``/v1/chat/completions`` and a text comes back; for evaluation and judges.

    A failed request is sent again.  If no usable answer comes, the episode ends with an error, which is counted and
    never trained on.

    Args:
        network: The trainer's network, with the structure of the server's; unused in ``mode=chat``.
        stop: Completes a reply; tokens that the server wrote after it are cut off.
        end_of_turn_ids: Token ids that also complete a reply.
        max_context_tokens: Maximum tokens of an episode.
        forward_context: Unused, since nothing is computed here.
        url: URL of the server, without ``/v1``.
        mode: ``tokens`` | ``chat``.
        model: Name of the model on the server.
        key_variable: Environment variable with the key; None sends no key.
        concurrency: Maximum number of simultaneous requests.
        timeout_s, retries, backoff_s: See `Server`.
        stop_texts: Texts at which the server ends a reply, to save tokens that would be cut off.
        body: Further entries of each request; the value None removes an entry.
        price_in, price_out, price_cached: See `Usage`.
        weights_folder: Folder through which the server gets weights; needed for training.
        push: Requests after weights were written, each ``{path: …, json: …}``, with the placeholders ``{folder}`` and
            ``{version}``.
        max_sync_gap: See `GivenEngine`.

    Raises:
        ValueError: If an option has an invalid value; the message names the option.
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
        self._server, self.capabilities = settings.make_server(), settings.capabilities
        self._is_chat, self._model, self._body = settings.is_chat, model, dict(body or {})
        self._stop_texts, self._usage = list(stop_texts), Usage(price_in, price_out, price_cached)
        self._pusher = None if weights_folder is None else Pusher(self._server, network, weights_folder, push)
        self.max_sync_gap, self.capacity, self.num_steps = max_sync_gap, concurrency, 0
        vocabulary = 0 if network is None else network.config.get_text_config().vocab_size
        self._stops, self._end_ids = StopTable(stop, vocabulary), set(end_of_turn_ids)
        self._vocabulary, self._max_context = vocabulary, max_context_tokens
        self._history: dict[int, list[int]] = {}
        self._pending: dict[int, _PendingRequest] = {}  # by serial number
        self._serial = self._version = 0
        self._to_send: queue.SimpleQueue[_PendingRequest | None] = queue.SimpleQueue()  # None ends a thread
        self._answered: queue.SimpleQueue[_PendingRequest] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    @classmethod
    def check_options(cls, **options: Any) -> Capabilities:
        """Check the options; see `CheckedEngine`."""
        return ServerSettings.from_options(options).capabilities

    @classmethod
    def check_server(cls, **options: Any) -> None:
        """Check that the server answers; see `ServedEngine`."""
        with ServerSettings.from_options(options).make_server() as server:
            server.probe()

    # ------------------------------------------------------------------ protocol
    @property
    def num_pending(self) -> int:
        return len(self._pending)

    def submit(self, request: TurnRequest) -> None:
        history = self._history.setdefault(request.episode, [])
        self._serial += 1
        pending = _PendingRequest(request, self._serial, [*history, *request.prefix])
        self._pending[self._serial] = pending
        if not self._is_chat and len(pending.history) >= self._get_limit(request):
            self._answered.put(pending)
            return
        history += request.prefix
        if len(self._threads) < self.capacity:
            thread = threading.Thread(target=self._work, name="lit_agentrl-openai", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._to_send.put(pending)

    def poll(self, timeout: float | None = None, *, steps: int | None = None) -> list[TurnResult]:
        results: list[TurnResult] = []
        wait_s = (
            timeout if timeout is not None else _POLL_TIMEOUT_S if steps is None else _STEPPED_POLL_TIMEOUT_S
        )
        while self._pending and not results:
            try:
                pending = self._answered.get(timeout=wait_s)
            except queue.Empty:
                return []
            if self._pending.pop(pending.serial, None) is not None:  # its episode is still open
                results.append(self._make_result(pending))
        return results

    def fork(self, parent: int, child: int, at: int) -> None:
        """Start ``child`` from the first ``at`` tokens of ``parent``; the server's prefix cache helps."""
        length = len(self._history[parent]) if parent in self._history and not self._is_chat else None
        require_fork(parent, child, at, length=length, is_new=child not in self._history)
        self._history[child] = self._history[parent][:at]

    def close(self, episode: int) -> None:
        self._history.pop(episode, None)
        self._pending = {
            serial: pending for serial, pending in self._pending.items() if pending.request.episode != episode
        }

    def load(self, weights: Mapping[str, Tensor] | None, version: int) -> None:
        """Send the weights to the server; see `Engine`.

        Raises:
            ServerError: If the server did not accept the weights.
        """
        self._history.clear()
        self._pending.clear()
        if weights is not None and self._pusher is not None:
            self._pusher.push(weights, version)
        self._version = version

    def score(self, tokens: Sequence[int]) -> list[float]:
        """Score tokens; see `GivenEngine`."""
        # logprobs=1, because with 0 SGLang returns no log-probs of the prompt
        body = {"prompt": list(tokens), "max_tokens": 1, "temperature": 1.0, "logprobs": 1, "echo": True}
        return self._server.ask(
            "/v1/completions", self._build_body(body), lambda raw: read_scores(raw, len(tokens))
        )

    def meter(self) -> dict[str, float]:
        """Return the usage so far: requests, retries, tokens, cost."""
        return self._usage.build_row(self._server.counts)

    def stop(self) -> None:
        """Drop pending requests and remove the folder of weights; see `Engine`."""
        self._pending.clear()
        for _ in self._threads:
            self._to_send.put(None)
        self._threads.clear()
        self._server.close()
        if self._pusher is not None:
            self._pusher.close()

    # ------------------------------------------------------------------ one reply
    def _work(self) -> None:
        """Generate replies one after another; runs in each thread."""
        while (pending := self._to_send.get()) is not None:
            if pending.serial not in self._pending:  # its episode was closed in the meantime
                continue
            try:
                pending.answer = self._answer(pending)
                self._usage.add(pending.answer)
            except ServerError as error:
                pending.error = str(error)
            except Exception as error:  # an error must not end the thread while an episode waits for it
                pending.error = f"{type(error).__name__}: {error}"
            self._answered.put(pending)

    def _build_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        model = {"model": self._model} if self._model else {}
        entries = {**model, **body, **self._body}
        return {name: value for name, value in entries.items() if value is not None}

    def _build_sampling(self, request: TurnRequest) -> dict[str, Any]:
        params = request.params
        body: dict[str, Any] = {
            "temperature": params.temperature, "top_p": params.top_p, "seed": request.key % _SEEDS,
        }  # fmt: skip
        if params.top_k > 0:
            body["top_k"] = params.top_k
        if self._stop_texts:
            body["stop"] = self._stop_texts
        return body

    def _answer(self, pending: _PendingRequest) -> Answer:
        request, body = pending.request, self._build_sampling(pending.request)
        if self._is_chat:
            body |= {"messages": list(request.messages), "max_tokens": request.params.max_reply_tokens}
            if request.tools:
                body["tools"] = list(request.tools)
            return self._server.ask("/v1/chat/completions", self._build_body(body), read_chat)
        limit = min(request.params.max_reply_tokens, self._get_limit(request) - len(pending.history))
        body |= {
            "prompt": pending.history, "max_tokens": limit, "logprobs": 0, "return_token_ids": True,
            "stop_token_ids": sorted(self._end_ids), "include_stop_str_in_output": True,
        }  # fmt: skip
        return self._server.ask(
            "/v1/completions", self._build_body(body),
            lambda raw: read_tokens(raw, pending.history, limit, self._vocabulary),
        )  # fmt: skip

    def _make_result(self, pending: _PendingRequest) -> TurnResult:
        """Build the result of a request and update the engine's state.

        Only the calling thread runs this and changes this state.
        """
        answer, result = pending.answer, TurnResult(pending.request.episode, policy_version=self._version)
        if answer is None:
            result.finish, result.error = FinishReason.CONTEXT, pending.error
            if pending.error:
                result.finish = FinishReason.ERROR
            return result
        result.num_prefilled = answer.num_read - answer.num_cached
        self.num_steps += answer.num_written
        if self._is_chat:
            result.text, result.calls = answer.text, answer.calls
            result.finish = FinishReason.LENGTH if answer.finish == "length" else FinishReason.STOP
            return result
        self._cut_reply(result, answer, pending.request.params.max_reply_tokens)
        self._history[pending.request.episode] = [*pending.history, *result.tokens]
        return result

    def _cut_reply(self, result: TurnResult, answer: Answer, limit: int) -> None:
        """Cut the reply where the stop rule completes it.

        Tokens after that point did not influence the tokens before it.
        """
        state_1, count, is_complete = np.zeros(1, dtype=np.int32), 0, False
        while count < len(answer.tokens) and not is_complete:
            token = answer.tokens[count]
            state_1, stopped_1 = self._stops.advance(state_1, np.array([token]))
            is_complete = bool(stopped_1[0]) or token in self._end_ids
            count += 1
        result.tokens, result.logps = answer.tokens[:count], answer.logps[:count]
        result.entropies = [math.nan] * count
        if is_complete or answer.finish == "stop":
            result.finish = FinishReason.STOP
        elif count >= limit:
            result.finish = FinishReason.LENGTH
        else:
            result.finish = FinishReason.CONTEXT

    def _get_limit(self, request: TurnRequest) -> int:
        return min(self._max_context, request.params.max_context_tokens)
