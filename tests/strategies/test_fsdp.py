"""Training with FSDP on two processes is training with one; checkpoints cross over; options without effect."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.plugins.precision import HalfPrecision
from lightning.pytorch.strategies import ModelParallelStrategy

from lit_agentrl.strategies.ddp import DDP
from lit_agentrl.strategies.fsdp import FSDP
from tests.strategies.ranks import Check, assert_passed, start
from tests.strategies.recorded import module_of, train

WITH_REFERENCE = "grpo kl=loss_k3"
MOVING = "grpo kl=loss_k3 moving"
ALGORITHMS = ("grpo", WITH_REFERENCE, "ppo", "ppo critic=shared", "dapo", "gspo")
SERIES = ("train/loss", "train/grad_norm", "critic/loss", "critic/grad_norm")
STRATEGIES = {"ddp": lambda: DDP(), "file": lambda: FSDP(), "folder": lambda: FSDP(sharded_checkpoints=True)}


def assert_near(rows: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    for row, other in zip(rows, expected, strict=True):
        for key in (key for key in SERIES if key in other):
            assert row[key] == pytest.approx(other[key], rel=1e-4, abs=1e-4), key


@dataclass
class AsOneProcess:
    """Gradients of the first iteration and loss curves over five, against one process that has all rows."""

    algorithm: str

    @property
    def __name__(self) -> str:
        return f"as_one_process_{self.algorithm.replace(' ', '_')}"

    def __call__(self, folder: Path) -> None:
        alone = torch.load(folder.parent / "alone.pt")[self.algorithm]
        together = train(self.algorithm, FSDP(activation_checkpointing=self.algorithm == "gspo"))
        assert len(alone["gradients"]) == len(together["gradients"]) > 0
        for a, b in zip(alone["gradients"], together["gradients"], strict=True):
            assert a.keys() == b.keys()
            largest = max(float(g.abs().max()) for g in a.values())
            for name in a:
                assert (a[name] - b[name]).abs().max() <= 1e-6 * max(largest, 1.0), name
        assert_near(together["rows"], alone["rows"])


def crossing_over(folder: Path) -> None:
    """Three iterations under one strategy, two more under another: losses as in five of one process.

    Within one layout, the interrupted run is the uninterrupted one to the bit.
    """
    alone = torch.load(folder.parent / "alone.pt")["ppo"]
    for name, strategy in STRATEGIES.items():
        train("ppo", strategy(), iterations=3, save=folder / f"{name}.ckpt")
        assert (folder / f"{name}.ckpt").is_dir() == (name == "folder")
    uninterrupted = train("ppo", FSDP())
    for saved in (*STRATEGIES, "alone"):
        for name, strategy in STRATEGIES.items():
            if saved == name == "ddp":
                continue  # neither is FSDP
            file = folder.parent / "alone.ckpt" if saved == "alone" else folder / f"{saved}.ckpt"
            resumed = train("ppo", strategy(), resume=file)
            assert len(resumed["rows"]) == 2
            assert_near(resumed["rows"], alone["rows"][3:])
            if {saved, name} <= {"file", "folder"}:
                for key, value in resumed["weights"].items():
                    assert torch.equal(value, uninterrupted["weights"][key]), (saved, name, key)


def a_reference_that_moves(folder: Path) -> None:
    """As one process has it; and cut up, it lies in either kind of checkpoint, from which a run goes on to the bit."""
    alone = torch.load(folder.parent / "alone.pt")[MOVING]
    uninterrupted = train(MOVING, FSDP())
    assert_near(uninterrupted["rows"], alone["rows"])
    for row, other in zip(uninterrupted["rows"], alone["rows"], strict=True):
        assert row["train/ref_kl"] == pytest.approx(other["train/ref_kl"], rel=1e-3)
    for name in ("file", "folder"):
        train(MOVING, STRATEGIES[name](), iterations=3, save=folder / f"{name}.ckpt")
        resumed = train(MOVING, STRATEGIES[name](), resume=folder / f"{name}.ckpt")
        assert any(key.startswith("reference.") for key in resumed["weights"]) and len(resumed["rows"]) == 2
        for key, value in resumed["weights"].items():
            assert torch.equal(value, uninterrupted["weights"][key]), (name, key)


def half_precision(folder: Path) -> None:
    """Gathered weights and activations are bfloat16, stored ones float32; gradients are near those of float32."""
    alone = torch.load(folder.parent / "alone.pt")["ppo"]
    together = train("ppo", FSDP(compute_dtype="bfloat16", accumulate_sharded=True), iterations=1)
    assert all(value.dtype == torch.float32 for value in together["weights"].values())
    for a, b in zip(alone["gradients"], together["gradients"], strict=True):
        x, y = (torch.cat([g.flatten() for g in each.values()]) for each in (a, b))
        assert not torch.equal(x, y)
        assert torch.cosine_similarity(x, y, dim=0) > 0.99


def frozen_networks_are_put_away(folder: Path) -> None:
    """Between uses the reference's share is moved to the CPU; its scores stay the same."""
    moves: list[str] = []

    class OffLoading(FSDP):
        def _refuse_idle_options(self, frozen: Any) -> None:
            reference = frozen[0]
            original = type(reference).to
            reference.to = lambda device: moves.append(str(device)) or original(reference, device)

    alone = torch.load(folder.parent / "alone.pt")[WITH_REFERENCE]
    together = train(WITH_REFERENCE, OffLoading(offload_frozen=True), iterations=2)
    assert moves == ["cpu"] + 2 * ["cpu:0", "cpu"] or moves == 5 * ["cpu"], moves
    assert_near(together["rows"], alone["rows"][:2])


