"""Windows of decode steps: the replies are those of single steps, with one wait for the host a window."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from lit_agentrl.engines.base import SamplingParams, TurnRequest, TurnResult
from lit_agentrl.engines.native.attention import NAME
from lit_agentrl.engines.native.decode import decode
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.engines.native.inference import Inference
from lit_agentrl.engines.native.window import Graphs, round_up
from tests.conftest import tiny_network
from tests.engines.test_native import PREFIXES, AfterToken, Never, play
from tests.engines.test_prefixes import SIBLINGS
from tests.models.test_lora import moved

WINDOWS = [1, 4, 16]
FULL = {"max_reply_tokens": 11, "max_context_tokens": 200}
SETTINGS = {
    "plain": SamplingParams(**FULL),
    "warm": SamplingParams(temperature=1.4, **FULL),
    "greedy": SamplingParams(temperature=0, **FULL),
    "top_p": SamplingParams(top_p=0.7, **FULL),
    "top_k": SamplingParams(top_k=4, top_p=0.9, temperature=0.8, **FULL),
}


def tied(num_layers: int = 2) -> PreTrainedModel:
    """Tied heads, and four query heads per key/value head."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300, hidden_size=32, num_hidden_layers=num_layers, num_attention_heads=4, num_key_value_heads=1,
        intermediate_size=48, max_position_embeddings=512, tie_word_embeddings=True, head_dim=16,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def open_engine(
    network: PreTrainedModel, window: int, slots: int = 4, stop: Any = None, **options: Any
) -> NativeEngine:
    return NativeEngine(
        network,
        stop=stop or Never(),
        end_of_turn_ids=(),
        num_slots=slots,
        max_context_tokens=200,
        window=window,
        **options,
    )


def compare_play(
    network: PreTrainedModel, params: SamplingParams, prefixes: Any = PREFIXES, **options: Any
) -> None:
    """Play episodes of several turns step by step and in windows, and compare tokens and log-probs."""
    expected, num_read = play(open_engine(network, 0, **options), prefixes, params, turns=2)
    for window in WINDOWS:
        found, num_read_here = play(open_engine(network, window, **options), prefixes, params, turns=2)
        for episode, (tokens, is_action, logps) in expected.items():
            assert found[episode][:2] == (tokens, is_action)
            assert found[episode][2] == pytest.approx(logps, abs=1e-5)
        assert (
            num_read_here == num_read or prefixes is not PREFIXES
        )  # who copies from whom depends on who is there


@pytest.mark.parametrize(("family", "kind"), [("gpt2", "plain"), *(("llama", kind) for kind in SETTINGS)])
def test_replies_equal_those_of_single_steps(family, kind):
    compare_play(tiny_network(family), SETTINGS[kind])


@pytest.mark.slow
@pytest.mark.parametrize("network", [tied(), moved("llama").network], ids=["tied", "lora"])
def test_tied_heads_and_adapters(network):
    compare_play(network, SETTINGS["plain"])


@pytest.mark.slow
@pytest.mark.parametrize("slots", [1, 3])
def test_common_prefixes_are_copied(slots):
    compare_play(tiny_network(), SETTINGS["plain"], SIBLINGS, slots=slots)


@pytest.mark.slow
def test_replies_that_stop_within_a_window():
    """What was drawn beyond a stop leaves no trace, in this reply or in a later turn."""
    for token in (40, 3, 111):
        compare_play(tiny_network(), SETTINGS["plain"], stop=AfterToken(token))


def answer(engine: NativeEngine, requests: list[TurnRequest]) -> dict[int, TurnResult]:
    for request in requests:
        engine.submit(request)
    results: dict[int, TurnResult] = {}
    while len(results) < len(requests):
        results |= {result.episode: result for result in engine.poll()}
    return results


def test_rows_of_one_wave_may_have_settings_of_their_own():
    network = tiny_network()
    requests = [
        TurnRequest(number, PREFIXES[number], 70 + number, params)
        for number, params in enumerate(SETTINGS.values())
    ]
    expected = answer(open_engine(network, 0, slots=5), requests)
    for window in WINDOWS:
        found = answer(open_engine(network, window, slots=5), requests)
        for episode, result in expected.items():
            assert found[episode].tokens == result.tokens
            assert found[episode].logps == pytest.approx(result.logps, abs=1e-5)
            assert found[episode].entropies == pytest.approx(result.entropies, abs=1e-5)
            assert found[episode].num_prefilled == result.num_prefilled


def answer_forks(engine: NativeEngine) -> dict[int, TurnResult]:
    """Answers of an episode and three forks, one of them at each kind of place."""
    params = SETTINGS["plain"]
    first = answer(engine, [TurnRequest(0, [6, 9, 11], 5, params)])[0]
    for child, at in enumerate((3 + len(first.tokens), 8, 3), start=1):
        engine.fork(0, child, at=at)
    return answer(engine, [TurnRequest(n, [30, 31], 7, params) for n in range(4)])


@pytest.mark.parametrize("window", WINDOWS)
def test_a_fork_goes_on_from_any_place_of_its_parent(window):
    network = tiny_network()
    sides = [open_engine(network, size) for size in (0, window)]
    results = [answer_forks(engine) for engine in sides]
    for episode in range(4):
        assert results[0][episode].tokens == results[1][episode].tokens
        assert results[1][episode].num_prefilled == 2
        assert results[0][episode].logps == pytest.approx(results[1][episode].logps, abs=1e-5)


