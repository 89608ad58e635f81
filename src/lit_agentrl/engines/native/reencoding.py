"""The slower path of the native engine, for networks whose state does not fit slots."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from lit_agentrl.engines.base import TurnRequest, TurnResult, require_fork
from lit_agentrl.engines.native.cache_argument import find_cache_argument
from lit_agentrl.engines.native.inference import Inference
from lit_agentrl.engines.native.sampling import draw_rows
from lit_agentrl.engines.native.stops import StopTable
from lit_agentrl.episode import FinishReason
from lit_agentrl.seeds import draw_uniforms


class ReencodingEngine:
    """Reads the whole history before every reply, with the model's own cache if any.

    Recurrent and windowed state may depend on padding, so only requests of equal length are read together:
    one :meth:`poll` answers the oldest request and all others of its length.

    Args:
        network: Any causal LM of transformers.
        stops: Completes replies.
        is_end: Boolean per token id: whether the token also completes a reply.
        num_slots: Maximum number of requests read together.
        max_context_tokens: Maximum tokens of an episode.
        forward_context: The strategy's precision context.
    """

    def __init__(
        self,
        network: PreTrainedModel,
        *,
        stops: StopTable,
        is_end: npt.NDArray[np.bool_],
        num_slots: int,
        max_context_tokens: int,
        forward_context: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self._network = network
        self._stops = stops
        self._is_end_V = is_end
        self._max_context = max_context_tokens
        self._context = forward_context
        self._inference = Inference(network, None)
        self._history: dict[int, list[int]] = {}
        self._waiting: list[TurnRequest] = []
        self._version = 0
        self.num_steps = 0
        self.capacity = num_slots

    @property
    def num_pending(self) -> int:
        return len(self._waiting)

    def submit(self, request: TurnRequest) -> None:
        self._history.setdefault(request.episode, []).extend(request.prefix)
        self._waiting.append(request)

    def poll(self) -> list[TurnResult]:
        refused = [r for r in self._waiting if len(self._history[r.episode]) >= self._get_limit(r)]
        if refused:
            self._waiting = [r for r in self._waiting if r not in refused]
            for request in refused:
                history = self._history[request.episode]
                del history[len(history) - len(request.prefix) :]
            return [self._make_result(r, finish=FinishReason.CONTEXT) for r in refused]
        if not self._waiting:
            return []
        length = len(self._history[self._waiting[0].episode])
        batch = [r for r in self._waiting if len(self._history[r.episode]) == length][: self.capacity]
        self._waiting = [r for r in self._waiting if r not in batch]
        with self._inference(), self._context():
            return self._answer(batch)

    def fork(self, parent: int, child: int, at: int) -> None:
        length = len(self._history[parent]) if parent in self._history else None
        require_fork(parent, child, at, length=length, is_new=child not in self._history)
        self._history[child] = self._history[parent][:at]

    def close(self, episode: int) -> None:
        self._history.pop(episode, None)
        self._waiting = [r for r in self._waiting if r.episode != episode]

    def forget(self, version: int) -> None:
        """Forget all episodes; later replies carry this version."""
        self._version = version
        self._history.clear()
        self._waiting.clear()

    def _get_limit(self, request: TurnRequest) -> int:
        return min(self._max_context, request.params.max_context_tokens)

    def _make_result(self, request: TurnRequest, **fields: object) -> TurnResult:
        return TurnResult(request.episode, policy_version=self._version, **fields)  # type: ignore[arg-type]

    def _answer(self, requests: Sequence[TurnRequest]) -> list[TurnResult]:
        """Generate whole replies to requests of equal length."""
        histories = [self._history[r.episode] for r in requests]
        length = len(histories[0])
        results = [self._make_result(r, num_prefilled=length) for r in requests]
        kinds = list(dict.fromkeys(r.params for r in requests))
        kind_A = np.array([kinds.index(r.params) for r in requests])
        key_A = np.array([r.key for r in requests], dtype=np.uint64)
        state_A = np.zeros(len(requests), dtype=np.int32)
        is_done_A = np.zeros(len(requests), dtype=np.bool_)
        logits = self._read_logits(torch.tensor(histories))
        token_A = np.zeros(len(requests), dtype=np.int64)
        num_written = 0
        while not is_done_A.all():
            logits_AV = next(logits) if not num_written else logits.send(torch.from_numpy(token_A))
            uniform_A = draw_uniforms(key_A, np.full(len(requests), num_written, dtype=np.uint64))
            token_A, logp_A, entropy_A = draw_rows(logits_AV, uniform_A, kind_A, kinds)
            state_A, stopped_A = self._stops.advance(state_A, token_A)
            stopped_A |= self._is_end_V[token_A]
            num_written += 1
            self.num_steps += 1
            for i in np.flatnonzero(~is_done_A).tolist():  # finished rows are computed but ignored
                result, params = results[i], requests[i].params
                result.tokens.append(int(token_A[i]))
                result.logps.append(float(logp_A[i]))
                result.entropies.append(float(entropy_A[i]))
                if stopped_A[i]:
                    result.finish = FinishReason.STOP
                elif num_written >= params.max_reply_tokens:
                    result.finish = FinishReason.LENGTH
                elif length + num_written >= self._get_limit(requests[i]):
                    result.finish = FinishReason.CONTEXT
                else:
                    continue
                is_done_A[i] = True
        for history, result in zip(histories, results, strict=True):
            history.extend(result.tokens)
        return results

    def _read_logits(self, token_AT: Tensor) -> Generator[Tensor, Tensor, None]:
        """Yield next-token logits (A, V); each token sent adds one column."""
        device = self._network.device
        name = find_cache_argument(self._network)
        state: dict[str, object] = {}
        unread_AT = token_AT
        while True:
            output = self._network(input_ids=unread_AT.to(device), use_cache=name is not None, **state)
            token_A = yield output.logits[:, -1]
            token_AT = torch.cat([token_AT, token_A.unsqueeze(1)], dim=1)
            cache = output.get(name) if name else None
            state = {name: cache} if name and cache is not None else {}
            unread_AT = token_AT[:, -1:] if cache is not None else token_AT