CHECKS: list[Check] = [
    *(AsOneProcess(name) for name in ALGORITHMS), crossing_over, half_precision, a_reference_that_moves,
    frozen_networks_are_put_away,
]  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    alone = {name: train(name) for name in (*ALGORITHMS, MOVING)}
    train("ppo", iterations=3, save=folder / "alone.ckpt")
    torch.save(alone, folder / "alone.pt")
    start(CHECKS, folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_two_ranks(check: Check, done: Path) -> None:
    assert_passed(check, done)


@pytest.mark.slow
@pytest.mark.parametrize("saved", ["file", "folder"])
def test_one_process_continues(saved: str, done: Path) -> None:
    folder = assert_passed(crossing_over, done)  # type: ignore[arg-type]
    alone = torch.load(done / "alone.pt")["ppo"]
    resumed = train("ppo", resume=folder / f"{saved}.ckpt")
    assert_near(resumed["rows"], alone["rows"][3:])


def test_the_harness_trains_on_both_ranks_and_with_a_critic_and_a_reference() -> None:
    """Without these the comparisons above would prove little."""
    assert module_of("ppo").critic is not None
    assert module_of(WITH_REFERENCE).updater.networks.reference is not None
    assert not dist.is_initialized()


def test_adapters_are_refused() -> None:
    network = torch.nn.Linear(2, 2)
    network.bias.requires_grad_(False)
    with pytest.raises(ValueError, match="strategy=fsdp does not shard adapters"):
        FSDP().shard([network], [])


def test_options_without_effect_are_refused() -> None:
    strategy = FSDP(offload_frozen=True)
    strategy.parallel_devices = [torch.device("cpu")]
    with pytest.raises(ValueError, match="offload_frozen=true has no effect: without a reference"):
        strategy._refuse_idle_options([])
    with pytest.raises(ValueError, match="offload_frozen=true has no effect: training is on the CPU"):
        strategy._refuse_idle_options([torch.nn.Linear(1, 1)])
    strategy = FSDP(compute_dtype="bfloat16")
    strategy.precision_plugin = HalfPrecision("bf16-true")
    with pytest.raises(ValueError, match="compute_dtype=bfloat16 and trainer.precision=bf16-true both"):
        strategy._refuse_idle_options([])


@pytest.mark.parametrize("option", ["compute_dtype", "reduce_dtype"])
def test_unknown_precisions_are_refused(option: str) -> None:
    with pytest.raises(ValueError, match=f"^{option}=float16 must be one of float32, bfloat16"):
        FSDP(**{option: "float16"})


def test_processes_that_others_started_are_counted_and_share_the_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lightning does neither for a strategy that is not DDP."""
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(ModelParallelStrategy, "setup_environment", lambda self: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    strategy = FSDP()
    strategy.cluster_environment = TorchElasticEnvironment()
    strategy.parallel_devices = [torch.device("cpu")] * 2
    strategy.setup_environment()
    assert threads == [4]
    strategy.parallel_devices *= 2
    with pytest.raises(ValueError, match=r"devices=4.*does not match the world size \(2\)"):
        strategy.setup_environment()
