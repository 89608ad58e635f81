"""The native engine against fresh forwards: what it records is what the trainer recomputes."""

from __future__ import annotations

import pytest
import torch

from lit_agentrl.engines.base import SamplingParams, TurnRequest
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.episode import FinishReason
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.models.policy import get_named_weights
from tests.conftest import tiny_network


class Never:
    def update(self, state: str, token: int) -> tuple[str, bool]:
        return "", False


class AfterToken:
    """Stops a reply at one token id."""

    def __init__(self, token: int) -> None:
        self.token = token

    def update(self, state: str, token: int) -> tuple[str, bool]:
        return "", token == self.token


def engine(network, slots=4, stop=None, context=200, end=()):
    return NativeEngine(
        network, stop=stop or Never(), end_of_turn_ids=end, num_slots=slots, max_context_tokens=context
    )


def play(eng, prefixes, params, turns=3):
    """Multi-turn episodes on a scripted other side; returns (tokens, is_action, logps) per episode."""
    episodes = {e: ([], [], []) for e in range(len(prefixes))}
    for e, prefix in enumerate(prefixes):
        eng.submit(TurnRequest(e, prefix, key=1000 + e, params=params))
        episodes[e][0].extend(prefix)
        episodes[e][1].extend([False] * len(prefix))
        episodes[e][2].extend([0.0] * len(prefix))
    left = {e: turns for e in episodes}
    prefilled = 0
    while left:
        for result in eng.poll():
            tokens, is_action, logps = episodes[result.episode]
            tokens.extend(result.tokens)
            is_action.extend([True] * len(result.tokens))
            logps.extend(result.logps)
            prefilled += result.num_prefilled
            left[result.episode] -= 1
            if not left[result.episode]:
                del left[result.episode]
                eng.close(result.episode)
                continue
            # ragged: the other side's message depends on the episode
            more = [7 + (result.episode * 3 + i) % 50 for i in range(1 + result.episode % 4 * 3)]
            tokens.extend(more)
            is_action.extend([False] * len(more))
            logps.extend([0.0] * len(more))
            eng.submit(
                TurnRequest(result.episode, more, 2000 + 10 * result.episode + left[result.episode], params)
            )
    return episodes, prefilled


def padded(episodes):
    width = max(len(tokens) for tokens, _, _ in episodes.values())
    rows = len(episodes)
    tokens_BT = torch.zeros(rows, width, dtype=torch.long)
    is_action_BT = torch.zeros(rows, width, dtype=torch.bool)
    logp_BT = torch.zeros(rows, width)
    for e, (tokens, is_action, logps) in episodes.items():
        tokens_BT[e, : len(tokens)] = torch.tensor(tokens)
        is_action_BT[e, : len(tokens)] = torch.tensor(is_action)
        logp_BT[e, : len(tokens)] = torch.tensor(logps)
    return tokens_BT, is_action_BT, logp_BT


PREFIXES = [
    [6, 9, 11, 30],
    [12],
    [40, 41, 42, 43, 44, 45, 46, 47, 48],
    [10, 20],
    [33, 34, 35],
    [8, 8, 8, 8, 8],
]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("slots", [1, 3, 8])
def test_recorded_log_probs_equal_a_fresh_forward_of_the_packed_batch(family, temperature, slots):
    network = tiny_network(family)
    params = SamplingParams(temperature=temperature, max_reply_tokens=7, max_context_tokens=200)
    episodes, _ = play(engine(network, slots), PREFIXES, params)
    tokens_BT, is_action_BT, logp_BT = padded(episodes)
    with torch.no_grad():
        scores = score_tokens(
            network, tokens_BT=tokens_BT, is_action_BT=is_action_BT, temperature=temperature
        )
    assert int(is_action_BT.sum()) == len(PREFIXES) * 3 * 7
    torch.testing.assert_close(scores.logp_BT, logp_BT, atol=1e-4, rtol=0)


def test_eager_attention_agrees_too():
    network = tiny_network()
    network.set_attn_implementation("eager")
    params = SamplingParams(max_reply_tokens=5, max_context_tokens=200)
    tokens_BT, is_action_BT, logp_BT = padded(play(engine(network), PREFIXES, params)[0])
    with torch.no_grad():
        scores = score_tokens(network, tokens_BT=tokens_BT, is_action_BT=is_action_BT)
    torch.testing.assert_close(scores.logp_BT, logp_BT, atol=1e-4, rtol=0)


def test_each_token_is_prefilled_once():
    params = SamplingParams(max_reply_tokens=5, max_context_tokens=200)
    episodes, prefilled = play(engine(tiny_network()), PREFIXES, params)
    given = sum(len(tokens) - sum(is_action) for tokens, is_action, _ in episodes.values())
    assert prefilled == given


def test_draws_depend_on_the_request_alone_not_on_slots_or_company():
    params = SamplingParams(max_reply_tokens=6, max_context_tokens=200)
    network = tiny_network()
    wide = play(engine(network, 8), PREFIXES, params)[0]
    narrow = play(engine(network, 2), PREFIXES, params)[0]
    assert {e: t for e, (t, _, _) in wide.items()} == {e: t for e, (t, _, _) in narrow.items()}


def test_equal_requests_give_equal_bits():
    params = SamplingParams(max_reply_tokens=6, max_context_tokens=200)
    first, second = (play(engine(tiny_network(), 3), PREFIXES, params)[0] for _ in range(2))
    assert first == second


