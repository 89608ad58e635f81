"""Packed prefill: the replies are those of padded batches, for any size of pieces."""

from __future__ import annotations

import inspect
from argparse import Namespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import PreTrainedModel

from lit_agentrl.engines.base import SamplingParams, TurnRequest
from lit_agentrl.engines.native import prefill
from lit_agentrl.engines.native import prefixes as prefixes_module
from lit_agentrl.engines.native.attention import NAME
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.engines.native.inference import Inference
from lit_agentrl.engines.native.play_copy import PlayCopy
from lit_agentrl.engines.native.prefill import choose_packed, pack_pieces, plan_pieces
from lit_agentrl.engines.native.prefixes import find_common_prefixes
from lit_agentrl.engines.native.rows import Rows
from lit_agentrl.models import segment_attention
from scripts.bench.prefill import SIDES, make_waves, measure
from tests.conftest import tiny_network
from tests.engines.test_native import PREFIXES, Never, play
from tests.engines.test_play_copy import NETWORKS, small
from tests.engines.test_prefixes import SIBLINGS
from tests.engines.test_window import SETTINGS, CountTransfers, answer, answer_forks
from tests.models.kernel import KERNELS

SIZES = {"whole": (8192, 1 << 17), "pieces": (7, 30)}  # tokens and keys of a piece


@pytest.fixture
def sizes(request, monkeypatch):
    """Prefixes in one piece or in many, by the case's parameter."""
    monkeypatch.setattr(prefill, "PIECE_TOKENS", SIZES[request.param][0])
    monkeypatch.setattr(prefill, "PIECE_KEYS", SIZES[request.param][1])


def open_engine(
    network: PreTrainedModel, prefill: str = "packed", window: int = 0, **options: Any
) -> NativeEngine:
    given = {"num_slots": 4, "max_context_tokens": 200, "stop": Never(), "end_of_turn_ids": ()} | options
    return NativeEngine(network, window=window, prefill=prefill, **given)


def compare_play(network: PreTrainedModel, prefixes: Any, params: SamplingParams, **options: Any) -> None:
    expected, num_read = play(open_engine(network, "padded", **options), prefixes, params, turns=2)
    for window in (0, 4):
        copies = {"play_copy": True} if window and type(network).__name__ == "Qwen3ForCausalLM" else {}
        engine = open_engine(network, window=window, **copies, **options)
        found, num_read_here = play(engine, prefixes, params, turns=2)
        for episode, (tokens, is_action, logps) in expected.items():
            assert found[episode][:2] == (tokens, is_action)
            assert found[episode][2] == pytest.approx(logps, abs=1e-5)
        # the last token of a source is not read yet, and who copies from whom depends on who is there
        assert num_read_here == num_read or prefixes is SIBLINGS


# many pieces go through all that one goes through, which is tried once for each network and each way of copying
many_pieces = pytest.mark.parametrize("sizes", ["pieces"], indirect=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "sizes"), [("plain", "whole"), *((kind, "pieces") for kind in SETTINGS)], indirect=["sizes"]
)
def test_replies_equal_those_of_padded_batches(kind, sizes):
    compare_play(tiny_network(), PREFIXES, SETTINGS[kind])


@pytest.mark.slow
@many_pieces
@pytest.mark.parametrize("name", ["tied", "lora", "qwen3"])
def test_other_networks_and_copies_of_weights(name, sizes):
    compare_play(NETWORKS[name](), SIBLINGS, SETTINGS["plain"])


def test_gpt2():
    compare_play(tiny_network("gpt2"), PREFIXES, SETTINGS["plain"])


@pytest.mark.slow
@pytest.mark.parametrize(("slots", "sizes"), [(1, "pieces"), (3, "whole"), (3, "pieces")], indirect=["sizes"])
def test_common_prefixes_are_copied(slots, sizes):
    compare_play(tiny_network(), SIBLINGS, SETTINGS["plain"], num_slots=slots)


@many_pieces
def test_rows_of_one_wave_may_have_settings_of_their_own(sizes):
    requests = [TurnRequest(n, PREFIXES[n], 70 + n, params) for n, params in enumerate(SETTINGS.values())]
    expected, found = (
        answer(open_engine(tiny_network(), kind, num_slots=5), requests) for kind in ("padded", "packed")
    )
    for episode, result in expected.items():
        assert found[episode].tokens == result.tokens
        assert found[episode].logps == pytest.approx(result.logps, abs=1e-5)
        assert found[episode].num_prefilled == result.num_prefilled


