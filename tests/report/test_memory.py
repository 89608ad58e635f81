"""Counting the memory of tensors."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from lit_agentrl.callbacks.iteration_log import IterationLog
from lit_agentrl.report.memory import measure_peak


def test_the_counter_counts_until_tensors_are_freed():
    held = torch.zeros(100)

    def work() -> None:
        for _ in range(3):
            a = torch.ones(1000)
            b = a[:10]  # a view holds the same memory
            del a, b
        (held + 1).sum()

    assert measure_peak(work, [held], torch.device("cpu")) == 400 + 4000


class Module:
    """Of a module what the log of iterations reads."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.row: dict[str, float] = {}
        self.last_row: dict[str, float] = {}


def test_each_iteration_logs_its_own_peak_on_a_gpu_and_nothing_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peaks = {"allocated": 3 * 2**30, "reserved": 5 * 2**30}

    def reset(device: torch.device) -> None:
        assert device == torch.device("cuda:1")  # not the current one
        peaks.update(allocated=2**30, reserved=2**30)

    fakes = {f"max_memory_{name}": lambda device, name=name: peaks[name] for name in peaks}
    for name, fake in {**fakes, "reset_peak_memory_stats": reset}.items():
        assert hasattr(torch.cuda, name)
        monkeypatch.setattr(torch.cuda, name, fake)
    logged: list[dict[str, float]] = []
    logger = SimpleNamespace(log_metrics=lambda metrics, step: logged.append(metrics), save=lambda: None)
    trainer = SimpleNamespace(loggers=[logger], current_epoch=0)
    for device in ("cuda:1", "cuda:1", "cpu"):
        module = Module(device)
        module.row = {"train/loss": 0.5}
        IterationLog().on_train_epoch_end(trainer, module)  # type: ignore[arg-type]
        assert module.last_row == logged[-1]
    assert logged == [
        {"train/loss": 0.5, "memory/allocated_gib": 3.0, "memory/reserved_gib": 5.0},
        {"train/loss": 0.5, "memory/allocated_gib": 1.0, "memory/reserved_gib": 1.0},
        {"train/loss": 0.5},
    ]
