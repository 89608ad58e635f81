"""Adapters on the network: what they leave alone, what merging and switching off mean, and what is written."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from lit_agentrl.engines.base import SamplingParams, TurnRequest
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.models.lora import (
    LoRA,
    disable_adapters,
    find_adapter_layers,
    hash_parameters,
    merge_adapters,
)
from lit_agentrl.models.policy import Policy, load_nano, load_pretrained
from tests.conftest import tiny_network, tiny_policy

FAMILIES = ["llama", "gpt2"]


def adapted(family: str = "llama", **options) -> Policy:
    policy = tiny_policy(family)
    policy.adapters = LoRA(**options).attach(policy.network, policy.name)
    policy.network.train(False)
    return policy


def moved(family: str = "llama", **options) -> Policy:
    """As after training: A and B are anything."""
    policy = adapted(family, **options)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.network.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.3, generator=draw)
    return policy


def log_probs(network) -> torch.Tensor:
    tokens_BT = torch.randint(1, 200, (3, 17), generator=torch.Generator().manual_seed(0))
    is_action_BT = torch.ones_like(tokens_BT, dtype=torch.bool)
    is_action_BT[:, 0] = False
    with torch.no_grad():
        return score_tokens(network, tokens_BT=tokens_BT, is_action_BT=is_action_BT).logp_BT


@pytest.mark.parametrize("family", FAMILIES)
def test_the_start_is_the_base_and_adapters_alone_are_trained(family):
    policy, base = adapted(family, r=3), tiny_network(family)
    torch.testing.assert_close(log_probs(policy.network), log_probs(base), rtol=0, atol=0)
    trained = {name: p for name, p in policy.network.named_parameters() if p.requires_grad}
    assert all("lora_" in name for name in trained)
    layers = dict(find_adapter_layers(policy.network))
    assert sum(p.numel() for p in trained.values()) == sum(
        3 * (layer.in_features + layer.out_features) for layer in layers.values()
    )
    blocks = {name for name, m in base.named_modules() if type(m).__name__ in ("Linear", "Conv1D")}
    assert set(layers) == blocks - {"lm_head"}


def test_the_draw_of_a_depends_on_the_seed_alone():
    def draws(seed: int, before: int) -> list[torch.Tensor]:
        network = tiny_network()
        torch.manual_seed(before)
        LoRA(seed=seed).attach(network, "tiny")
        assert torch.equal(torch.rand(2), torch.rand(2, generator=torch.Generator().manual_seed(before)))
        return [p for name, p in network.named_parameters() if "lora_A" in name]

    one, same, other = draws(0, 5), draws(0, 6), draws(1, 5)
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_switched_off_it_is_the_base_to_the_bit(family):
    policy, base = moved(family), tiny_network(family)
    flags = {name: p.requires_grad for name, p in policy.network.named_parameters()}
    on = log_probs(policy.network)
    assert float((on - log_probs(base)).abs().max()) > 0.1
    with disable_adapters(policy.network):
        assert torch.equal(log_probs(policy.network), log_probs(base))
        # strategies look at the flags: they must not change, not even within
        assert {name: p.requires_grad for name, p in policy.network.named_parameters()} == flags
    assert torch.equal(log_probs(policy.network), on)
    assert {name: p.requires_grad for name, p in policy.network.named_parameters()} == flags


def test_without_adapters_there_is_nothing_to_switch_off():
    network = tiny_network()
    before = log_probs(network)
    with disable_adapters(network):
        assert torch.equal(log_probs(network), before)
    assert all(parameter.requires_grad for parameter in network.parameters())


@pytest.mark.parametrize("options", [{}, {"use_rslora": True}, {"target_modules": ["q_proj", "mlp.up_proj"]}])
def test_merged_weights_say_the_same_and_leave_the_network_alone(options):
    policy = moved(**options)
    before, state = log_probs(policy.network), {n: t.clone() for n, t in policy.network.state_dict().items()}
    plain = merge_adapters(policy.network)
    assert not find_adapter_layers(plain) and set(plain.state_dict()) == set(tiny_network().state_dict())
    torch.testing.assert_close(log_probs(plain), before, rtol=0, atol=1e-5)
    assert all(torch.equal(tensor, state[name]) for name, tensor in policy.network.state_dict().items())
    assert torch.equal(log_probs(policy.network), before)
    assert plain.model.embed_tokens.weight.data_ptr() == policy.network.model.embed_tokens.weight.data_ptr()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_export_is_a_plain_model_and_the_adapter_beside_it(family, tmp_path):
    policy = moved(family)
    policy.save(tmp_path / "hf")
    tiny_policy(family).save(tmp_path / "base")
    expected = log_probs(policy.network)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    assert type(plain) is type(tiny_network(family))
    torch.testing.assert_close(log_probs(plain), expected, rtol=0, atol=1e-5)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    loaded = PeftModel.from_pretrained(base, tmp_path / "hf" / "adapter").eval()
    torch.testing.assert_close(log_probs(loaded), expected, rtol=0, atol=1e-5)


def test_the_embedded_policy_whose_head_is_its_embedding(tmp_path):
    policy = load_nano(lora=LoRA(r=2))
    with torch.no_grad():
        for parameter in policy.network.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.05, generator=torch.Generator().manual_seed(2))
    assert policy.adapters is not None and policy.adapters["base"] == "nano"
    policy.save(tmp_path)
    loaded = load_pretrained(str(tmp_path)).network
    torch.testing.assert_close(log_probs(loaded), log_probs(policy.network), rtol=1e-5, atol=1e-5)
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
    assert torch.equal(loaded.get_input_embeddings().weight, policy.network.get_input_embeddings().weight)


def test_half_precision_bases_have_float32_adapters():
    network = tiny_network().bfloat16()
    LoRA().attach(network, "tiny")
    kinds = {p.dtype for p in network.parameters() if p.requires_grad}
    assert kinds == {torch.float32} and network.dtype == torch.bfloat16
    assert {p.dtype for p in merge_adapters(network).parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_native_engine_samples_from_the_adapted_network(family):
    """What the rollout recorded is what the training forward finds: adapters are not forgotten in decoding."""
    policy = moved(family)
    engine = NativeEngine(
        policy.network, stop=_Never(), end_of_turn_ids=(), num_slots=2, max_context_tokens=64
    )
    prompts = {0: [7, 8, 9, 10], 1: [11, 12]}
    for episode, prefix in prompts.items():
        engine.submit(
            TurnRequest(
                episode, prefix, 5 + episode, SamplingParams(max_reply_tokens=9, max_context_tokens=64)
            )
        )
    results = []
    while len(results) < 2:
        results += engine.poll()
    for result in results:
        tokens = torch.tensor([[*prompts[result.episode], *result.tokens]])
        is_action = torch.arange(tokens.shape[1])[None] >= len(prompts[result.episode])
        with torch.no_grad():
            found = score_tokens(policy.network, tokens_BT=tokens, is_action_BT=is_action).logp_BT[is_action]
        torch.testing.assert_close(torch.tensor(result.logps), found, rtol=0, atol=1e-4)


class _Never:
    def update(self, state: str, token: int) -> tuple[str, bool]:
        return state, False


def test_the_fingerprint_sees_one_bit():
    network = tiny_network()
    before = hash_parameters(network)
    assert before == hash_parameters(tiny_network()) != hash_parameters(tiny_network(seed=1))
    with torch.no_grad():
        weight = next(network.parameters())
        weight.view(torch.int32)[0, 0] ^= 1
    assert hash_parameters(network) != before


def test_without_peft_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"^needs the package peft; install it with: pip install"):
        adapted()
