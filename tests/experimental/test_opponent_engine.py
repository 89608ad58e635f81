"""The opponent's engine: who writes with which network, and that the policy plays as it would alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from lit_agentrl.engines.base import SamplingParams, TurnRequest, TurnResult
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.engines.needs import check_engine_options
from lit_agentrl.episode import OPPONENT
from lit_agentrl.experimental.opponent import OpponentEngine
from lit_agentrl.facts import PLAYS_REFERENCE
from lit_agentrl.models.lora import LoRA, disable_adapters
from tests.conftest import tiny_network, tiny_policy
from tests.engines.test_native import PREFIXES, Never

PARAMS = SamplingParams(max_reply_tokens=6, max_context_tokens=80)
OPTIONS: dict[str, Any] = {"stop": Never(), "end_of_turn_ids": [], "max_context_tokens": 80}
MAKE = partial(NativeEngine, num_slots=4)


def two() -> tuple[PreTrainedModel, PreTrainedModel]:
    """A policy and a reference that say different things, loudly."""
    networks = tiny_network(seed=0), tiny_network(seed=1)
    with torch.no_grad():
        for network in networks:
            network.lm_head.weight.mul_(30)
    return networks


def ask(engine: Any, requests: list[TurnRequest]) -> dict[int, TurnResult]:
    for request in requests:
        engine.submit(request)
    found: dict[int, TurnResult] = {}
    while engine.num_pending:
        found |= {result.episode: result for result in engine.poll()}
    return found


def turns(
    is_opponent: bool, *, first: int = 0, keys: int = 0, params: SamplingParams = PARAMS
) -> list[TurnRequest]:
    return [
        TurnRequest(first + e, prefix, keys + e, params, player=OPPONENT if is_opponent else "")
        for e, prefix in enumerate(PREFIXES[:4])
    ]


def log_softmax(network: PreTrainedModel, tokens: list[int], reply: int) -> Tensor:
    """(reply, V), of a fresh forward."""
    with torch.no_grad():
        logits = network(input_ids=torch.tensor([tokens])).logits[0, -reply - 1 : -1]
    return logits.log_softmax(-1)


def same(found: dict[int, TurnResult], other: dict[int, TurnResult]) -> bool:
    return [(e, r.tokens, r.logps, r.entropies) for e, r in found.items()] == [
        (e, r.tokens, r.logps, r.entropies) for e, r in other.items()
    ]


def test_nothing_of_the_reference_is_the_policy_and_all_of_it_the_reference_to_the_bit() -> None:
    policy, reference = two()
    own, others = (ask(MAKE(network, **OPTIONS), turns(False)) for network in (policy, reference))
    assert not same(own, others)
    for mix, expected in ((0.0, own), (1.0, others)):
        engine = OpponentEngine(MAKE, policy, mix=mix, reference=reference, **OPTIONS)
        assert same(ask(engine, turns(True)), expected)


def test_a_mixture_writes_with_the_log_probs_of_the_mixture_over_several_turns() -> None:
    policy, reference = two()
    cooler = SamplingParams(temperature=0.7, max_reply_tokens=6, max_context_tokens=80)
    engine = OpponentEngine(MAKE, policy, mix=0.25, reference=reference, **OPTIONS)
    rows = [list(prefix) for prefix in PREFIXES[:4]]
    found = ask(engine, turns(True, params=cooler))
    for turn in range(2):
        for e, result in found.items():
            rows[e] += result.tokens
            mixed = 0.75 * log_softmax(policy, rows[e], 6) + 0.25 * log_softmax(reference, rows[e], 6)
            right = (mixed / 0.7).log_softmax(-1)[torch.arange(6), torch.tensor(result.tokens)]
            torch.testing.assert_close(torch.tensor(result.logps), right, atol=1e-4, rtol=0)
        more = [TurnRequest(e, [20 + e, 30], 90 + e, cooler, player=OPPONENT) for e in range(4)]
        for e, row in enumerate(rows):
            row += [20 + e, 30]
        found = ask(engine, more) if not turn else found
    assert all(result.num_prefilled == 2 for result in found.values()), "only what is new is read"


def test_what_the_opponent_writes_follows_the_reference_and_not_the_policy() -> None:
    policy, reference = two()
    engine = OpponentEngine(MAKE, policy, mix=1.0, reference=reference, **OPTIONS)
    before, own = ask(engine, turns(True)), ask(engine, turns(False, first=10))
    with torch.no_grad():
        for weight in policy.parameters():
            weight.mul_(-1.5)
    engine.load(None, 1)
    assert [r.tokens for r in ask(engine, turns(True)).values()] == [r.tokens for r in before.values()]
    assert [r.tokens for r in ask(engine, turns(False, first=10)).values()] != [
        r.tokens for r in own.values()
    ]
    with torch.no_grad():
        reference.lm_head.weight.mul_(-1)
    engine.load(None, 2)
    found = ask(engine, turns(True))
    assert [r.tokens for r in found.values()] != [r.tokens for r in before.values()]
    assert {r.policy_version for r in found.values()} == {2}


def test_the_policy_plays_as_it_would_alone_and_equal_requests_give_equal_bits() -> None:
    policy, reference = two()
    alone = ask(MAKE(policy, **OPTIONS), turns(False, first=10))
    found = []
    for _ in range(2):
        engine = OpponentEngine(MAKE, policy, mix=0.5, reference=reference, **OPTIONS)
        found.append(ask(engine, [*turns(False, first=10), *turns(True)]))
        assert same({e: r for e, r in found[-1].items() if e >= 10}, alone)
        assert engine.num_steps > 0 and engine.capacity == 4
    assert same(*found)
    assert not engine.capabilities.fork
    for episode in found[0]:
        engine.close(episode)
    assert same(ask(engine, turns(True)), {e: r for e, r in found[0].items() if e < 4}), (
        "a closed episode begins anew"
    )


@pytest.mark.slow
def test_with_adapters_the_reference_is_the_base() -> None:
    pytest.importorskip("peft")
    policy = tiny_policy()
    policy.adapters = LoRA(r=2).attach(policy.network, "tiny")
    network = policy.network
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if "lora_B" in name:
                weight.normal_(generator=torch.Generator().manual_seed(1))
    trainable = {name for name, weight in network.named_parameters() if weight.requires_grad}
    found = ask(
        OpponentEngine(MAKE, network, mix=1.0, reference=network, **OPTIONS),
        [*turns(True), *turns(False, first=10)],
    )
    with disable_adapters(network):
        base = ask(MAKE(network, **OPTIONS), turns(False))
    assert [found[e].tokens for e in range(4)] == [result.tokens for result in base.values()]
    own = ask(MAKE(network, **OPTIONS), turns(False, first=10))
    assert [found[e].tokens for e in own] == [result.tokens for result in own.values()]
    assert [found[e].logps for e in own] != [found[e - 10].logps for e in own]
    assert {name for name, weight in network.named_parameters() if weight.requires_grad} == trainable


def test_a_teacher_with_more_ids_writes_none_that_the_policy_does_not_know() -> None:
    policy, reference = two()
    reference.resize_token_embeddings(policy.config.vocab_size + 8)
    with torch.no_grad():
        reference.lm_head.weight[-8:] = 10 * reference.lm_head.weight[:8]
    for mix in (0.5, 1.0):
        engine = OpponentEngine(MAKE, policy, mix=mix, reference=reference, **OPTIONS)
        found = ask(engine, turns(True))
        assert all(max(result.tokens) < policy.config.vocab_size for result in found.values())
        assert all(torch.isfinite(torch.tensor(result.logps)).all() for result in found.values())


def test_what_cannot_be() -> None:
    policy, reference = two()
    with pytest.raises(ValueError, match=r"mix=1\.5 must be from 0, the policy, to 1, the reference"):
        OpponentEngine(MAKE, policy, mix=1.5, reference=reference, **OPTIONS)
    engine = OpponentEngine(MAKE, policy, mix=0.5, **OPTIONS)
    assert len(ask(engine, turns(False))) == 4
    with pytest.raises(ValueError, match="an opponent plays with the reference, and this run has none"):
        engine.submit(turns(True)[0])
    with pytest.raises(ValueError, match="cannot be forked"):
        engine.fork(0, 1, 2)
    windowed = tiny_network()
    windowed.config.sliding_window = 8
    with pytest.raises(ValueError, match="state of the reference .its attention looks back"):
        OpponentEngine(MAKE, policy, mix=0.5, reference=windowed, **OPTIONS)
    with pytest.raises(ValueError, match="slots cannot hold the state of the model"):
        OpponentEngine(MAKE, windowed, mix=0.5, reference=reference, **OPTIONS)
    described = check_engine_options(MAKE)
    assert described is not None and PLAYS_REFERENCE in {offer.fact for offer in described.provides}
