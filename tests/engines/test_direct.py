"""Reading without modules: the bits of transformers' own forwards, and their forwards where anything is not plain."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from lit_agentrl.engines.attention import NAME
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.engines.direct import Direct
from lit_agentrl.engines.inference import Inference
from lit_agentrl.engines.native import NativeEngine
from lit_agentrl.engines.support import reader_of
from lit_agentrl.models.policy import copy_weights, load_nano, named_weights
from tests.conftest import tiny_network
from tests.engines.test_native import Never, play

PARAMS = SamplingParams(temperature=1.0, max_reply_tokens=6, max_context_tokens=200)
SHAPE = {
    "vocab_size": 257, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "max_position_embeddings": 512, "bos_token_id": None, "eos_token_id": 5, "pad_token_id": 0,
}  # fmt: skip
NETWORKS: dict[str, Any] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=True)),
    "llama with biases": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True)),
    "llama, scaled positions": lambda: LlamaForCausalLM(
        LlamaConfig(**SHAPE, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4})
    ),
    "llama, one layer": lambda: LlamaForCausalLM(LlamaConfig(**{**SHAPE, "num_hidden_layers": 1})),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SHAPE, head_dim=16)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=32)),
}


def network(name: str) -> PreTrainedModel:
    """Random weights, also where they are the same for all at first: norms and biases."""
    torch.manual_seed(0)
    made: PreTrainedModel = NETWORKS[name]().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() == 1:
                parameter.copy_(1 + 0.3 * torch.randn_like(parameter))
    return made


class Both:
    """A `Reader` that reads each forward in both ways, and notes what was seen."""

    def __init__(self, network: PreTrainedModel) -> None:
        self.readers: tuple[Any, Any] = (Direct(network), Inference(network, NAME))
        self.seen: list[tuple[bool, bool]] = []  # of each forward: whether without modules; whether equal
        self.logits: list[torch.Tensor] = []
        self.sizes: set[int] = set()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        yield

    def cache(self, num_slots: int, max_length: int) -> Any:
        return Caches(reader.cache(num_slots, max_length) for reader in self.readers)

    def read(self, cache: Any, packed: Any) -> torch.Tensor:
        found = []
        for reader, own in zip(self.readers, cache, strict=True):
            with reader():
                found.append(reader.read(own, packed))
        self.seen.append((self.readers[0].is_plain, torch.equal(*found)))
        self.logits.append(found[0])
        self.sizes.add(packed.token_1N.shape[1])
        return found[0]


class Caches(list[Any]):
    def move(self, *given: int) -> None:
        for each in self:
            each.move(*given)


def read_both(made: PreTrainedModel, episodes: int = 6, slots: int = 6) -> Both:
    both = Both(made)
    engine = NativeEngine(
        made, stop=Never(), end_of_turn_ids=(), num_slots=slots, max_context_tokens=200, reader=both
    )
    prefixes = [[(5 * i + e // 2) % 250 + 1 for i in range(9 + 4 * (e % 3))] for e in range(episodes)]
    play(engine, prefixes, PARAMS)
    return both


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_logit_is_that_of_the_modules_to_the_bit(name: str, dtype: torch.dtype) -> None:
    """Long beginnings, single tokens, shared beginnings, moves of slots; many rows and few."""
    both = read_both(network(name).to(dtype), episodes=16, slots=12)
    assert all(is_plain and is_equal for is_plain, is_equal in both.seen)
    assert min(both.sizes) < 48 <= max(both.sizes), "both kinds of products were met"


@pytest.mark.parametrize("episodes", [1, 3, 4])
def test_few_episodes_have_the_same_bits(episodes: int) -> None:
    """Products of one to three rows have other bits than the same rows within more."""
    for made in (network("llama"), load_nano().network):
        both = read_both(made, episodes=episodes, slots=episodes)
        assert all(is_plain and is_equal for is_plain, is_equal in both.seen)


def test_last_tokens_are_computed_as_part_of_all_of_them() -> None:
    """48 rows take another product than 47: the rows that go on in the last layer keep that of the whole.

    The embedded policy is wide enough for the two products to differ.
    """
    both = read_both(load_nano().network, episodes=8, slots=8)
    assert {size for size in both.sizes if size >= 48}
    assert all(is_plain and is_equal for is_plain, is_equal in both.seen)


def test_weights_that_are_loaded_are_read() -> None:
    made = network("qwen2")
    both = Both(made)
    prompts = [[5, 6, 7, 8]] * 4

    def read() -> torch.Tensor:
        engine = NativeEngine(
            made, stop=Never(), end_of_turn_ids=(), num_slots=4, max_context_tokens=64, reader=both
        )
        both.logits.clear()
        play(engine, prompts, PARAMS, turns=1)
        return both.logits[0]

    before = read().clone()
    other = network("qwen2")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.1)
    copy_weights(named_weights(other), made)
    assert not torch.equal(read(), before)
    assert all(is_plain and is_equal for is_plain, is_equal in both.seen)


def patched(made: Any) -> None:
    layer = made.model.layers[1].mlp
    layer.forward = type(layer).forward.__get__(layer)


def hooked(made: Any) -> None:
    made.model.layers[0].register_forward_hook(lambda *_: None)


def of_another_class(made: Any) -> None:
    class Wide(nn.Linear):
        pass

    old = made.model.layers[0].mlp.up_proj
    made.model.layers[0].mlp.up_proj = new = Wide(old.in_features, old.out_features, bias=False)
    new.weight = old.weight


def in_float64(made: Any) -> None:
    made.double()


def with_another_activation(made: Any) -> None:
    made.model.layers[1].mlp.act_fn = nn.GELU()


def without_its_last_layer(made: Any) -> None:
    made.config.num_hidden_layers = 2


def with_a_sequence(made: Any) -> None:
    made.model.layers[0].mlp.down_proj = nn.Sequential(made.model.layers[0].mlp.down_proj)


def compiled(made: Any) -> None:
    made.model.layers[0].mlp.compile(backend="eager")


@pytest.mark.parametrize(
    "change",
    [patched, hooked, of_another_class, in_float64, with_another_activation, with_a_sequence, compiled],
)
def test_what_is_not_plain_is_read_by_its_modules(change: Any) -> None:
    made = network("llama")
    change(made)
    both = read_both(made)
    assert both.seen
    assert not any(is_plain for is_plain, _ in both.seen)
    assert all(is_equal for _, is_equal in both.seen)


def test_as_many_layers_are_read_as_the_config_names() -> None:
    made = network("llama")
    without_its_last_layer(made)
    both = read_both(made)
    assert all(is_plain and is_equal for is_plain, is_equal in both.seen)


def test_hooks_on_all_modules_are_called() -> None:
    made, called = network("llama"), []
    handle = nn.modules.module.register_module_forward_hook(lambda *_: called.append(1))
    try:
        assert not any(is_plain for is_plain, _ in read_both(made).seen)
    finally:
        handle.remove()
    assert called


def test_a_layer_that_is_exchanged_is_seen() -> None:
    made = network("llama")
    reader = Direct(made)
    with reader():
        assert reader.is_plain
    of_another_class(made)
    with reader():
        assert not reader.is_plain


def test_another_release_with_other_numbers_is_read_by_its_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    made = network("llama")
    assert isinstance(reader_of(made, nullcontext), Direct)
    monkeypatch.setattr("lit_agentrl.engines.direct.silu", torch.relu)
    assert isinstance(reader_of(made, nullcontext), Inference)


def test_a_hook_that_comes_later_is_called() -> None:
    made, called = network("llama"), []
    reader = Direct(made)
    with reader():
        assert reader.is_plain
    handle = made.model.layers[0].register_forward_hook(lambda *_: called.append(1))
    engine = NativeEngine(
        made, stop=Never(), end_of_turn_ids=(), num_slots=2, max_context_tokens=64, reader=reader
    )
    called.clear()  # of its trial of the network
    play(engine, [[1, 2, 3]], PARAMS, turns=1)
    assert len(called) == PARAMS.max_reply_tokens
    handle.remove()
    play(engine, [[1, 2, 3]], PARAMS, turns=1)
    assert len(called) == PARAMS.max_reply_tokens


class Own(LlamaForCausalLM):
    """A subclass may do anything."""


def test_other_classes_are_read_by_their_modules() -> None:
    made = network("llama")
    made.__class__ = Own
    for each in (tiny_network("gpt2"), made):
        both = read_both(each)
        assert both.seen
        assert not any(is_plain for is_plain, _ in both.seen)


def test_under_autocast_modules_are_called() -> None:
    made = network("llama")

    def sampled(reader: Any) -> Any:
        engine = NativeEngine(
            made, stop=Never(), end_of_turn_ids=(), num_slots=6, max_context_tokens=200, reader=reader,
            forward_context=lambda: torch.autocast("cpu", torch.bfloat16),
        )  # fmt: skip
        return play(engine, [[i % 250 + 1 for i in range(60)]] * 3, PARAMS)

    assert sampled(Direct(made)) == sampled(Inference(made, NAME))
