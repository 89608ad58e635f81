"""Five syncs in a row arrive; an engine without one of its guards is found out before anything is played."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.engines.served import vllm
from lit_agentrl.engines.served.vllm import _SHARED_ENGINES, VLLMEngine
from lit_agentrl.models.lora import LoRA
from lit_agentrl.models.policy import load_nano
from lit_agentrl.rollout.sync import SyncError
from tests.rollout.test_sync import moved
from tests.vllm.conftest import opened

pytestmark = pytest.mark.vllm

PLAIN = SamplingParams(max_reply_tokens=16, max_context_tokens=300)
WARM = SamplingParams(temperature=0.7, max_reply_tokens=16, max_context_tokens=300)
CUT = SamplingParams(temperature=1.5, top_p=0.8, max_reply_tokens=16, max_context_tokens=300)


class NoReset(VLLMEngine):
    """Keeps the keys and values of prompts that it read with older weights."""

    def load(self, weights: Any, version: int) -> None:
        class Keeping:
            """Of vLLM's engine, without the call that empties its cache."""

            def __init__(self, llm: Any) -> None:
                self.apply_model, self.abort_request = llm.apply_model, llm.abort_request

            def reset_prefix_cache(self) -> bool:
                return True

        llm, self._llm = self._llm, Keeping(self._llm)
        super().load(weights, version)
        self._llm = llm


class Stock(VLLMEngine):
    """Draws and records as vLLM does by itself."""

    mode = "raw_logprobs"

    def _send_request(self, number: int, tokens: Any, **sampling: Any) -> None:
        if sampling.pop("extra_args", None):
            params = self._replies[number].request.params
            sampling |= {
                "temperature": params.temperature, "top_p": params.top_p, "logprobs": 0,
                "seed": self._replies[number].request.key,
            }  # fmt: skip
        super()._send_request(number, tokens, **sampling)

    def _add_output(self, output: Any) -> None:
        reply = self._replies[int(output.request_id)]
        tokens = output.outputs[0].token_ids
        for token, row in zip(tokens, output.outputs[0].logprobs, strict=True):
            reply.draws.note(len(reply.draws.tokens), token, row[token].logprob, 0.0)
        super()._add_output(output)


def test_five_syncs_in_a_row(nano: Any) -> None:
    engine, sync = opened(nano)
    for version in range(5):
        for weights in (None, None):  # the second is the next wave of the same version
            sync.load(weights, version)
        for params in (PLAIN, WARM, CUT):
            row = sync.probe(params)
        print(f"\nversion {version}: gap {row['engine/sync_gap']:.2g}")
        assert row["engine/sync_gap"] < 1e-4
        moved(nano, version)


def test_adapters_arrive_merged() -> None:
    network = load_nano(lora=LoRA(r=4)).network
    engine, sync = opened(network)
    for version in range(3):
        sync.load(None, version)
        assert sync.probe(WARM)["engine/sync_gap"] < 1e-4
        moved(network, version)


def test_a_cache_that_is_not_emptied_is_found_out(nano: Any) -> None:
    engine, sync = opened(nano, NoReset)
    engine._llm.reset_prefix_cache()  # of the tests before
    sync.load(None, 0)
    sync.probe(PLAIN)
    moved(nano)
    sync.load(None, 1)
    with pytest.raises(SyncError, match=r"version 1 .*a reply sampled.*kept of older weights"):
        sync.probe(PLAIN)


@pytest.fixture
def no_engine_of_before() -> Any:
    kept, _SHARED_ENGINES[:] = list(_SHARED_ENGINES), []
    yield
    _SHARED_ENGINES[:] = kept + _SHARED_ENGINES  # none may end before the process does


def test_packed_layers_are_found_out(
    nano: Any, monkeypatch: pytest.MonkeyPatch, no_engine_of_before: Any
) -> None:
    monkeypatch.setattr(vllm, "keep_weights_unpacked", lambda layers: nullcontext())
    engine, sync = opened(nano)
    with pytest.raises(ValueError, match="vLLM did not take the weights"):
        sync.load(None, 0)
    # the way round it that vLLM offers says nothing, and leaves the linear layers as they were
    engine.load(None, 0)
    named = list(nano.named_parameters())
    engine._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(named)})
    sync._version = 0
    with pytest.raises(SyncError, match="a fixed text.*it has other weights"):
        sync.probe(PLAIN)


@pytest.mark.parametrize(
    ("mode", "good", "bad"), [("raw_logprobs", PLAIN, WARM), ("processed_logprobs", WARM, CUT)]
)
def test_its_own_log_probs_are_found_out(
    nano: Any, monkeypatch: pytest.MonkeyPatch, no_engine_of_before: Any, mode: str, good: Any, bad: Any
) -> None:
    arguments = __import__("importlib").import_module("vllm.engine.arg_utils")
    make = arguments.EngineArgs
    monkeypatch.setattr(arguments, "EngineArgs", lambda **given: make(**given, logprobs_mode=mode))
    engine, sync = opened(nano, Stock)
    sync.load(None, 0)
    assert sync.probe(good)["engine/sync_gap"] < 1e-4
    with pytest.raises(SyncError, match="not at this temperature over the full vocabulary"):
        sync.probe(bad)


def test_draws_that_vllm_did_not_take_are_an_error(nano: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, sync = opened(nano)
    sync.load(None, 0)
    ask = engine._send_request
    monkeypatch.setattr(engine, "_send_request", lambda *a, extra_args=None, **k: ask(*a, **k))
    with pytest.raises(SyncError, match="vLLM wrote other tokens than were drawn"):
        sync.probe(PLAIN)


def test_weights_that_are_missing_are_told(nano: Any) -> None:
    engine, _ = opened(nano)
    weights = dict(nano.named_parameters())
    del weights["model.norm.weight"]
    with pytest.raises(ValueError, match=r"given no weights for model\.norm\.weight"):
        engine.load(weights, 0)
    with pytest.raises(ValueError, match="did not take the weights"):
        engine.load({"no.such.weight": nano.model.norm.weight}, 0)


def test_the_next_stage_of_a_run_uses_the_engine_of_the_last(nano: Any) -> None:
    engine, sync = opened(nano)
    llm, count = engine._llm, len(_SHARED_ENGINES)
    other, _ = opened(nano)
    assert other._llm is not llm and len(_SHARED_ENGINES) <= count + 1  # both live
    del engine, sync
    again, _ = opened(nano)
    assert again._llm is llm
