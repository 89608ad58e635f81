"""Files that a thread writes from copies while training goes on."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from lit_agentrl.strategies import checkpoint_io
from lit_agentrl.strategies.background import Writer, copy_network_to_host, copy_to_host, mark_snapshot
from lit_agentrl.strategies.checkpoint_io import AtomicIO, CheckpointError


class Gate:
    """Holds each write of a checkpoint until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self.reached = threading.Event(), threading.Event()
        save = checkpoint_io.save_plain

        def held(*args: Any) -> None:
            self.reached.set()
            assert self.opened.wait(30)
            save(*args)

        monkeypatch.setattr(checkpoint_io, "save_plain", held)


def test_a_checkpoint_is_that_of_the_save_while_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, io, path = nn.Linear(8, 8), AtomicIO(), tmp_path / "last.ckpt"
    optimizer, seen = torch.optim.AdamW(model.parameters(), lr=0.1), [1]

    def step() -> None:
        model(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
        seen.append(len(seen))

    def dump() -> dict[str, Any]:
        rng = torch.get_rng_state()
        return {"weights": model.state_dict(), "optimizer": optimizer.state_dict(), "seen": seen, "rng": rng}

    step()
    io.save_checkpoint(dump(), path)
    step()
    wanted = tmp_path / "wanted.ckpt"
    AtomicIO().save_checkpoint(dump(), wanted)
    gate = Gate(monkeypatch)
    io.save_checkpoint(dump(), path, {"wait": False})
    assert gate.reached.wait(30)  # the thread writes
    for _ in range(3):
        step()
    assert io.writer.is_pending(str(path))
    gate.opened.set()
    io.writer.join()
    found, expected = io.load_checkpoint(path), io.load_checkpoint(wanted)
    assert _flatten(found) == _flatten(expected) != _flatten(copy_to_host(dump()))
    assert path.stat().st_size == wanted.stat().st_size


def _flatten(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _flatten(item) for key, item in value.items()}
    return [_flatten(item) for item in value] if isinstance(value, list) else value


def test_tensors_that_share_data_share_it_in_the_copy() -> None:
    weight = torch.zeros(3, requires_grad=True)
    copied = copy_to_host({"a": weight, "b": [weight.detach(), weight[1:]], "empty": torch.empty(0)})
    with torch.no_grad():
        weight += 1
    assert copied["a"].data_ptr() == copied["b"][0].data_ptr() and not copied["a"].requires_grad
    assert copied["a"].tolist() == [0, 0, 0] and copied["b"][1].tolist() == [0, 0]


def test_gathered_weights_that_nothing_changes_are_not_copied_for_a_write() -> None:
    gathered, live = torch.ones(2), torch.ones(2)
    mark_snapshot(gathered)
    copied = copy_to_host({"gathered": gathered, "live": live})
    assert copied["gathered"].data_ptr() == gathered.data_ptr()
    assert copied["live"].data_ptr() != live.data_ptr()


def test_the_copy_of_a_network_keeps_its_weights_and_ties() -> None:
    network = nn.ModuleDict({"in": nn.Linear(2, 2), "out": nn.Linear(2, 2)})
    network["out"].weight = network["in"].weight
    before = {name: weight.detach().clone() for name, weight in network.named_parameters()}
    copied = copy_network_to_host(network)
    with torch.no_grad():
        for weight in network.parameters():
            weight.zero_()
    found = dict(copied.named_parameters())
    assert found.keys() == before.keys() and all(torch.equal(found[name], before[name]) for name in found)
    assert not any(weight.requires_grad for weight in copied.parameters())


class Copies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes how tensors reach the host."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pinned: list[bool] = []
        self.is_refused = False  # whether the system pins no memory

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.empty_like.default:
            assert kwargs["device"].type == "cpu"
            self.pinned.append(bool(kwargs.get("pin_memory")))
            if self.pinned[-1] and self.is_refused:
                raise torch.AcceleratorError("CUDA error: out of memory")
        if func is torch.ops.aten.copy_.default:
            assert args[2:] == (True,)  # non-blocking
        return func(*args, **kwargs)


def test_copies_from_a_gpu_are_pinned_and_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[torch.device] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waits.append)
    with FakeTensorMode(), Copies() as copies:
        weight = torch.empty(4, 4, device="cuda")
        state = {"a": weight, "b": [weight.detach(), torch.empty(3, device="cuda")], "c": torch.empty(2)}
        copied = copy_to_host(state)
    assert copies.pinned == [True, True]
    assert waits == [torch.device("cuda", 0)]
    assert {each.device.type for each in (copied["a"], *copied["b"], copied["c"])} == {"cpu"}


