"""vLLM in this process: the only file that imports it."""

from __future__ import annotations

import copy
import gc
import itertools
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from lit_agentrl.checks import require_number, require_whole
from lit_agentrl.engines.base import MOST_SLOTS, Capabilities, TurnRequest, TurnResult, require_fork
from lit_agentrl.engines.native.stops import StopRule, StopTable
from lit_agentrl.engines.native.support import require_positions
from lit_agentrl.engines.served.keyed import DRAWS, NUMBER, Draws, KeyedDraws
from lit_agentrl.engines.served.vllm_setup import imported, load_all, require_vllm, undisturbed, unpacked
from lit_agentrl.episode import FinishReason

_CPU_BLOCK = 32  # tokens; of a multiple of it alone the CPU's attention makes use
_NUMBERS = itertools.count()  # of replies, over all engines of the process
# Those of vLLM's engines that were opened: one that ends takes groups of processes away from all others, and the
# stages of a run open one each; so they stay, and one whose user has gone is used again.
_OPENED: list[_Opened] = []


@dataclass
class _Reply:
    """A reply in the making."""

    request: TurnRequest
    draws: Draws
    known: int  # tokens of the episode before this request
    limit: int  # of its own tokens
    tokens: list[int] = field(default_factory=list)
    state_1: Any = field(default_factory=lambda: np.zeros(1, dtype=np.int32))
    cached: int = 0


@dataclass
class _Opened:
    """One of vLLM's engines, what it was made of, and who uses it."""

    llm: Any
    made_of: str
    user: weakref.ref[VLLMEngine]
    replies: dict[int, _Reply] = field(default_factory=dict)  # in the making, by number


