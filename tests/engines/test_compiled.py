"""The compiled decode step against the plain one: same tokens, same log-probs, same bits again."""

from __future__ import annotations

import shutil

import pytest
import torch

from lit_agentrl.engines.base import SamplingParams, TurnRequest
from lit_agentrl.engines.compiled import row_bucket
from lit_agentrl.engines.native import NativeEngine
from tests.conftest import tiny_network
from tests.engines.test_native import PREFIXES, Never, padded, play
from tests.engines.test_reencoding import network as unusual_network

PARAMS = SamplingParams(max_reply_tokens=6, max_context_tokens=200)
TOLERANCE = 1e-5  # nats
has_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")


def engine(network, compile=True, slots=4, **others):
    return NativeEngine(
        network, stop=Never(), end_of_turn_ids=(), num_slots=slots, max_context_tokens=200, compile=compile,
        **others,
    )  # fmt: skip


def count_graphs(eng: NativeEngine) -> int:
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    return len(_debug_get_cache_entry_list(type(eng._decode)._decode.__code__))


@pytest.mark.parametrize(
    "backend", ["eager", pytest.param("inductor", marks=[has_compiler, pytest.mark.slow])]
)
def test_tokens_log_probs_and_bits(backend, monkeypatch):
    """A rerun and other weights in place are served by the graphs of the first run; `eager` only traces them."""
    compile = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda f, *, mode, **settings: compile(f, backend=backend, **settings)
    )
    torch.compiler.reset()
    network = tiny_network()
    eng = engine(network)
    plain = engine(network, compile=False)
    compiled, prefilled = play(eng, PREFIXES, PARAMS)
    expected, prefilled_plainly = play(plain, PREFIXES, PARAMS)
    assert {e: t for e, (t, _, _) in compiled.items()} == {e: t for e, (t, _, _) in expected.items()}
    torch.testing.assert_close(padded(compiled)[2], padded(expected)[2], atol=TOLERANCE, rtol=0)
    assert prefilled == prefilled_plainly and eng.num_forwarded == plain.num_forwarded
    graphs = count_graphs(eng)
    eng.sync_weights(1)
    assert play(eng, PREFIXES, PARAMS)[0] == compiled
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(1.1)
    eng.sync_weights(2)
    moved, expected = play(eng, PREFIXES, PARAMS)[0], play(plain, PREFIXES, PARAMS)[0]
    torch.testing.assert_close(padded(moved)[2], padded(expected)[2], atol=TOLERANCE, rtol=0)
    assert moved != compiled and count_graphs(eng) == graphs == 1


@has_compiler
@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_another_process_start_gives_the_same_bits_over_several_graphs(family):
    """Long enough for two lengths and two numbers of rows; a fresh compiler must come to the same code."""
    runs = []
    for _ in range(2):
        torch.compiler.reset()
        eng = engine(tiny_network(family), slots=64)
        prefixes = [[6 + (i * 7 + j) % 80 for j in range(90 + i)] for i in range(20)]
        runs.append(play(eng, prefixes, SamplingParams(max_reply_tokens=20, max_context_tokens=200))[0])
        assert count_graphs(eng) > 1
    assert runs[0] == runs[1]
    plain = play(engine(tiny_network(family), compile=False, slots=64), prefixes,
                 SamplingParams(max_reply_tokens=20, max_context_tokens=200))[0]  # fmt: skip
    assert {e: t for e, (t, _, _) in runs[0].items()} == {e: t for e, (t, _, _) in plain.items()}
    torch.testing.assert_close(padded(runs[0])[2], padded(plain)[2], atol=TOLERANCE, rtol=0)


@has_compiler
@pytest.mark.slow
def test_bfloat16_autocast():
    network = tiny_network()

    def context():
        return torch.autocast("cpu", dtype=torch.bfloat16)

    logps = []
    for compile in (True, False):
        eng = engine(network, compile, forward_context=context)
        eng.submit(TurnRequest(0, PREFIXES[0], 1, PARAMS))
        logps.append(torch.tensor(eng.poll()[0].logps))
    torch.testing.assert_close(logps[0], logps[1], atol=0.05, rtol=0)


def test_a_model_without_slots_is_refused():
    with pytest.raises(ValueError, match="engine.compile=true cannot serve this model.*engine.compile=false"):
        engine(unusual_network("sliding"))


def test_a_missing_compiler_is_said_with_the_remedy(monkeypatch):
    from torch._inductor.exc import InvalidCxxCompiler

    def fails(*_):
        raise InvalidCxxCompiler

    torch.compiler.reset()
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", fails)
    eng = engine(tiny_network())
    eng.submit(TurnRequest(0, PREFIXES[0], 1, PARAMS))
    with pytest.raises(ValueError, match="engine.compile=true.*compiler.*engine.compile=false"):
        eng.poll()
    torch.compiler.reset()


def test_row_buckets():
    assert [row_bucket(n, 128) for n in (1, 32, 33, 128)] == [32, 32, 128, 128]
    assert [row_bucket(n, 256) for n in (1, 17, 65)] == [16, 64, 256]
    assert row_bucket(1, 4) == 4 and row_bucket(1, 1) == 1
