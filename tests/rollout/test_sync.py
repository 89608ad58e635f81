"""Weights that an engine is given: sent once a version, and believed only after a probe that can fail."""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch

from lit_agentrl.engines.base import SamplingParams, TurnResult
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.models.lora import LoRA
from lit_agentrl.models.policy import copy_weights, get_named_weights, get_plain_parameters
from lit_agentrl.rollout.sync import SyncError, WeightSync
from tests.conftest import tiny_network
from tests.engines.given import Given, Keeps, Raw, Stale
from tests.rollout.test_process import rules

WARM = SamplingParams(temperature=0.7, max_reply_tokens=8, max_context_tokens=200)
Kind = type[Given]


def moved(network: Any, seed: int = 1) -> Any:
    """The network, its weights 2 % of their spread away, as a few updates leave them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in network.parameters():
            weight += 0.02 * weight.std() * torch.randn(weight.shape, generator=generator)
    return network


@pytest.fixture
def pair() -> Any:
    """``pair(kind, **options)`` -> engine and what loads the weights of a network of its own."""

    def make(kind: Kind, **options: Any) -> tuple[Given, WeightSync, Any]:
        network = tiny_network()
        held = rules(partial(kind, num_slots=4, **options))
        engine: Any = held.open_engine(network)
        return engine, WeightSync(engine, network, held, nullcontext), network

    return make


def test_weights_travel_once_a_version_and_are_probed(pair: Any) -> None:
    engine, sync, network = pair(Given)
    for version in range(5):
        moved(network, version)
        for _ in range(2):
            sync.load(None, version)
            row = sync.probe(WARM)
        assert row["engine/sync_gap"] < 1e-5 and row["engine/sync_seconds"] > 0
    assert engine.loads == [(v, is_sent) for v in range(5) for is_sent in (True, False)]
    assert all(
        torch.equal(w, get_named_weights(network)[name]) for name, w in get_named_weights(engine.own).items()
    )
    assert engine.num_pending == 0


@pytest.mark.parametrize(
    ("kind", "what"), [(Keeps, "of a fixed text"), (Stale, "of a reply sampled"), (Raw, "at temperature 0.7")]
)
def test_an_engine_that_does_not_compute_with_them_ends_the_run(pair: Any, kind: Kind, what: str) -> None:
    engine, sync, network = pair(kind)
    copy_weights(get_named_weights(network), engine.own)
    said = rf"^engine={kind.__name__}, version 1 .*{what}.*by up to 0\.\d+ nats"
    with pytest.raises(SyncError, match=said):
        for version in (0, 1):
            sync.load(None, version)
            sync.probe(WARM if version else SamplingParams(max_reply_tokens=8, max_context_tokens=200))
            for seed in range(5):
                moved(network, seed)


def test_a_gap_that_is_allowed_is_logged(pair: Any) -> None:
    engine, sync, network = pair(Keeps, max_sync_gap=math.inf)
    copy_weights(get_named_weights(network), engine.own)
    moved(network)
    sync.load(None, 1)
    assert 1e-3 < sync.probe(WARM)["engine/sync_gap"] < math.inf


@pytest.mark.parametrize("answer", [TurnResult(-1, error="no room"), TurnResult(-1, [3, 4], [-1.0]), None])
def test_an_engine_that_answers_no_probe_ends_the_run(pair: Any, answer: TurnResult | None) -> None:
    """With an error, with fewer log-probs than tokens, or not at all."""
    engine, sync, _ = pair(Given)
    sync.load(None, 0)
    engine.submit, engine.poll = lambda request: None, lambda: [answer] if answer else []
    type(engine).num_pending = property(lambda self: 1 if answer else 0)
    try:
        with pytest.raises(SyncError, match="engine=Given, version 0"):
            sync.probe(WARM)
    finally:
        del type(engine).num_pending


def test_adapters_are_sent_as_the_weights_that_they_make() -> None:
    network = tiny_network()
    LoRA(r=2).attach(network, "tiny")
    with torch.no_grad():
        for name, weight in network.named_parameters():
            weight += 0.1 * ("lora_B" in name)
    held = rules(partial(Given, num_slots=4))
    plain = tiny_network()
    engine: Any = held.open_engine(plain)
    sync = WeightSync(engine, network, held, nullcontext)
    sync.load(None, 0)
    assert sync.probe(WARM)["engine/sync_gap"] < 1e-4
    assert get_plain_parameters(network).keys() == dict(plain.named_parameters()).keys()


def test_a_shared_network_is_neither_sent_nor_probed(pair: Any) -> None:
    network = tiny_network()
    held = rules(partial(NativeEngine, num_slots=4))
    engine = held.open_engine(network)
    sync = WeightSync(engine, network, held, nullcontext)
    sync.load(None, 3)
    assert sync.probe(WARM) == {} and engine.num_steps == 0
