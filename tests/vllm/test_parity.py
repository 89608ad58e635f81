"""With equal weights and keys vLLM writes the native engine's tokens, and records a forward's log-probs of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lit_agentrl.engines.base import SamplingParams, TurnRequest
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.episode import Episode, FinishReason
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from tests.rollout.test_sync import moved
from tests.vllm.conftest import opened, sokoban

pytestmark = pytest.mark.vllm

EPISODES = 64
ANY = SamplingParams(max_reply_tokens=64, max_context_tokens=900)


def played(network: Any, engine: Any, params: SamplingParams, number: int) -> list[Episode]:
    specs = tuple(EpisodeSpec(0, i // 4, i % 4, 0, 100 + i // 4) for i in range(number))
    scheduler = Scheduler(sokoban(), engine)
    try:
        return scheduler.play(Wave("train", 0, params, specs))
    finally:
        scheduler.close()


@pytest.fixture
def both(nano: Any) -> Any:
    """``both(params, number)``: the same episodes by the native engine and by vLLM, and the network."""
    network = moved(nano)
    engine, sync = opened(network)

    def play(params: SamplingParams, number: int) -> tuple[list[Episode], list[Episode], Any]:
        sync.load(None, 1)
        ours = played(network, sokoban(NativeEngine).open_engine(network), params, number)
        return ours, played(network, engine, params, number), network

    return play


def same(a: Episode, b: Episode) -> bool:
    """Token for token, and ended alike."""
    return len(a.turns) == len(b.turns) and all(
        x.prefix_tokens.tolist() == y.prefix_tokens.tolist()
        and x.reply_tokens.tolist() == y.reply_tokens.tolist()
        and x.finish == y.finish
        for x, y in zip(a.turns, b.turns, strict=True)
    )


@torch.no_grad()
def gaps(network: Any, episodes: list[Episode], temperature: float) -> np.ndarray[Any, Any]:
    """Between the recorded log-probs and those of one forward over the whole episode."""
    found = []
    for episode in episodes:
        tokens = np.concatenate([part for t in episode.turns for part in (t.prefix_tokens, t.reply_tokens)])
        is_action = np.concatenate(
            [part for t in episode.turns for part in (t.prefix_tokens * 0, t.reply_tokens * 0 + 1)]
        )
        mask = torch.from_numpy(is_action).bool()[None]
        logp_BT = score_tokens(
            network, tokens_BT=torch.from_numpy(tokens)[None], is_action_BT=mask, temperature=temperature
        ).logp_BT
        recorded = np.concatenate([t.reply_logps for t in episode.turns])
        found.append(np.abs(recorded - logp_BT[mask].double().numpy()))
    return np.concatenate(found)


def test_episodes_are_those_of_the_native_engine(both: Any) -> None:
    ours, theirs, network = both(ANY, EPISODES)
    alike = [same(a, b) for a, b in zip(ours, theirs, strict=True)]
    found = gaps(network, theirs, 1.0)
    tokens = sum(len(t.reply_tokens) for e in theirs for t in e.turns)
    print(
        f"\n{sum(alike)} of {EPISODES} alike, {tokens} tokens, mean {found.mean():.2g}, max {found.max():.2g}"
    )
    assert sum(alike) >= EPISODES - 1 and not any(e.failed for e in theirs)
    assert found.mean() <= 1e-6 and found.max() <= 1e-4
    for a, b in zip(ours, theirs, strict=True):
        if same(a, b):
            for x, y in zip(a.turns, b.turns, strict=True):
                np.testing.assert_allclose(x.reply_entropies, y.reply_entropies, atol=1e-4)
    saved = sum(e.num_shared for e in theirs)
    assert saved > 0  # members of a group begin alike


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"), [(0.7, 1.0, 0), (1.0, 0.9, 0), (0.6, 0.95, 20), (0.0, 1.0, 0)]
)
def test_other_ways_of_sampling(both: Any, temperature: float, top_p: float, top_k: int) -> None:
    params = SamplingParams(temperature, top_p, top_k, max_reply_tokens=64, max_context_tokens=900)
    ours, theirs, network = both(params, 8)
    assert all(map(same, ours, theirs))
    assert gaps(network, theirs, temperature or 1.0).max() <= 1e-4


def test_replies_end_where_the_native_engine_ends_them(nano: Any) -> None:
    engine, sync = opened(nano)
    sync.load(None, 0)
    native = sokoban(NativeEngine).open_engine(nano)
    text = list(range(10, 50))
    for params, finish in (
        (SamplingParams(max_reply_tokens=3, max_context_tokens=900), FinishReason.LENGTH),
        (SamplingParams(max_reply_tokens=30, max_context_tokens=42), FinishReason.CONTEXT),
        (
            SamplingParams(max_reply_tokens=30, max_context_tokens=40),
            FinishReason.CONTEXT,
        ),  # not a token of room
    ):
        results = []
        for each in (native, engine):
            each.submit(TurnRequest(1, text, 7, params))
            assert each.num_pending == 1
            (result,) = each.poll()
            each.close(1)
            results.append(result)
        assert results[0].tokens == results[1].tokens and results[0].finish == results[1].finish == finish


def test_steps_forks_and_closed_episodes(nano: Any) -> None:
    engine, sync = opened(nano)
    sync.load(None, 3)
    text, long = list(range(10, 80)), SamplingParams(max_reply_tokens=40, max_context_tokens=900)
    engine.submit(TurnRequest(1, text, 7, long))
    before = engine.num_steps
    assert engine.poll(steps=2) == [] and engine.num_steps == before + 2 and engine.num_pending == 1
    engine.close(1)
    assert engine.num_pending == 0 and engine.poll() == []
    engine.submit(TurnRequest(1, text, 7, long))
    (first,) = engine.poll()
    assert first.policy_version == 3 and first.num_prefilled + first.num_shared >= len(text) - 64
    engine.fork(1, 2, len(text))
    with pytest.raises(ValueError, match="fork of 1 into 2"):
        engine.fork(1, 2, 5)
    with pytest.raises(ValueError, match="fork at 999"):
        engine.fork(1, 3, 999)
    native = sokoban(NativeEngine).open_engine(nano)
    native.submit(TurnRequest(1, text, 7, long))
    assert native.poll()[0].tokens == first.tokens
    native.fork(1, 2, len(text))
    for each in (native, engine):
        each.submit(TurnRequest(2, [9, 8], 11, long))
    (ours,), (theirs,) = native.poll(), engine.poll()
    assert ours.tokens == theirs.tokens and theirs.num_prefilled < len(text)  # read once, by the parent


def test_a_probe_between_replies_loses_none(nano: Any) -> None:
    engine, sync = opened(nano)
    sync.load(None, 0)
    text = list(range(10, 50))
    engine.submit(TurnRequest(1, text, 7, ANY))
    engine.poll(steps=1)
    scores = engine.score(text)
    (result,) = engine.poll()
    assert result.tokens and len(scores) == len(text) - 1 and max(scores) < 0
