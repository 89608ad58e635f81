"""vLLM in this process; the only file that imports it."""

from __future__ import annotations

import copy
import gc
import itertools
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from lit_agentrl.engines.base import Capabilities, TurnRequest, TurnResult, require_fork
from lit_agentrl.engines.native.stops import StopRule, StopTable
from lit_agentrl.engines.native.support import require_positions
from lit_agentrl.engines.options import AUTO, check_vllm
from lit_agentrl.engines.served.keyed import DRAWS, NUMBER, Draws, KeyedDraws
from lit_agentrl.engines.served.vllm_memory import (
    choose_dtype,
    choose_memory,
    choose_sleep,
    join_ranks,
)
from lit_agentrl.engines.served.vllm_setup import (
    has_gpu_build,
    import_modules,
    keep_weights_unpacked,
    load_all_weights,
    preserve_process_state,
    require_vllm,
)
from lit_agentrl.episode import FinishReason

_CPU_BLOCK = 32  # tokens; the CPU's attention needs a multiple of it
_NUMBERS = itertools.count()  # ids of replies, over all engines of the process
# All vLLM engines of this process.  Each stage of a run needs an engine, and ending one would destroy the process
# groups of the others.  Therefore engines stay open, and an engine whose user is gone is reused.
_SHARED_ENGINES: list[_SharedEngine] = []


@dataclass
class _Reply:
    """An unfinished reply."""

    request: TurnRequest
    draws: Draws
    num_before: int  # tokens of the episode before this request
    limit: int  # maximum tokens of this reply
    tokens: list[int] = field(default_factory=list)
    state_1: Any = field(default_factory=lambda: np.zeros(1, dtype=np.int32))
    num_cached: int = 0


@dataclass
class _SharedEngine:
    """An engine of vLLM, the options it was built with, and its user."""

    llm: Any
    signature: str
    user: weakref.ref[VLLMEngine]
    replies: dict[int, _Reply] = field(default_factory=dict)  # unfinished ones, by number