@pytest.mark.parametrize("window", WINDOWS)
def test_limits_end_replies_within_a_window(window):
    """A short and a long context in one wave, a prompt of one token, and one that leaves no room."""
    limits = [(9, 10), (3, 200), (30, 200), (5, 6)]
    params = [SamplingParams(max_reply_tokens=a, max_context_tokens=b) for a, b in limits]
    prefixes = [[6, 7, 8, 9], [12], [14], list(range(6, 14))]
    sides = []
    for size in (0, window):
        given = [TurnRequest(i, prefixes[i], i, params[i]) for i in range(4)]
        sides.append(answer(open_engine(tiny_network(), size), given))
    for i in range(4):
        assert sides[0][i].tokens == sides[1][i].tokens and sides[0][i].finish is sides[1][i].finish
    assert [len(sides[1][i].tokens) for i in range(4)] == [6, 3, 30, 0]


@pytest.mark.parametrize("window", [4])
def test_equal_requests_give_equal_bits(window):
    first, second = (
        play(open_engine(tiny_network(), window, 3), PREFIXES, SETTINGS["plain"])[0] for _ in range(2)
    )
    assert first == second


def test_a_poll_takes_whole_windows():
    engine = open_engine(tiny_network(), 4)
    engine.submit(TurnRequest(0, [6, 9], 1, SETTINGS["plain"]))
    assert engine.poll(steps=3) == [] and engine.num_steps == 4
    [result] = engine.poll()
    assert len(result.tokens) == 11 and engine.num_steps == 12


class CountWaits(TorchFunctionMode):
    """Counts the calls that wait for results of a device, or that copy to it and wait."""

    names = frozenset(
        {"cpu", "item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "nonzero"}
    )

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (name := getattr(func, "__name__", "")) in self.names:
            self.found[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("window", WINDOWS)
def test_a_window_waits_once(window):
    engine = open_engine(tiny_network(), window, slots=5)
    for number, params in enumerate(SETTINGS.values()):
        engine.submit(TurnRequest(number, PREFIXES[number], number, params))
    with CountWaits() as waits:
        engine.poll(steps=1)  # reads the prompts too
    assert waits.found == {"cpu": 1, "numpy": 1}  # the array is a view of the copy


class CountTransfers(TorchDispatchMode):
    """Counts operators whose tensors lie on several devices."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        devices = {t.device for t in (*args, result) if isinstance(t, torch.Tensor)}
        self.found[str(func)] += len(devices) > 1
        return result


@pytest.mark.parametrize("truncates", [False, True])
def test_no_size_depends_on_data_and_nothing_leaves_the_device(truncates):
    """Fake tensors have no data, so whatever asks for a value raises; ``meta`` stands for a GPU."""
    with FakeTensorMode():
        with torch.device("meta"):
            network, rows_FR = tied(), torch.zeros(8, 6, dtype=torch.long)
        inference = Inference(network, NAME)
        read = partial(inference.read, inference.make_cache(8, 128))
        with inference(), CountTransfers() as transfers:
            drawn = decode(
                read,
                rows_FR,
                steps=3,
                num_slots=8,
                length=96,
                truncates=truncates,
            )
    assert drawn.shape == (3, 3, 6) and drawn.device.type == "meta"
    assert not +transfers.found


def test_shapes_are_rounded_up_to_a_few_sizes():
    assert len({round_up(n, 64, 4096) for n in range(1, 4097)}) == 13
    assert len({round_up(n, 1, 128) for n in range(1, 129)}) == 14
    assert all(n <= round_up(n, 1, 128) <= max(2, n * 1.5) for n in range(1, 129))


@pytest.mark.gpu
def test_graphs_run_what_the_function_runs():
    """The same draws through captured graphs, for shapes that occur again."""
    network = tiny_network().cuda()
    expected, _ = play(open_engine(network, 0), PREFIXES, SETTINGS["plain"])
    for window in WINDOWS:
        found, _ = play(engine := open_engine(network, window), PREFIXES, SETTINGS["plain"])
        assert engine.window.capture
        assert {e: tokens for e, (tokens, _, _) in found.items()} == {
            e: t for e, (t, _, _) in expected.items()
        }


@pytest.mark.parametrize("window", [-1, 1.5, "often", 10_000])
def test_other_windows_are_refused(window):
    with pytest.raises(ValueError, match=f"window={window}"):
        open_engine(tiny_network(), window)


def test_a_model_without_slots_takes_no_windows(monkeypatch):
    monkeypatch.setattr("lit_agentrl.engines.native.engine.find_obstacle", lambda *_: "it is a test")
    with pytest.raises(ValueError, match=r"window=4 needs slots.*it is a test.*engine.window=0"):
        open_engine(tiny_network(), 4)


def test_a_window_that_cannot_be_captured_runs_as_it_is(monkeypatch, caplog):
    def refuse(*_):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(Graphs, "_capture", refuse)
    engine, expected = (
        open_engine(tiny_network(), 4),
        play(open_engine(tiny_network(), 4), PREFIXES, SETTINGS["plain"]),
    )
    engine._open_window().capture = True
    assert play(engine, PREFIXES, SETTINGS["plain"]) == expected
    assert [r.getMessage() for r in caplog.records] == [
        "decode steps are launched one by one: a window could not be captured "
        "(operation not permitted when stream is capturing)"
    ]
