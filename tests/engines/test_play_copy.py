"""The copy of the weights that windows decode with: the network's own numbers, by fewer kernels."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import (
    LlamaConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from lit_agentrl.engines.base import SamplingParams, TurnRequest
from lit_agentrl.engines.native import engine as engine_module
from lit_agentrl.engines.native.attention import NAME
from lit_agentrl.engines.native.decode import decode
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.engines.native.inference import Inference
from lit_agentrl.engines.native.play_copy import PlayCopy, choose_copy
from lit_agentrl.models.memory_plan import MemoryPlan
from scripts.bench.decode_step import CountOperators
from tests.conftest import tiny_network
from tests.engines.test_native import PREFIXES, Never, play
from tests.engines.test_prefixes import SIBLINGS
from tests.engines.test_window import SETTINGS, CountTransfers, answer, tied
from tests.models.test_lora import moved

KERNELS_A_LAYER = 14
SHAPE = {
    "vocab_size": 257, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 48, "max_position_embeddings": 512,
}  # fmt: skip


def small(config: Any, network: Any, layers: int = 2) -> PreTrainedModel:
    """A network whose norms and biases do something."""
    torch.manual_seed(0)
    found = network(config(num_hidden_layers=layers, **SHAPE)).eval()
    for parameter in found.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, std=0.5)
    return found


NETWORKS = {
    "llama": tiny_network,
    "tied": tied,
    "lora": lambda: moved("llama").network,
    "qwen2": partial(small, Qwen2Config, Qwen2ForCausalLM),
    "qwen3": partial(small, Qwen3Config, Qwen3ForCausalLM),
}


def open_engine(network: PreTrainedModel, window: int = 4, **options: Any) -> NativeEngine:
    given = {"num_slots": 4, "max_context_tokens": 200, "play_copy": window > 0} | options
    return NativeEngine(network, stop=Never(), end_of_turn_ids=(), window=window, **given)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("prefixes", [PREFIXES, SIBLINGS], ids=["plain", "prefixes"])
def test_replies_equal_those_of_the_network(name, prefixes):
    network = NETWORKS[name]()
    expected, _ = play(open_engine(network, 0), prefixes, SETTINGS["plain"], turns=2)
    found, _ = play(open_engine(network), prefixes, SETTINGS["plain"], turns=2)
    for episode, (tokens, is_action, logps) in expected.items():
        assert found[episode][:2] == (tokens, is_action)
        assert found[episode][2] == pytest.approx(logps, abs=1e-5)


def test_rows_have_settings_of_their_own():
    network = tiny_network()
    requests = [TurnRequest(i, PREFIXES[i], 70 + i, params) for i, params in enumerate(SETTINGS.values())]
    sides = [answer(open_engine(network, window, num_slots=5), requests) for window in (0, 4)]
    assert [sides[0][i].tokens for i in range(5)] == [sides[1][i].tokens for i in range(5)]


def test_loaded_weights_are_copied():
    network, request = tiny_network(), TurnRequest(0, [6, 9], 1, SETTINGS["plain"])
    engine = open_engine(network)
    before = answer(engine, [request])[0]
    with torch.no_grad():  # as a step of the optimizer does
        for parameter in network.parameters():
            parameter.mul_(1.3)
    engine.load(None, 1)
    after = answer(engine, [request])[0]
    assert after.logps == pytest.approx(answer(open_engine(network, 0), [request])[0].logps, abs=1e-5)
    assert after.logps != before.logps


def test_half_precision_is_close_to_autocast():
    """The copy is in the precision of autocast, and its log-probs differ by roundings only."""
    network, params = (
        tiny_network(),
        SamplingParams(temperature=0, max_reply_tokens=1, max_context_tokens=200),
    )
    request = [TurnRequest(0, PREFIXES[2], 1, params)]
    mixed = partial(torch.autocast, "cpu", torch.bfloat16)
    engine = open_engine(network, forward_context=mixed)
    found = answer(engine, request)[0]
    assert engine._copy is not None and engine._copy._head_VH.dtype == torch.bfloat16
    for context in (mixed, nullcontext):
        assert found.logps == pytest.approx(
            answer(open_engine(network, 0, forward_context=context), request)[0].logps, abs=0.03
        )


@pytest.mark.parametrize("has_adapter", [False, True])
@pytest.mark.parametrize(
    ("dtype", "is_autocast", "precision"),
    [
        (torch.float32, False, "float32"),
        (torch.float32, True, "mixed"),
        (torch.bfloat16, False, "bfloat16"),
        (torch.bfloat16, True, "bfloat16"),
    ],
)
def test_the_memory_plan_counts_a_copy_that_is_made(dtype, is_autocast, precision, has_adapter, monkeypatch):
    monkeypatch.setattr("lit_agentrl.engines.native.play_copy.find_copy_obstacle", lambda _: "")
    adapter = {"peft_config": {}} if has_adapter else {}
    network = SimpleNamespace(dtype=dtype, device=torch.device("cuda"), **adapter)
    plan = MemoryPlan(
        config=LlamaConfig(num_hidden_layers=2), precision=precision, lora=8 if has_adapter else None
    )
    assert choose_copy("auto", network, is_autocast=is_autocast) == (plan.count_play_copy() > 0)


def count_operators(layers: int, network: Any) -> CountOperators:
    """Count a window of one step on ``meta``, where attention is as on GPUs."""
    with FakeTensorMode():
        with torch.device("meta"):
            built, rows_FR = network(layers=layers), torch.zeros(8, 6, dtype=torch.long)
        inference = Inference(built, NAME)
        with inference():
            read = partial(PlayCopy(built, torch.bfloat16).read, inference.make_cache(8, 128))
            run = partial(decode, read, rows_FR, steps=1, num_slots=8, length=96, truncates=False)
            run()  # makes the slots
            with CountOperators() as counted, CountTransfers() as transfers:
                run()
    assert not +transfers.found
    return counted


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_a_layer_launches_few_kernels_and_no_size_depends_on_data(name):
    """The norms of heads of Qwen3 are two more kernels, and so is joining their results."""
    one, two = (count_operators(layers, NETWORKS[name]).found for layers in (1, 2))
    layer = two - one
    assert layer.total() <= KERNELS_A_LAYER + (3 if name == "qwen3" else 0), layer


@pytest.mark.parametrize("is_half", [False, True])
@pytest.mark.parametrize("name", ["llama", "lora", "qwen3"])
def test_a_copy_is_tried_before_it_plays(name, is_half, monkeypatch, caplog):
    """A copy that computes something else is refused, or left out if nobody asked for it."""
    network, request = NETWORKS[name](), [TurnRequest(0, PREFIXES[2], 1, SETTINGS["plain"])]
    with torch.no_grad():  # logits as large as those of a trained network
        network.get_output_embeddings().weight.mul_(20.0)
    context = partial(torch.autocast, "cpu", torch.bfloat16) if is_half else nullcontext
    engine = open_engine(network, forward_context=context)
    answer(engine, request)
    assert engine._copy is not None and not caplog.records
    monkeypatch.setattr(PlayCopy, "_normalize", lambda self, x, weight: x * weight)
    with pytest.raises(ValueError, match=r"cannot copy the model: its log-probs differ by .*play_copy=auto"):
        answer(open_engine(network, forward_context=context), request)
    monkeypatch.setattr(engine_module, "choose_copy", lambda *_, **__: True)  # as on a GPU
    engine = open_engine(network, play_copy="auto", forward_context=context)
    expected = answer(open_engine(network, play_copy=False, forward_context=context), request)
    assert answer(engine, request)[0].tokens == expected[0].tokens and engine._copy is None
    assert "use the trainer's weights, not a copy of them: its log-probs differ by" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"window": 0, "play_copy": True},
            "play_copy=true has no effect without windows; set engine.window=8",
        ),
        ({"play_copy": "often"}, "play_copy=often must be auto, true or false"),
    ],
)
def test_a_copy_without_use_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        open_engine(tiny_network(), **options)


def test_other_networks_are_refused_and_auto_decodes_with_them():
    with pytest.raises(ValueError, match=r"GPT2LMHeadModel is none of .*; set engine.play_copy=auto"):
        open_engine(tiny_network("gpt2"))
    biased = tiny_network()
    config = LlamaConfig(**SHAPE, num_hidden_layers=1, mlp_bias=True)
    biased = type(biased)(config)
    with pytest.raises(ValueError, match="biases"):
        open_engine(biased)