class VLLMEngine:
    """Replies by vLLM, drawn by our keys: with equal weights its tokens are those of the native engine.

    Each turn sends the whole history; vLLM's prefix cache saves reading most of it again.  Weights are given at each
    version, adapters merged, and the cache is emptied with them.

    Args:
        network: the trainer's; its structure and precision are copied, its weights come by `load`.
        stop: completes a reply.
        end_of_turn_ids: token ids that also complete a reply.
        max_context_tokens: limit on an episode.
        forward_context: unused: the precision is that of the network's weights.
        num_slots: episodes decoded together.
        cache_gb: memory for keys and values, GiB; vLLM's own variable ``VLLM_CPU_KVCACHE_SPACE`` goes before it.
        max_sync_gap: see `GivenEngine`.

    Raises:
        ValueError: vLLM is missing or of an unknown release, an option makes no sense, the network is none of those
            that it knows.
    """

    # groups of processes are vLLM's own within one, and it would take the training's away
    capabilities = Capabilities(exact_log_probs=True, fork=True, weights="given", is_alone=True)

    def __init__(
        self,
        network: PreTrainedModel | None,
        *,
        stop: StopRule,
        end_of_turn_ids: Sequence[int],
        max_context_tokens: int = 1024,
        forward_context: Callable[[], AbstractContextManager[object]] | None = None,
        num_slots: int = 128,
        cache_gb: float = 1.0,
        max_sync_gap: float = 1e-3,
    ) -> None:
        self.foretold(num_slots=num_slots, cache_gb=cache_gb, max_sync_gap=max_sync_gap)
        if network is None:  # of a model behind an API
            raise ValueError(
                "model has no network here; use engine=openai engine.mode=chat, or another model"
            )
        version = require_vllm()
        require_positions(network, max_context_tokens)
        options = {
            "max_model_len": max_context_tokens, "max_num_seqs": num_slots,
            "max_num_batched_tokens": max(2048, num_slots), "kv_cache_memory_bytes": int(cache_gb * 2**30),
        }  # fmt: skip
        opened = _opened(self, network, version, options)
        self._llm, self._replies = opened.llm, opened.replies
        (self._sampling,) = imported("vllm.sampling_params")
        self._drop(list(self._replies))  # of its last user
        vocabulary = network.config.get_text_config().vocab_size
        self._stops, self._end_ids = StopTable(stop, vocabulary), set(end_of_turn_ids)
        self.max_sync_gap, self.capacity, self.num_steps = max_sync_gap, num_slots, 0
        self._max_context, self._version = max_context_tokens, 0
        self._history: dict[int, list[int]] = {}
        self._ready: list[TurnResult] = []

    @classmethod
    def foretold(cls, *, num_slots: int, cache_gb: float, max_sync_gap: float, **_: Any) -> Capabilities:
        """See `Foretelling`."""
        require_whole("num_slots", num_slots, 1, MOST_SLOTS)
        require_number("cache_gb", cache_gb, "a number > 0", lambda value: value > 0)
        require_number("max_sync_gap", max_sync_gap, "a number >= 0", lambda value: value >= 0)
        require_vllm()
        return cls.capabilities

    # ------------------------------------------------------------------ protocol
    @property
    def num_pending(self) -> int:
        return len(self._replies) + len(self._ready)

    def submit(self, request: TurnRequest) -> None:
        history = self._history.setdefault(request.episode, [])
        known = len(history)
        room = min(self._max_context, request.params.max_context_tokens) - known - len(request.prefix)
        if room <= 0:
            self._ready.append(
                TurnResult(request.episode, finish=FinishReason.CONTEXT, policy_version=self._version)
            )
            return
        history += request.prefix
        number, draws = next(_NUMBERS), Draws(request.key, request.params)
        reply = _Reply(request, draws, known, min(request.params.max_reply_tokens, room))
        DRAWS[number], self._replies[number] = draws, reply
        # greedy: of one token that is left, whatever the temperature
        self._ask(number, history, max_tokens=reply.limit, temperature=0.0, extra_args={NUMBER: number})

    def poll(self, timeout: float | None = None, *, steps: int | None = None) -> list[TurnResult]:
        """See `Engine`; ``timeout`` is not needed here, since work is done in the calling thread."""
        ends = None if steps is None else self.num_steps + steps
        while self._replies and not self._ready and self.num_steps != ends:
            for output in self._llm.step():
                self._take(output)
            self.num_steps += 1
        finished, self._ready = self._ready, []
        return finished

    def fork(self, parent: int, child: int, at: int) -> None:
        """Start ``child`` from the first ``at`` tokens of ``parent``; the prefix cache saves reading them."""
        length = len(self._history[parent]) if parent in self._history else None
        require_fork(parent, child, at, length=length, is_new=child not in self._history)
        self._history[child] = self._history[parent][:at]

    def close(self, episode: int) -> None:
        self._history.pop(episode, None)
        self._drop([number for number, reply in self._replies.items() if reply.request.episode == episode])

    def load(self, weights: Mapping[str, Tensor] | None, version: int) -> None:
        """See `Engine`; what vLLM kept of prompts is forgotten too.

        Raises:
            ValueError: vLLM did not take the weights, or not all of them.
        """
        self._history.clear()
        self._ready.clear()
        self._drop(list(self._replies))
        if weights is not None:
            self._llm.apply_model(lambda model: load_all(model, weights))
        if not self._llm.reset_prefix_cache():
            raise ValueError("vLLM did not empty its prefix cache; engine=native needs none")
        self._version = version

    def stop(self) -> None:
        """See `Engine`; vLLM's own engine stays for the next one of this process."""
        self._history.clear()
        self._ready.clear()
        self._drop(list(self._replies))

    def score(self, tokens: Sequence[int]) -> list[float]:
        """See `GivenEngine`."""
        number = next(_NUMBERS)
        self._ask(number, tokens, max_tokens=1, temperature=0.0, prompt_logprobs=0)
        while True:
            for output in self._llm.step():
                if output.request_id == str(number):
                    found = output.prompt_logprobs[1:]
                    return [float(row[token].logprob) for row, token in zip(found, tokens[1:], strict=True)]
                self._take(output)

    # ------------------------------------------------------------------ one reply
    def _ask(self, number: int, tokens: Sequence[int], **sampling: Any) -> None:
        delta = self._sampling.RequestOutputKind.DELTA
        params = self._sampling.SamplingParams(
            detokenize=False, ignore_eos=True, output_kind=delta, **sampling
        )
        self._llm.add_request(str(number), {"prompt_token_ids": list(tokens)}, params)

    def _drop(self, numbers: Sequence[int]) -> None:
        """Have vLLM end these requests."""
        self._llm.abort_request([str(number) for number in numbers])
        for number in numbers:
            del self._replies[number], DRAWS[number]

    def _take(self, output: Any) -> None:
        """The tokens that a step added to a reply; one that is complete becomes ready, as the native engine cuts it."""
        number = int(output.request_id)
        reply = self._replies.get(number)
        if reply is None:  # its episode has been closed
            return
        if not reply.tokens:
            reply.cached = output.num_cached_tokens or 0
        is_complete = False
        for token in output.outputs[0].token_ids:
            reply.tokens.append(token)
            reply.state_1, stopped_1 = self._stops.advance(reply.state_1, np.array([token]))
            if is_complete := bool(stopped_1[0]) or token in self._end_ids:
                break
        if is_complete or output.finished:
            self._drop([number])
            self._ready.append(self._result(reply, is_complete))

    def _result(self, reply: _Reply, is_complete: bool) -> TurnResult:
        request, draws, count = reply.request, reply.draws, len(reply.tokens)
        result = TurnResult(request.episode, policy_version=self._version)
        if draws.tokens[:count] != reply.tokens:
            result.finish, result.error = FinishReason.ERROR, "vLLM wrote other tokens than were drawn"
            return result
        result.tokens, result.logps, result.entropies = (
            reply.tokens, draws.logps[:count], draws.entropies[:count],
        )  # fmt: skip
        if is_complete:
            result.finish = FinishReason.STOP
        elif count >= request.params.max_reply_tokens:
            result.finish = FinishReason.LENGTH
        else:
            result.finish = FinishReason.CONTEXT
        history = self._history[request.episode]
        result.num_prefilled = len(history) - reply.cached
        result.num_shared = max(0, reply.cached - reply.known)
        history += reply.tokens
        return result


