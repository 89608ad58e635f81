"""Beginnings that episodes have in common are read once, and nothing else changes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_agentrl.engines.base import SamplingParams, TurnRequest
from lit_agentrl.engines.native import prefixes as module
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.models.logprobs import score_tokens
from tests.conftest import tiny_network
from tests.engines.test_native import Never, padded, play

HEADER = list(range(60, 90))
SIBLINGS = [[*HEADER, 6, 9, 11]] * 3 + [[*HEADER, 12, 13]] * 2 + [[40] * 12, [40] * 14, [7, 8]]
PARAMS = SamplingParams(max_reply_tokens=6, max_context_tokens=200)


def engine(network, slots=8):
    return NativeEngine(network, stop=Never(), end_of_turn_ids=(), num_slots=slots, max_context_tokens=200)


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=9), min_size=1, max_size=8), st.integers(0, 3)
)
def test_every_copy_is_of_equal_tokens_from_a_complete_source(prefixes, num_live):
    rows = {slot: np.array(tokens) for slot, tokens in enumerate(prefixes)}
    live = {slot: rows[slot] for slot in list(rows)[:num_live]}
    starting = {slot: tokens for slot, tokens in rows.items() if slot not in live}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MIN_SHARED", 1)
        copies = module.find_common_prefixes(starting, live)
    taken = dict.fromkeys(rows, 0)
    copied = set()
    for copy in copies:
        for target in copy.targets:
            assert target in starting and target not in copied and copy.length < len(rows[target])
            assert rows[copy.source][: copy.length].tolist() == rows[target][: copy.length].tolist()
            taken[target] = copy.length
            copied.add(target)
    done = set(live) | {slot for slot in starting if not taken[slot]}
    for copy in copies:  # in order
        assert copy.source in done
        done |= set(copy.targets)
    # no token is read twice: what is read is the number of different non-empty beginnings, last tokens aside
    beginnings = {tuple(tokens[:n]) for tokens in prefixes for n in range(1, len(tokens) + 1)}
    known = {tuple(t[:n]) for t in map(np.ndarray.tolist, live.values()) for n in range(1, len(t) + 1)}
    read = [
        tuple(starting[s][:n].tolist()) for s in starting for n in range(taken[s] + 1, len(starting[s]) + 1)
    ]
    assert set(read) | known == beginnings
    inner = [r for r in read if r not in {tuple(t.tolist()) for t in starting.values()}]
    assert len(inner) == len(set(inner)) and not known & set(inner)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("slots", [3, 8])
def test_shared_beginnings_change_neither_replies_nor_log_probs(family, slots, monkeypatch):
    network = tiny_network(family)
    episodes, _ = play(engine(network, slots), SIBLINGS, PARAMS)
    monkeypatch.setattr(module, "MIN_SHARED", 10**6)
    alone, _ = play(engine(network, slots), SIBLINGS, PARAMS)
    assert {e: t for e, (t, _, _) in episodes.items()} == {e: t for e, (t, _, _) in alone.items()}
    tokens_BT, is_action_BT, logp_BT = padded(episodes)
    with torch.no_grad():
        scores = score_tokens(network, tokens_BT=tokens_BT, is_action_BT=is_action_BT)
    torch.testing.assert_close(scores.logp_BT, logp_BT, atol=1e-4, rtol=0)
    torch.testing.assert_close(padded(alone)[2], logp_BT, atol=1e-5, rtol=0)


def test_counts_are_of_what_went_through_the_network(monkeypatch):
    network = tiny_network()
    eng = engine(network)
    seen = []
    forward = network.forward

    def counted(**given):
        seen.append(given["input_ids"].numel() - given["layout"].num_padding)
        return forward(**given)

    monkeypatch.setattr(network, "forward", counted)
    for e, prefix in enumerate(SIBLINGS):
        eng.submit(TurnRequest(e, prefix, key=e, params=PARAMS))
    results = {r.episode: r for r in eng.poll()}
    while len(results) < len(SIBLINGS):
        results |= {r.episode: r for r in eng.poll()}
    for e, prefix in enumerate(SIBLINGS):
        assert results[e].num_prefilled + results[e].num_shared == len(prefix)
    assert [results[e].num_shared for e in range(8)] == [0, 32, 32, 30, 31, 0, 12, 0]
    # each reply's last token is drawn, never read
    written = sum(len(r.tokens) - 1 for r in results.values())
    assert sum(seen) == sum(r.num_prefilled for r in results.values()) + written


def test_a_live_episode_lends_its_beginning_too():
    network = tiny_network()
    eng = engine(network)
    eng.submit(TurnRequest(0, SIBLINGS[0], 1, PARAMS))
    [first] = eng.poll()
    eng.submit(TurnRequest(1, SIBLINGS[0], 1, PARAMS))
    [second] = eng.poll()
    assert (first.num_shared, second.num_shared) == (0, len(SIBLINGS[0]) - 1)
    assert first.tokens == second.tokens
    np.testing.assert_allclose(first.logps, second.logps, atol=1e-5)


def test_slots_survive_moves_and_reuse():
    """Episodes of different lengths end at different times; others move into their slots, and read on."""
    network = tiny_network()
    lengths = itertools.cycle([2, 9, 5])
    eng = engine(network, 4)
    for e in range(9):
        limit = SamplingParams(max_reply_tokens=next(lengths), max_context_tokens=200)
        eng.submit(TurnRequest(e, SIBLINGS[e % 8], key=e, params=limit))
    replies = {}
    while len(replies) < 9:
        for result in eng.poll():
            replies[result.episode] = result
            if result.episode % 2:  # the others stay, idle, and keep their slots
                eng.close(result.episode)
        if not eng._rows.is_writing_S.any():
            for e in [e for e in list(eng._rows.slot_of) if e in replies]:
                eng.close(e)
    for e, result in replies.items():
        alone = engine(network, 1)
        params = SamplingParams(max_reply_tokens=len(result.tokens), max_context_tokens=200)
        alone.submit(TurnRequest(0, SIBLINGS[e % 8], key=e, params=params))
        [expected] = alone.poll()
        assert result.tokens == expected.tokens
        np.testing.assert_allclose(result.logps, expected.logps, atol=1e-5)
