"""Micro-batches side by side: the sums of one after the other, in an order that the settings alone decide."""

from __future__ import annotations

import copy
import signal
import threading
import time
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins import Precision
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn

from lit_agentrl.callbacks.nonfinite import FirstNonFinite
from lit_agentrl.checks import NotFinite
from lit_agentrl.models.lora import LoRA
from lit_agentrl.update.lanes import Lanes, deal
from tests.conftest import tiny_policy
from tests.rl.ragged import fresh
from tests.update.bare import build
from tests.update.conftest import step

SMALL = {"tokens_per_microbatch": 300}


def change(found: dict[str, Tensor]) -> Tensor:
    return torch.cat([each.flatten().double() for each in found.values()])


def test_the_largest_are_dealt_first() -> None:
    assert deal([5, 1, 4, 3], 2) == [[0, 1], [2, 3]]
    assert deal([2, 2, 2], 2) == [[0, 2], [1]]
    assert deal([7], 3) == [[0], [], []]
    assert deal([], 2) == [[], []]


class Squares(nn.Module):
    """``sum((w x)^2)``, with a frozen weight and a buffer beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -2.0]))
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)
        self.register_buffer("scale", torch.tensor(3.0))

    def forward(self, x: float) -> Tensor:
        return (self.weight * x).square().sum() * self.frozen.sum() * self.scale


def work_of(lanes: Lanes, xs: list[float]) -> Any:
    def work(lane: int, number: int) -> dict[str, Tensor]:
        loss = lanes.modules_of[lane][0](xs[number])
        loss.backward()
        return {"x": torch.tensor(xs[number])}

    return work


@pytest.mark.parametrize("in_turn", [False, True])
def test_gradients_are_summed_and_metrics_stand_in_order(in_turn: bool) -> None:
    """d/dw of 3 (w x)^2 is 6 w x^2; over x = 1, 2, 3 that is 84 w, added to what was there."""
    own = Squares()
    own.weight.grad = torch.tensor([0.5, 0.0])
    lanes = Lanes((own, None), 2)
    found = lanes.run(work_of(lanes, [1.0, 2.0, 3.0]), [9, 1, 1], in_turn=in_turn)
    assert own.weight.grad.tolist() == [84.5, -168.0]
    assert own.frozen.grad is None
    assert [float(each["x"]) for each in found] == [1.0, 2.0, 3.0]
    assert all(twin[0].weight.grad is None for twin in lanes.modules_of[1:])


def test_copies_are_the_same_memory_also_after_it_was_exchanged() -> None:
    own = Squares()
    lanes = Lanes((own,), 2)
    (copied,) = lanes.modules_of[1]
    assert copied.weight is not own.weight
    assert copied.weight.data_ptr() == own.weight.data_ptr()
    assert copied.frozen.data_ptr() == own.frozen.data_ptr()
    assert copied.scale.data_ptr() == own.scale.data_ptr()
    own.double()  # as trainer.precision does, and load_state_dict(assign=True)
    own.weight.data = torch.tensor([2.0, 2.0], dtype=torch.float64)
    lanes.run(work_of(lanes, [1.0, 1.0]), [1, 1])
    assert own.weight.grad.tolist() == [24.0, 24.0]
    assert own.weight.grad.dtype == torch.float64
    assert copied.scale.dtype == torch.float64  # `to` exchanges buffers as objects
    own.weight.requires_grad_(False)
    own.weight.grad = None
    own.frozen.requires_grad_(True)
    lanes.run(work_of(lanes, [1.0, 1.0]), [1, 1])
    assert own.weight.grad is None
    assert own.frozen.grad.tolist() == [2 * 3 * 8.0]  # what is frozen, or trained, is so in all lanes


def test_lanes_are_threads_of_one_torch_thread_each() -> None:
    own, seen = Squares(), []
    lanes = Lanes((own,), 2)
    meet = threading.Barrier(2, timeout=20)  # passed only if both are there at once

    def work(lane: int, number: int) -> dict[str, Tensor]:
        meet.wait()
        seen.append((threading.current_thread().name, torch.get_num_threads()))
        return {}

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        lanes.run(work, [1, 1])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert {threads for _, threads in seen} == {1}
    assert len({name for name, _ in seen}) == 2


def test_autocast_reaches_all_lanes() -> None:
    lanes = Lanes((nn.Linear(2, 2),), 2)
    seen: list[torch.dtype] = []

    def work(lane: int, number: int) -> dict[str, Tensor]:
        seen.append(lanes.modules_of[lane][0](torch.ones(2)).dtype)
        return {}

    with torch.autocast("cpu", torch.bfloat16):
        lanes.run(work, [1, 1, 1])
    lanes.run(work, [1, 1])
    assert seen == [torch.bfloat16] * 3 + [torch.float32] * 2


def test_an_error_of_a_lane_is_raised_once_all_have_ended() -> None:
    lanes, ended = Lanes((Squares(),), 2), []
    both = threading.Barrier(2, timeout=20)

    def work(lane: int, number: int) -> dict[str, Tensor]:
        if number < 2:
            both.wait()
        if lane == 0:
            raise ArithmeticError("of lane 0")
        time.sleep(0.2)
        ended.append(number)
        return {}

    with pytest.raises(ArithmeticError, match="of lane 0"):
        lanes.run(work, [1, 1, 1, 1])
    assert ended == [1], "lane 1 ends the micro-batch that it is at, and begins no other"


def test_nothing_runs_any_more_after_an_interrupt() -> None:
    lanes, ended = Lanes((Squares(),), 2), []
    both, interrupted = threading.Barrier(2, timeout=20), threading.Event()

    def work(lane: int, number: int) -> dict[str, Tensor]:
        if number < 2 and both.wait() == 0:
            # again, since a signal that comes just before a thread begins to wait does not wake it
            while not interrupted.wait(0.2):
                signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)
        interrupted.wait(20)
        time.sleep(0.3)
        ended.append(number)
        return {}

    def interrupt(*_: Any) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            lanes.run(work, [1] * 8)
    finally:
        signal.signal(signal.SIGALRM, before)
    count = len(ended)
    assert count == 2
    time.sleep(0.5)
    assert len(ended) == count


@pytest.mark.slow
def test_an_update_is_that_of_one_lane_and_repeats_to_the_bit() -> None:
    one, two, again = (change(step(lanes=n, iterations=2, **SMALL)[1]) for n in (1, 3, 3))
    assert torch.equal(two, again)
    assert one.norm() > 0
    assert (one - two).norm() <= 1e-5 * one.norm()


def test_metrics_are_those_of_one_lane() -> None:
    one, two = (step(lanes=n, **SMALL)[0].row for n in (1, 2))
    assert one.keys() == two.keys()
    for name in one:
        if not name.startswith("time/"):
            assert two[name] == pytest.approx(one[name], rel=1e-4, abs=1e-6), name


class Halved(pl.Callback):
    """Converts as ``trainer.precision=bf16-true`` does, after the module was made."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        pl_module.to(torch.bfloat16)