def _opened(user: VLLMEngine, network: PreTrainedModel, version: str, options: Mapping[str, Any]) -> _Opened:
    """One of vLLM's engines for networks of this structure, of no meaning yet; an earlier one if it is free."""
    config = copy.deepcopy(network.config)
    config.architectures = config.architectures or [type(network).__name__]
    given = {**options, "dtype": str(network.dtype).removeprefix("torch.")}
    made_of = f"{config.to_json_string()} {given}"
    gc.collect()  # of the stage before, whose objects may refer to one another
    free = next((opened for opened in _OPENED if opened.user() is None and opened.made_of == made_of), None)
    if free is not None:
        free.user = weakref.ref(user)
        return free
    with tempfile.TemporaryDirectory() as folder, undisturbed():
        config.save_pretrained(folder)
        try:
            llm = _made(folder, given)
        except Exception as error:  # it raises errors of many kinds, of many lines
            line = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"vLLM {version} cannot be opened for this model: {line[:300]}") from error
    _OPENED.append(_Opened(llm, made_of, weakref.ref(user)))
    return _OPENED[-1]


def _made(folder: str, given: Mapping[str, Any]) -> Any:
    arguments, engines, processors, platforms, layers = imported(
        "vllm.engine.arg_utils", "vllm.v1.engine.llm_engine", "vllm.v1.sample.logits_processor", "vllm.platforms",
        "vllm.model_executor.layers.utils",
    )  # fmt: skip
    processors.LogitsProcessor.register(KeyedDraws)
    block = {"block_size": _CPU_BLOCK} if platforms.current_platform.is_cpu() else {}
    asked = arguments.EngineArgs(
        model=folder, skip_tokenizer_init=True, load_format="dummy", generation_config="vllm", seed=0,
        enable_prefix_caching=True, enforce_eager=True, async_scheduling=False, disable_log_stats=True,
        logits_processors=[KeyedDraws], **block, **given,
    )  # fmt: skip
    with unpacked(layers):
        return engines.LLMEngine.from_engine_args(asked)