def test_where_no_memory_can_be_pinned_other_memory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: None)
    with FakeTensorMode(), Copies() as copies:
        copies.is_refused = True
        copied = copy_to_host([torch.empty(3, device="cuda")])
    assert copies.pinned == [True, False] and copied[0].device.type == "cpu"


@pytest.mark.parametrize("free", [0.9, 0.1])
def test_there_is_one_copy_at_a_time_where_memory_is_short(
    free: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    io, best, last = AtomicIO(), tmp_path / "best.ckpt", tmp_path / "last.ckpt"
    for path in (best, last):  # the first save of a file is waited for
        io.save_checkpoint({"x": torch.zeros(2)}, path)
    gate, memory = Gate(monkeypatch), SimpleNamespace(available=free, total=1.0)
    monkeypatch.setattr(checkpoint_io.psutil, "virtual_memory", lambda: memory)
    io.save_checkpoint({"x": torch.ones(2)}, best, {"wait": False})
    timer = threading.Timer(0.2, gate.opened.set)
    if free < 0.5:
        timer.start()
    io.save_checkpoint({"x": torch.ones(2)}, last, {"wait": False})
    assert io.writer.is_pending(str(best)) == (free > 0.5)
    gate.opened.set()
    io.writer.close()
    timer.cancel()


def test_what_has_no_copy_is_written_at_once(tmp_path: Path) -> None:
    io, path = AtomicIO(), tmp_path / "last.ckpt"
    io.save_checkpoint({"i": 0}, path)
    with (
        pytest.warns(
            UserWarning, match=r"last\.ckpt is written while training waits, since it cannot be copied"
        ),
        pytest.raises(CheckpointError, match=r"^cannot write .*last\.ckpt: own is a _thread\.lock, but"),
    ):
        io.save_checkpoint({"i": 1, "own": threading.Lock()}, path, {"wait": False})
    assert io.load_checkpoint(path) == {"i": 0}


def test_a_second_write_of_a_target_waits_and_others_queue_in_order() -> None:
    writer, order, opened = Writer(), [], threading.Event()

    def write(name: str) -> None:
        assert opened.wait(30)
        order.append(name)

    writer.start("last", lambda: write("last 1"))
    writer.start("best", lambda: write("best"))
    assert writer.is_pending("last") and writer.is_pending("best")
    threading.Timer(0.05, opened.set).start()
    writer.start("last", lambda: write("last 2"))
    assert order[0] == "last 1"
    writer.close()
    assert order == ["last 1", "best", "last 2"] and not writer.is_pending("last")


def test_an_error_is_raised_once_and_later_writes_are_left_out() -> None:
    writer, done, opened = Writer(), [], threading.Event()

    def fails() -> None:
        assert opened.wait(30)
        raise CheckpointError("cannot write best.ckpt: No space left on device")

    writer.start("best", fails)
    writer.start("last", lambda: done.append("last"))  # would name a best checkpoint that is not on disk
    opened.set()
    with pytest.raises(CheckpointError, match="No space left"):
        writer.join()
    writer.check()
    assert done == []
    writer.start("last", lambda: done.append("next"))
    writer.close()
    assert done == ["next"]


def test_the_end_of_a_fit_waits_and_hides_no_other_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    io, path = AtomicIO(), tmp_path / "last.ckpt"
    io.save_checkpoint({"i": 0}, path)
    gate = Gate(monkeypatch)
    io.save_checkpoint({"i": 1}, path, {"wait": False})
    threading.Timer(0.05, gate.opened.set).start()
    io.teardown()
    assert io.load_checkpoint(path) == {"i": 1}

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_io, "save_plain", full)
    io.save_checkpoint({"i": 2}, path, {"wait": False})
    with pytest.raises(
        CheckpointError, match=r"^cannot write .*last\.ckpt: No space left on device; earlier"
    ):
        io.teardown()
    io.save_checkpoint({"i": 2}, path, {"wait": False})
    with pytest.warns(UserWarning, match="No space left"), pytest.raises(ValueError, match="the first"):
        try:
            raise ValueError("the first")
        finally:
            io.teardown()
    assert io.load_checkpoint(path) == {"i": 1}