@many_pieces
@pytest.mark.parametrize("window", [0, 4])
def test_a_fork_goes_on_from_any_place_of_its_parent(window, sizes):
    engines = [open_engine(tiny_network(), kind, window) for kind in ("padded", "packed")]
    results = [answer_forks(engine) for engine in engines]
    for episode in range(4):
        assert results[0][episode].tokens == results[1][episode].tokens
        assert results[0][episode].logps == pytest.approx(results[1][episode].logps, abs=1e-5)


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=9), min_size=1, max_size=8),
    st.integers(0, 3),
    st.integers(1, 6),
    st.integers(1, 20),
)
def test_pieces_read_every_token_once_and_copy_what_is_complete(prefixes, num_live, tokens, keys):
    """Executed symbolically: a slot holds, at each position, the beginning that it stands for."""
    end_S = np.array([len(each) for each in prefixes])
    cached_S = np.where(np.arange(len(prefixes)) < num_live, end_S, 0)
    known = [
        {at: tuple(each[: at + 1]) for at in range(cached)}
        for each, cached in zip(prefixes, cached_S.tolist(), strict=True)
    ]
    rows = {slot: np.array(each) for slot, each in enumerate(prefixes)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefixes_module, "MIN_SHARED", 1)
        patch.setattr(prefill, "PIECE_TOKENS", tokens)
        patch.setattr(prefill, "PIECE_KEYS", keys)
        live = {slot: rows[slot] for slot in list(rows)[:num_live]}
        starting = {slot: each for slot, each in rows.items() if slot not in live}
        copies = find_common_prefixes(starting, live)
        for copy in copies:
            cached_S[list(copy.targets)] = copy.length
        pieces = plan_pieces(np.flatnonzero(cached_S < end_S), copies, cached_S, end_S)
    for spans, copied in pieces:
        assert sum(span.end - span.start for span in spans) <= tokens
        assert len(spans) == 1 or sum(span.end for span in spans) <= keys
        for slot, start, end in spans:
            for at in range(start, end):
                assert at not in known[slot]
                known[slot][at] = tuple(prefixes[slot][: at + 1])
        before = [dict(each) for each in known]
        for (source, start, end), target in copied:  # in any order
            known[target] |= {at: before[source][at] for at in range(start, end)}
        for slot, _, end in spans:  # what its queries see
            assert all(known[slot][at] == tuple(prefixes[slot][: at + 1]) for at in range(end))
    assert all(
        each == {at: tuple(tokens[: at + 1]) for at in range(len(tokens))}
        for each, tokens in zip(known, prefixes, strict=True)
    )


@pytest.mark.parametrize("version", KERNELS)
@pytest.mark.parametrize("copies", [False, True])
def test_on_a_gpu_one_kernel_reads_a_piece_and_nothing_waits(version, copies, monkeypatch):
    """Fake tensors on ``meta`` stand for a GPU: whatever asks for a value raises."""
    calls: list[tuple[int, int]] = []

    def attend(query, key, value, *_, **options):
        assert query.dtype == key.dtype == value.dtype
        calls.append((len(query), len(key)))
        return torch.empty_like(query)

    attend.__signature__ = inspect.signature(KERNELS[version])
    monkeypatch.setattr(segment_attention, "varlen_attn", attend)
    rows = Rows(4, 32)
    for slot, length in enumerate((5, 20, 9)):
        rows.open(slot)
        rows.start(slot, TurnRequest(slot, list(range(length)), 0, SETTINGS["plain"]))
    end_S = rows.total_S - 1
    copied = find_common_prefixes(
        {slot: rows.tokens_SL[slot, : end_S[slot]] for slot in range(3)}, {}, unread=0
    )
    for copy in copied:
        rows.cached_S[list(copy.targets)] = copy.length
    slots_A = np.flatnonzero(rows.is_writing_S & (rows.cached_S < end_S))
    with FakeTensorMode():
        with torch.device("meta"):
            network = small(*NETWORKS["qwen2"].args)
        device, inference = torch.device("meta"), Inference(network, NAME)
        read = PlayCopy(network, torch.bfloat16).read if copies else inference.read
        cache = inference.make_cache(4, 32)
        pieces = list(pack_pieces(rows, slots_A, copied, device, end_S=end_S))
        with inference(), CountTransfers() as transfers:
            for packed in pieces:
                logits = read(cache, packed)
    assert logits.shape == (1, 257) and not +transfers.found
    # slots read 4, 19 - 8 and 8 tokens, since the second copies the third
    assert calls == [(4 + 11 + 8, 4 + 19 + 8)] * 2


@pytest.mark.slow
def test_the_launches_do_not_grow_with_the_number_of_lengths():
    """Padded batches launch work for each group of similar lengths."""
    few, many = (
        make_waves(Namespace(prompts=number, members=2, turns=2, opening=20, seed=0))[1] for number in (1, 16)
    )
    launched = [[measure(wave, side)["operators a layer"] for wave in (few, many)] for side in SIDES]
    padded, packed, copied = launched
    assert padded[1] > padded[0] > packed[0] == packed[1] == 40 and copied == [18, 18]


@pytest.mark.parametrize(("value", "message"), [("often", "prefill=often must be auto, packed or padded")])
def test_other_values_are_refused(value, message):
    with pytest.raises(ValueError, match=message):
        open_engine(tiny_network(), value)


def test_a_model_without_slots_is_not_packed(monkeypatch):
    monkeypatch.setattr("lit_agentrl.engines.native.engine.find_obstacle", lambda *_: "it is a test")
    with pytest.raises(ValueError, match=r"prefill=packed needs slots.*it is a test.*engine.prefill=auto"):
        open_engine(tiny_network())


def test_auto_packs_on_a_gpu_where_the_kernel_runs(monkeypatch):
    network = tiny_network()
    assert not choose_packed("auto", network) and choose_packed("packed", network)
    with torch.device("meta"):
        network = small(*NETWORKS["qwen2"].args)
    monkeypatch.setattr(prefill, "find_kernel_obstacle", lambda *_: "")
    assert choose_packed("auto", network) and not choose_packed("padded", network)
    monkeypatch.setattr(prefill, "find_kernel_obstacle", lambda *_: "it is a test")
    assert not choose_packed("auto", network)
    with pytest.raises(ValueError, match="prefill=packed: it is a test; set engine.prefill=auto"):
        choose_packed("packed", network)


@pytest.mark.gpu
def test_the_kernel_reads_what_batches_read():
    network = tiny_network().to("cuda", torch.bfloat16)
    params = SamplingParams(temperature=0, max_reply_tokens=1, max_context_tokens=200)
    requests = [TurnRequest(n, tokens, n, params) for n, tokens in enumerate(SIBLINGS)]
    sides = [answer(open_engine(network, kind, num_slots=8), requests) for kind in ("padded", "packed")]
    for episode, result in sides[0].items():
        assert sides[1][episode].logps == pytest.approx(result.logps, abs=0.05)
