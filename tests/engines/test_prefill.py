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
from lit_agentrl.engines.native.attention import NAME, MaskedLayout
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.engines.native.inference import Inference
from lit_agentrl.engines.native.play_copy import PlayCopy
from lit_agentrl.engines.native.prefill import choose_packed, pack_batches, pack_pieces, plan_pieces
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


def count_padded(layout: MaskedLayout) -> int:
    return layout.num_last + sum(chunk.index_PM.numel() for chunk in layout.chunks)


@many_pieces
@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize("prefixes", [PREFIXES, SIBLINGS], ids=["prefixes", "siblings"])
def test_padded_batches_on_a_gpu_are_limited(prefixes, window, sizes, monkeypatch):
    """A CPU stands for a GPU; its batches have at most 7 tokens, padding included."""
    found_sizes: list[int] = []
    read = Inference.read

    def read_and_measure(self, cache, packed):
        found_sizes.append(count_padded(packed.layout) if isinstance(packed.layout, MaskedLayout) else 0)
        return read(self, cache, packed)

    whole, cut = (open_engine(tiny_network(), "padded", window) for _ in range(2))  # tries some tokens first
    monkeypatch.setattr(Inference, "read", read_and_measure)
    expected, num_read = play(whole, prefixes, SETTINGS["plain"], turns=2)
    assert max(found_sizes) > 7  # one batch on a CPU
    found_sizes.clear()
    monkeypatch.setattr(prefill, "is_limited", lambda _: True)
    found, num_read_here = play(cut, prefixes, SETTINGS["plain"], turns=2)
    assert max(found_sizes) <= 7
    # see `compare_play`
    assert num_read_here == num_read or prefixes is SIBLINGS
    for episode, (tokens, is_action, logps) in expected.items():
        assert found[episode][:2] == (tokens, is_action)
        assert found[episode][2] == pytest.approx(logps, abs=1e-5)


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=9), min_size=1, max_size=8),
    st.integers(0, 3),
    st.integers(1, 12),
)
def test_limited_batches_read_every_token_after_those_that_it_sees(prefixes, num_live, tokens):
    """A position of the store holds the number of the beginning that it stands for."""
    beginnings = {tuple(each[: at + 1]) for each in prefixes for at in range(len(each))}
    numbers = {beginning: number for number, beginning in enumerate(sorted(beginnings), start=1)}
    rows = Rows(len(prefixes), 10)
    store, wanted = (torch.zeros(len(prefixes) + 1, 1, 10, 1, dtype=torch.int64) for _ in range(2))
    for slot, each in enumerate(prefixes):
        rows.open(slot)
        rows.start(slot, TurnRequest(slot, each, 0, SETTINGS["plain"]))
        wanted[slot, 0, : len(each), 0] = torch.tensor(
            [numbers[tuple(each[: n + 1])] for n in range(len(each))]
        )
    live = {slot: np.array(each) for slot, each in enumerate(prefixes[:num_live])}
    starting = {slot: np.array(each) for slot, each in enumerate(prefixes) if slot >= num_live}
    rows.cached_S[list(live)] = rows.total_S[list(live)]
    store[: len(live)] = wanted[: len(live)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefixes_module, "MIN_SHARED", 1)
        patch.setattr(prefill, "PIECE_TOKENS", tokens)
        patch.setattr(prefill, "is_limited", lambda _: True)
        copies = find_common_prefixes(starting, live)
        for copy in copies:
            rows.cached_S[list(copy.targets)] = copy.length
        slots_A = np.flatnonzero(rows.cached_S < rows.total_S)
        for packed in pack_batches(rows, slots_A, copies, torch.device("cpu"), end_S=rows.total_S):
            layout = packed.layout
            assert count_padded(layout) <= tokens
            slot_N, position_N = (x[layout.num_padding :] for x in (layout.slot_N, layout.position_N))
            assert not store[slot_N, 0, position_N].any()
            store[slot_N, 0, position_N] = wanted[slot_N, 0, position_N]
            layout.copy_slots(store)
            for slot, place in zip(slot_N.tolist(), position_N.tolist(), strict=True):  # what its query sees
                assert torch.equal(store[slot, 0, : place + 1], wanted[slot, 0, : place + 1])
    assert torch.equal(store[:-1], wanted[:-1])


def test_a_batch_has_the_rows_that_fit_in_order(monkeypatch):
    monkeypatch.setattr(prefill, "PIECE_TOKENS", 13)  # 10 and their padding
    rows = Rows(5, 32)
    for slot, length in enumerate((4, 4, 4, 12, 2)):
        rows.open(slot)
        rows.start(slot, TurnRequest(slot, list(range(length)), 0, SETTINGS["plain"]))
    slots_A, cached_S, end_S = np.arange(5), rows.cached_S.copy(), rows.total_S.copy()

    def list_batches(device: str) -> list[list[tuple[int, int]]]:
        """List slot and position of the tokens of each batch."""
        rows.cached_S[:] = cached_S
        batches = []
        for packed in pack_batches(rows, slots_A, [], torch.device(device), end_S=end_S):
            layout = packed.layout
            pairs = zip(layout.slot_N.tolist(), layout.position_N.tolist(), strict=True)
            batches.append(sorted(pair for pair in pairs if pair[0] < 5))
            assert device == "cpu" or count_padded(layout) <= 13
        return batches

    every = [(slot, place) for slot in range(5) for place in range(end_S[slot])]
    assert list_batches("cpu") == [every]
    monkeypatch.setattr("lit_agentrl.engines.native.ragged.send", lambda array, _: torch.from_numpy(array))
    batches = list_batches("cuda")
    assert [sorted({slot for slot, _ in batch}) for batch in batches] == [[0, 1, 2], [2, 3], [3, 4]]
    assert sorted(pair for batch in batches for pair in batch) == every
    assert rows.cached_S.tolist() == end_S.tolist()


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