@pytest.mark.slow
def test_half_precision_weights() -> None:
    one, two = (step(lanes=n, inspect=[Halved()], **SMALL)[0].row for n in (1, 2))
    for name in ("train/grad_norm", "train/logp_gap", "train/logp_gap_max"):
        assert two[name] == pytest.approx(one[name], rel=0.02), name


@pytest.mark.slow
def test_adapters() -> None:
    """LoRA: the base is frozen, and adapters are trained in all lanes."""
    found = []
    for lanes in (1, 2):
        policy = tiny_policy()
        policy.adapters = LoRA(r=4).attach(policy.network, "tiny")
        found.append(change(step(lanes=lanes, policy=policy, **SMALL)[1]))
    assert found[0].norm() > 0
    assert (found[0] - found[1]).norm() <= 1e-5 * found[0].norm()


def test_modules_can_be_copied() -> None:
    """As a callback that averages weights does."""
    module, _ = step(lanes=2, **SMALL)
    module.trainer = None
    copied = copy.deepcopy(module.updater.networks)
    assert copied.lanes is not None
    assert copied.lanes.modules_of[0][0] is copied.policy


def test_hooks_see_every_pass() -> None:
    class Hooking(pl.Callback):
        def __init__(self, lanes: int) -> None:
            self.calls, self.lanes = 0, lanes

        def count(self, *_: Any) -> None:
            self.calls += 1

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            _ = pl_module.updater.networks.form  # which tries the network
            pl_module.network.register_forward_hook(self.count)
            pl_module.network.model.norm.weight.register_hook(lambda gradient: 0 * gradient)

    watches = [Hooking(n) for n in (1, 2)]
    one, two = (step(lanes=w.lanes, inspect=[w], **SMALL)[1] for w in watches)
    assert watches[0].calls == watches[1].calls > 2
    assert not one["model.norm.weight"].any() and not two["model.norm.weight"].any()


class Watching(pl.Callback):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        self.seen.append(threading.current_thread().name)


def test_a_callback_that_looks_at_backwards_sees_all_of_them_and_changes_no_bit() -> None:
    watch = Watching()
    watched = change(step(lanes=2, inspect=[watch], **SMALL)[1])
    assert torch.equal(watched, change(step(lanes=2, **SMALL)[1]))
    assert len(watch.seen) > 2
    assert set(watch.seen) == {threading.main_thread().name}


def test_debug_nan_finds_what_a_lane_breaks() -> None:
    policy = tiny_policy()
    with torch.no_grad():
        policy.network.lm_head.weight[3] = 1e38
        policy.network.model.norm.weight.mul_(1e20)
    with pytest.raises(NotFinite, match=r"first appears in the output of network\.lm_head"):
        step(lanes=2, policy=policy, inspect=[FirstNonFinite()], **SMALL)


@pytest.mark.parametrize(("device", "processes"), [("cpu", 2), ("cuda", 1)])
def test_several_processes_and_gpus_are_refused(device: str, processes: int) -> None:
    module = build(fresh("grpo"), lanes=2)
    module._fake_trainer = SimpleNamespace(
        precision_plugin=Precision(),
        strategy=SingleDeviceStrategy(torch.device(device)),
        world_size=processes,
    )
    with pytest.raises(
        ValueError, match=r"^update\.lanes=2 computes micro-batches in threads of one process"
    ):
        module.setup("fit")