class VLLMEngine:
    """Generates with vLLM and keyed draws.

    With equal weights its tokens are those of the native engine.  Each turn sends the whole history; vLLM's prefix
    cache saves reading most of it again.  Each version brings new weights, with adapters merged, and empties the cache.

    Args:
        network: The trainer's network; its structure and precision are copied, its weights come by `load`.
        stop: Completes a reply.
        end_of_turn_ids: Token ids that also complete a reply.
        max_context_tokens: Maximum tokens of an episode.
        forward_context: Gives the precision on a GPU; on a CPU it is that of the network's weights.
        num_slots: Number of episodes decoded together.
        cache_gb: Memory for keys and values in GiB, see `choose_cache_bytes`; vLLM's own variable
            ``VLLM_CPU_KVCACHE_SPACE`` overrides it.
        max_sync_gap: See `GivenEngine`.
        sleep: Level at which vLLM sleeps during updates, see `choose_sleep`.

    Each training process has its own engine.

    Raises:
        ValueError: If vLLM is missing or of an unsupported release, an option has an invalid value, or vLLM does not
            support the network.
    """

    capabilities = Capabilities(exact_log_probs=True, fork=True, weights="given")

    def __init__(
        self,
        network: PreTrainedModel | None,
        *,
        stop: StopRule,
        end_of_turn_ids: Sequence[int],
        max_context_tokens: int = 1024,
        forward_context: Callable[[], AbstractContextManager[object]] | None = None,
        num_slots: int = 128,
        cache_gb: float | str = AUTO,
        max_sync_gap: float = 1e-3,
        sleep: int | str = AUTO,
    ) -> None:
        self.check_options(num_slots=num_slots, cache_gb=cache_gb, max_sync_gap=max_sync_gap, sleep=sleep)
        if network is None:  # a model behind an API
            raise ValueError(
                "model has no network here; use engine=openai engine.mode=chat, or another model"
            )
        version = require_vllm()
        require_positions(network, max_context_tokens)
        on_gpu = has_gpu_build(version)
        context = nullcontext() if forward_context is None else forward_context()
        dtype = choose_dtype(network, context, on_gpu=on_gpu)
        self._sleep = choose_sleep(sleep, on_gpu=on_gpu)
        options = {
            "max_model_len": max_context_tokens, "max_num_seqs": num_slots, "dtype": str(dtype).removeprefix("torch."),
            "max_num_batched_tokens": max(2048, num_slots), "enforce_eager": not on_gpu,
            "enable_sleep_mode": self._sleep > 0,
        }  # fmt: skip
        choose_memory_options = partial(
            choose_memory, cache_gb, network, on_gpu=on_gpu, itemsize=dtype.itemsize, num_slots=num_slots,
            max_context=max_context_tokens,
        )  # fmt: skip
        shared = _open_engine(self, network, version, options, choose_memory_options, str(cache_gb))
        self._llm, self._replies = shared.llm, shared.replies
        (self._sampling,) = import_modules("vllm.sampling_params")
        self._abort(list(self._replies))  # requests of the engine's last user
        vocabulary = network.config.get_text_config().vocab_size
        self._stops, self._end_ids = StopTable(stop, vocabulary), set(end_of_turn_ids)
        self.max_sync_gap, self.capacity, self.num_steps = max_sync_gap, num_slots, 0
        self._max_context, self._version = max_context_tokens, 0
        self._history: dict[int, list[int]] = {}
        self._ready: list[TurnResult] = []

    @classmethod
    def check_options(
        cls,
        *,
        num_slots: int,
        max_sync_gap: float,
        cache_gb: float | str = AUTO,
        sleep: int | str = AUTO,
        **_: Any,
    ) -> Capabilities:
        """Check the options; see `CheckedEngine`."""
        check_vllm(num_slots=num_slots, max_sync_gap=max_sync_gap, cache_gb=cache_gb, sleep=sleep)
        choose_sleep(sleep, on_gpu=has_gpu_build(require_vllm()))
        return cls.capabilities

    # ------------------------------------------------------------------ protocol
    @property
    def num_pending(self) -> int:
        return len(self._replies) + len(self._ready)

    def submit(self, request: TurnRequest) -> None:
        history = self._history.setdefault(request.episode, [])
        num_before = len(history)
        room = min(self._max_context, request.params.max_context_tokens) - num_before - len(request.prefix)
        if room <= 0:
            self._ready.append(
                TurnResult(request.episode, finish=FinishReason.CONTEXT, policy_version=self._version)
            )
            return
        history += request.prefix
        number, draws = next(_NUMBERS), Draws(request.key, request.params)
        reply = _Reply(request, draws, num_before, min(request.params.max_reply_tokens, room))
        DRAWS[number], self._replies[number] = draws, reply
        # greedy, since `KeyedDraws` leaves a single token to choose
        self._send_request(
            number, history, max_tokens=reply.limit, temperature=0.0, extra_args={NUMBER: number}
        )

    def poll(self, timeout: float | None = None, *, steps: int | None = None) -> list[TurnResult]:
        """See `Engine`; ``timeout`` is ignored, since the calling thread does the work."""
        last_step = None if steps is None else self.num_steps + steps
        while self._replies and not self._ready and self.num_steps != last_step:
            for output in self._llm.step():
                self._add_output(output)
            self.num_steps += 1
        finished, self._ready = self._ready, []
        return finished

    def fork(self, parent: int, child: int, at: int) -> None:
        """Start ``child`` from the first ``at`` tokens of ``parent``; the prefix cache helps."""
        length = len(self._history[parent]) if parent in self._history else None
        require_fork(parent, child, at, length=length, is_new=child not in self._history)
        self._history[child] = self._history[parent][:at]

    def close(self, episode: int) -> None:
        self._history.pop(episode, None)
        self._abort([number for number, reply in self._replies.items() if reply.request.episode == episode])

    def load(self, weights: Mapping[str, Tensor] | None, version: int) -> None:
        """Load the weights and empty the prefix cache; see `Engine`.

        Raises:
            ValueError: If vLLM did not accept all weights.
        """
        self._history.clear()
        self._ready.clear()
        self._abort(list(self._replies))
        is_asleep = self._sleep > 0 and self._llm.is_sleeping()
        if is_asleep:
            torch.cuda.empty_cache()  # vLLM takes memory that PyTorch would keep from the update
            self._llm.wake_up(["weights"])
        if weights is not None:
            self._llm.apply_model(partial(load_all_weights, weights=weights))
            weights = None  # merged adapters are a copy of all weights
        if is_asleep:  # after the weights, so that copies made for loading are gone
            torch.cuda.empty_cache()
            self._llm.wake_up(["kv_cache"])
        if not self._llm.reset_prefix_cache():
            raise ValueError("vLLM did not empty its prefix cache; engine=native needs none")
        self._version = version

    def rest(self) -> bool:
        """Sleep until the next `load`, on a GPU; see `RestingEngine`."""
        if self._sleep and not self._llm.is_sleeping():
            self._history.clear()
            self._abort(list(self._replies))
            self._llm.sleep(self._sleep)
        return self._sleep == 2

    def stop(self) -> None:
        """Drop pending requests; vLLM's own engine stays for reuse in this process."""
        self._history.clear()
        self._ready.clear()
        self._abort(list(self._replies))

    def score(self, tokens: Sequence[int]) -> list[float]:
        """Score tokens; see `GivenEngine`."""
        number = next(_NUMBERS)
        self._send_request(number, tokens, max_tokens=1, temperature=0.0, prompt_logprobs=0)
        while True:
            for output in self._llm.step():
                if output.request_id == str(number):
                    log_probs = output.prompt_logprobs[1:]
                    return [
                        float(row[token].logprob) for row, token in zip(log_probs, tokens[1:], strict=True)
                    ]
                self._add_output(output)

    # ------------------------------------------------------------------ one reply
    def _send_request(self, number: int, tokens: Sequence[int], **sampling: Any) -> None:
        delta = self._sampling.RequestOutputKind.DELTA
        params = self._sampling.SamplingParams(
            detokenize=False, ignore_eos=True, output_kind=delta, **sampling
        )
        self._llm.add_request(str(number), {"prompt_token_ids": list(tokens)}, params)

    def _abort(self, numbers: Sequence[int]) -> None:
        """Make vLLM end these requests."""
        self._llm.abort_request([str(number) for number in numbers])
        for number in numbers:
            del self._replies[number], DRAWS[number]

    def _add_output(self, output: Any) -> None:
        """Add the tokens of a step to a reply.

        A complete reply becomes ready, cut as in the native engine.
        """
        number = int(output.request_id)
        reply = self._replies.get(number)
        if reply is None:  # its episode was closed
            return
        if not reply.tokens:
            reply.num_cached = output.num_cached_tokens or 0
        is_complete = False
        for token in output.outputs[0].token_ids:
            reply.tokens.append(token)
            reply.state_1, stopped_1 = self._stops.advance(reply.state_1, np.array([token]))
            if is_complete := bool(stopped_1[0]) or token in self._end_ids:
                break
        if is_complete or output.finished:
            self._abort([number])
            self._ready.append(self._make_result(reply, is_complete))

    def _make_result(self, reply: _Reply, is_complete: bool) -> TurnResult:
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
        result.num_prefilled = len(history) - reply.num_cached
        result.num_shared = max(0, reply.num_cached - reply.num_before)
        history += reply.tokens
        return result


