"""Captured windows without a GPU: what a capture records runs again on new rows, as a CUDA graph does.

The fake graph notes each operator with its tensors.  A replay runs the same operators on the same tensors, and nothing
of Python in between.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lit_agentrl.engines.base import TurnRequest
from lit_agentrl.engines.native import inference
from lit_agentrl.engines.native.window import Graphs
from tests.conftest import tiny_network
from tests.engines.test_native import PREFIXES, play
from tests.engines.test_window import SETTINGS, answer, open_engine
from tests.models.test_lora import moved

CAPTURE = inspect.signature(torch.cuda.graph.__init__)


def find_storages(values: Any) -> set[int]:
    return {
        each.untyped_storage().data_ptr() for each in tree_leaves(values) if isinstance(each, torch.Tensor)
    }


class Graph(TorchDispatchMode):
    """Stands for a ``torch.cuda.CUDAGraph``, and counts its replays."""

    made: list[Graph] = []

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []
        self.replays = 0
        self.made.append(self)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        self.replays += 1
        for func, args, kwargs, result in self.calls:
            found = func(*args, **kwargs)
            for old, new in zip(tree_leaves(result), tree_leaves(found), strict=True):
                if isinstance(old, torch.Tensor) and not find_storages(old) & find_storages((args, kwargs)):
                    old.copy_(new)  # else it is a view, or was changed in place

    def pool(self) -> str:
        return "pool"


@contextmanager
def capture(graph: Graph, **options: Any) -> Iterator[None]:
    CAPTURE.bind(None, graph, **options)  # arguments of the installed torch
    assert options["pool"] in (None, "pool") and options["capture_error_mode"] == "thread_local"
    with graph:
        yield


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """The graphs that are captured, on a CPU that stands for a GPU."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    fakes = {
        "Stream": lambda: stream, "current_stream": lambda: stream, "set_stream": lambda to: None,
        "stream": lambda given: nullcontext(), "CUDAGraph": Graph, "graph": capture,
        "get_sync_debug_mode": lambda: 0, "set_sync_debug_mode": lambda mode: None,
    }  # fmt: skip
    for name, fake in fakes.items():
        assert hasattr(torch.cuda, name)
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(Graph, "made", [])
    # its products are prepared for each poll, and none is on a GPU
    monkeypatch.setattr(inference, "use_onednn_linears", lambda modules: nullcontext())
    return Graph.made


def open_captured(network: Any, window: int, **options: Any) -> Any:
    engine = open_engine(network, window, **options)
    with engine._inference(), engine._context():
        engine._open_window().capture = True
    return engine


@pytest.mark.parametrize("kind", ["plain", "greedy", "top_k"])
@pytest.mark.parametrize("window", [1, 4])
def test_replays_draw_what_the_function_draws(
    window: int, kind: str, graphs: list[Graph], caplog: Any
) -> None:
    network = tiny_network()
    expected, _ = play(open_engine(network, 0), PREFIXES, SETTINGS[kind], turns=2)
    found, _ = play(open_captured(network, window), PREFIXES, SETTINGS[kind], turns=2)
    for episode, (tokens, is_action, logps) in expected.items():
        assert found[episode][:2] == (tokens, is_action)
        assert found[episode][2] == pytest.approx(logps, abs=1e-5)
    assert graphs and sum(graph.replays for graph in graphs) > len(graphs) and not caplog.records


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("make", [tiny_network, lambda: moved("llama").network], ids=["whole", "lora"])
def test_replays_use_the_weights_of_the_last_update(make: Any, copies: bool, graphs: list[Graph]) -> None:
    """Weights keep their addresses, so that graphs that were captured before an update hold."""
    network, request = make(), [TurnRequest(0, PREFIXES[1], 5, SETTINGS["plain"])]
    engine = open_captured(network, 4, play_copy=copies)
    before = answer(engine, request)[0]
    captured = len(graphs)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.3)
    engine.load(None, 1)
    after = answer(engine, request)[0]
    expected = answer(open_engine(network, 0), request)[0]
    assert len(graphs) == captured and after.tokens == expected.tokens
    assert after.logps == pytest.approx(expected.logps, abs=1e-5) and after.logps != before.logps


def test_one_graph_serves_all_rows_of_its_shape(graphs: list[Graph]) -> None:
    run = Graphs(lambda rows, *, times: (rows * times).cumsum(0))
    for start in range(3):
        rows = torch.arange(start, start + 4)
        assert torch.equal(run(rows, times=2), (rows * 2).cumsum(0))
    run(torch.arange(5), times=2), run(torch.arange(4), times=3)
    assert [graph.replays for graph in graphs] == [3, 1, 1]


def test_the_fake_keeps_values_of_the_host_as_a_graph_does(graphs: list[Graph]) -> None:
    """What Python computed during a capture stays as it was."""
    run = Graphs(lambda rows: rows * partial(int, rows.sum())())
    assert torch.equal(run(torch.tensor([1, 2])), torch.tensor([3, 6]))
    assert torch.equal(run(torch.tensor([2, 2])), torch.tensor([6, 6]))  # not 8
