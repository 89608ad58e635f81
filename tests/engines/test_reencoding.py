"""Networks whose state slots cannot hold: the slower path is taken, said once, and exact."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Lfm2Config,
    Lfm2ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MptConfig,
    MptForCausalLM,
    PreTrainedModel,
)  # fmt: skip

from lit_agentrl.engines.base import SamplingParams, TurnRequest
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.episode import FinishReason
from lit_agentrl.models.logprobs import score_tokens
from tests.engines.test_native import PREFIXES, Never, padded, play

SIZES = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = {"num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 512}


def network(kind: str) -> PreTrainedModel:
    torch.manual_seed(0)
    if kind == "sliding":  # a window that the test's episodes leave behind
        return MistralForCausalLM(MistralConfig(**SIZES, **GROUPED, sliding_window=8)).eval()
    if kind == "hybrid":  # short convolutions with a state of their own beside attention
        layers = ["conv", "full_attention"]
        return Lfm2ForCausalLM(Lfm2Config(**SIZES, **GROUPED, layer_types=layers, conv_L_cache=3)).eval()
    # learned by distance: attention with a bias of its own, not by the interface
    return MptForCausalLM(
        MptConfig(d_model=32, n_heads=4, n_layers=2, vocab_size=100, max_seq_len=512)
    ).eval()


def engine(net: PreTrainedModel, slots: int = 4, context: int = 200) -> NativeEngine:
    return NativeEngine(net, stop=Never(), end_of_turn_ids=(), num_slots=slots, max_context_tokens=context)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sliding", "hybrid", "bias"])
def test_recorded_log_probs_are_the_trainers(kind, caplog):
    net = network(kind)
    eng = engine(net)
    assert [r.levelname for r in caplog.records if "whole history" in r.message] == ["WARNING"]
    params = SamplingParams(max_reply_tokens=7, max_context_tokens=200)
    episodes, prefilled = play(eng, PREFIXES, params)
    tokens_BT, is_action_BT, logp_BT = padded(episodes)
    assert int(is_action_BT.sum()) == len(PREFIXES) * 3 * 7
    with torch.no_grad():
        scores = score_tokens(net, tokens_BT=tokens_BT, is_action_BT=is_action_BT)
    torch.testing.assert_close(scores.logp_BT, logp_BT, atol=1e-4, rtol=0)
    assert prefilled > sum(len(tokens) - sum(is_action) for tokens, is_action, _ in episodes.values())
    again, _ = play(engine(net), PREFIXES, params)
    assert episodes == again


def test_both_paths_draw_the_same_tokens():
    torch.manual_seed(0)
    net = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=4)).eval()
    params = SamplingParams(max_reply_tokens=7, max_context_tokens=200)
    quick, _ = play(engine(net), PREFIXES, params)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lit_agentrl.engines.native.engine.find_obstacle", lambda *_: "is a test")
        slow, _ = play(engine(net), PREFIXES, params)
    assert {e: t for e, (t, _, _) in quick.items()} == {e: t for e, (t, _, _) in slow.items()}
    torch.testing.assert_close(padded(quick)[2], padded(slow)[2], atol=1e-5, rtol=0)


def test_limits_and_close():
    eng = engine(network("sliding"), context=12)
    params = SamplingParams(max_reply_tokens=4, max_context_tokens=12)
    eng.submit(TurnRequest(0, [6, 7, 8, 9], 1, params))
    [first] = eng.poll()
    assert first.finish is FinishReason.LENGTH and len(first.tokens) == 4
    eng.submit(TurnRequest(1, [6, 7, 8, 9, *first.tokens[:2], 6, 7, 8], 2, params))
    [cut] = eng.poll()
    assert cut.finish is FinishReason.CONTEXT and len(cut.tokens) == 3 and cut.num_prefilled == 9
    eng.submit(TurnRequest(0, [6, 7, 8, 9], 2, params))
    [refused] = eng.poll()
    assert refused.finish is FinishReason.CONTEXT and (refused.tokens, refused.num_prefilled) == ([], 0)
    for _ in range(2):  # a refused request leaves the history as it was, also one without new tokens
        eng.submit(TurnRequest(1, [], 3, params))
        assert eng.poll()[0].finish is FinishReason.CONTEXT
    eng.close(0)
    eng.submit(TurnRequest(0, [6, 7, 8, 9], 1, params))
    assert eng.poll()[0].tokens == first.tokens
    assert eng.poll() == []