def test_stop_rule_end_ids_and_limits():
    network = tiny_network()
    greedy = SamplingParams(temperature=0, max_reply_tokens=4, max_context_tokens=200)
    eng = engine(network)
    eng.submit(TurnRequest(0, [6, 9], 1, greedy))
    [plain] = eng.poll()
    assert plain.finish is FinishReason.LENGTH and len(plain.tokens) == 4
    for stopper in ({"stop": AfterToken(plain.tokens[0])}, {"end": (plain.tokens[0],)}):
        eng = engine(network, **stopper)
        eng.submit(TurnRequest(0, [6, 9], 1, greedy))
        [result] = eng.poll()
        assert result.finish is FinishReason.STOP and result.tokens == plain.tokens[:1]


def test_context_limit_truncates_and_then_refuses():
    params = SamplingParams(max_reply_tokens=9, max_context_tokens=10)
    eng = engine(tiny_network(), context=10)
    eng.submit(TurnRequest(0, [6, 7, 8, 9], 1, params))
    [result] = eng.poll()
    assert result.finish is FinishReason.CONTEXT and len(result.tokens) == 6
    eng.submit(TurnRequest(0, [6], 2, params))
    [refused] = eng.poll()
    assert refused.finish is FinishReason.CONTEXT and refused.tokens == []
    eng.submit(TurnRequest(1, list(range(6, 20)), 2, params))
    [refused] = eng.poll()
    assert refused.finish is FinishReason.CONTEXT and refused.num_prefilled == 0


@pytest.mark.parametrize("slower", [False, True])
def test_a_fork_goes_on_from_any_place_of_its_parent(slower, monkeypatch):
    """As an episode would that begins with the same tokens; the parent goes on as if there were no fork."""
    if slower:
        monkeypatch.setattr("lit_agentrl.engines.native.engine.find_obstacle", lambda *_: "is a test")
    network, params = tiny_network(), SamplingParams(max_reply_tokens=5, max_context_tokens=200)

    def ask(eng, *requests):
        for episode, prefix, key in requests:
            eng.submit(TurnRequest(episode, prefix, key, params))
        results = {}
        while len(results) < len(requests):
            results |= {r.episode: r for r in eng.poll()}
        return results

    eng, alone = engine(network, 4), engine(network, 4)
    first = ask(eng, (0, [6, 9, 11], 5))[0].tokens
    second = ask(eng, (0, [20, 21], 6))[0].tokens
    history = [6, 9, 11, *first, 20, 21, *second]
    places = {1: len(history), 2: 3 + 5, 3: 3}  # the end, after the first reply, before it
    for child, at in places.items():
        eng.fork(0, child, at=at)
    found = ask(eng, *((child, [30, 31], 7) for child in (0, *places)))
    for child, at in {0: len(history), **places}.items():
        expected = ask(alone, (child, [*history[:at], 30, 31], 7))[child]
        assert found[child].tokens == expected.tokens
        assert found[child].logps == pytest.approx(expected.logps, abs=1e-5)
        assert slower or found[child].num_prefilled == 2  # what it took over is not read again
    for parent, child, at in ((0, 4, 99), (9, 4, 1), (0, 1, 1)):
        with pytest.raises(ValueError, match="fork"):
            eng.fork(parent, child, at=at)
    if not slower:
        with pytest.raises(ValueError, match="needs a free slot"):
            eng.fork(0, 4, at=3)


@pytest.mark.parametrize("slower", [False, True])
def test_loaded_weights_are_written_with_and_episodes_are_forgotten(slower, monkeypatch):
    if slower:
        monkeypatch.setattr("lit_agentrl.engines.native.engine.find_obstacle", lambda *_: "is a test")
    params = SamplingParams(max_reply_tokens=5, max_context_tokens=200)
    network, other = tiny_network(), tiny_network(seed=1)
    eng = engine(network)
    replies = []
    for weights in (None, get_named_weights(other), None):
        eng.load(weights, len(replies))
        eng.submit(TurnRequest(0, [6, 9], 1, params))
        [reply] = eng.poll()
        assert reply.policy_version == len(replies) and reply.num_prefilled == 2
        replies.append(reply.tokens)
    assert replies[0] != replies[1] == replies[2]  # None: what the network holds
    assert torch.equal(network.lm_head.weight, other.lm_head.weight)


def test_requests_may_mix_temperatures():
    network = tiny_network()
    greedy = SamplingParams(temperature=0, max_reply_tokens=4, max_context_tokens=200)
    warm = SamplingParams(temperature=1, max_reply_tokens=4, max_context_tokens=200)
    alone = {}
    for e, params in enumerate([greedy, warm]):
        eng = engine(network)
        eng.submit(TurnRequest(e, [6, 9], 3, params))
        alone[e] = eng.poll()[0].tokens
    eng = engine(network)
    for e, params in enumerate([greedy, warm]):
        eng.submit(TurnRequest(e, [6, 9], 3, params))
    assert {r.episode: r.tokens for r in eng.poll()} == alone


def test_a_context_beyond_the_positions_is_refused():
    network = tiny_network()
    network.config.max_position_embeddings = 100
    with pytest.raises(ValueError, match="rollout.max_context_tokens=200 is more than the 100 positions"):
        engine(network)