def _open_engine(
    user: VLLMEngine,
    network: PreTrainedModel,
    version: str,
    options: Mapping[str, Any],
    choose_memory_options: Callable[[], Mapping[str, Any]],
    cache: str,
) -> _SharedEngine:
    """Return a vLLM engine for networks of this structure, with arbitrary weights.

    An existing engine of equal ``options`` and ``cache`` is reused if it has no user.  A new one also gets the
    options that ``choose_memory_options`` returns.
    """
    config = copy.deepcopy(network.config)
    config.architectures = config.architectures or [type(network).__name__]
    signature = f"{config.to_json_string()} {options} {cache}"
    gc.collect()  # free the user of the last stage's engine, which may be part of a reference cycle
    unused = next(
        (shared for shared in _SHARED_ENGINES if shared.user() is None and shared.signature == signature),
        None,
    )
    if unused is not None:
        unused.user = weakref.ref(user)
        return unused
    if options["enable_sleep_mode"] and _SHARED_ENGINES:
        raise ValueError(
            "only one vLLM of a process can sleep, and this process has opened one already, for another model or "
            "with other options; set engine.sleep=0, or start another process"
        )
    with tempfile.TemporaryDirectory() as folder, preserve_process_state():
        config.save_pretrained(folder)
        try:
            llm = _make_llm(folder, {**options, **choose_memory_options()})
        except Exception as error:  # vLLM raises many types of errors, of many lines
            line = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"vLLM {version} cannot be opened for this model: {line[:300]}") from error
    _SHARED_ENGINES.append(_SharedEngine(llm, signature, weakref.ref(user)))
    return _SHARED_ENGINES[-1]


def _make_llm(folder: str, options: Mapping[str, Any]) -> Any:
    with join_ranks(torch.cuda.current_device() if torch.cuda.is_available() else 0) as ranks:
        if ranks:  # an engine that ends would end process groups of the training
            core: Any = import_modules("vllm.v1.engine.core")[0]
            core.cleanup_dist_env_and_memory = lambda: None
        return _make_llm_of_rank(folder, {**ranks, **options})


def _make_llm_of_rank(folder: str, options: Mapping[str, Any]) -> Any:
    arguments, engines, processors, platforms, layers = import_modules(
        "vllm.engine.arg_utils", "vllm.v1.engine.llm_engine", "vllm.v1.sample.logits_processor", "vllm.platforms",
        "vllm.model_executor.layers.utils",
    )  # fmt: skip
    processors.LogitsProcessor.register(KeyedDraws)
    block = {"block_size": _CPU_BLOCK} if platforms.current_platform.is_cpu() else {}
    engine_args = arguments.EngineArgs(
        model=folder, skip_tokenizer_init=True, load_format="dummy", generation_config="vllm", seed=0,
        enable_prefix_caching=True, async_scheduling=False, disable_log_stats=True, logits_processors=[KeyedDraws],
        **block, **options,
    )  # fmt: skip
    with keep_weights_unpacked(layers):
        return engines.LLMEngine.from_engine_args(engine_args)
