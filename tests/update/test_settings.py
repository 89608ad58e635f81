"""Learning rates are the library's; what cannot act is refused before anything is played."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import SingleDeviceStrategy
from transformers import get_scheduler

from lit_agentrl.update.settings import OptimSettings, UpdateSettings
from tests.update.bare import BareModule
from tests.update.conftest import algorithm, step, tiny_policy

LENGTH = 12
SCHEDULES: list[tuple[str, int, dict[str, Any]]] = [
    ("constant", 0, {}),
    ("constant_with_warmup", 3, {}),
    ("linear", 2, {}),
    ("cosine", 0, {"num_cycles": 1.0}),
    ("cosine_with_min_lr", 2, {"min_lr": 1e-5}),
    ("cosine_with_min_lr", 2, {"min_lr_rate": 0.3}),
    ("polynomial", 0, {"lr_end": 1e-5, "power": 2.0}),
    ("inverse_sqrt", 2, {"timescale": 4}),
    ("warmup_stable_decay", 2, {"num_decay_steps": 4}),
]


def settings(schedule: str, warmup: int = 0, args: dict[str, Any] | None = None) -> OptimSettings:
    return OptimSettings(
        optimizer=torch.optim.SGD,
        lr=1e-4,
        schedule=schedule,
        warmup_iterations=warmup,
        schedule_args=args or {},
    )


def rates(optimizer: torch.optim.Optimizer, scheduler: Any) -> list[float]:
    found = []
    for _ in range(LENGTH):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize(("name", "warmup", "args"), SCHEDULES)
def test_learning_rates_are_those_of_the_library(name: str, warmup: int, args: dict[str, Any]) -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    ours = rates(*settings(name, warmup, args).build([weight], LENGTH))
    plain = torch.optim.SGD([weight], lr=1e-4)
    library = rates(
        plain,
        get_scheduler(name, plain, warmup, LENGTH, scheduler_specific_kwargs=args or None),
    )
    assert ours[warmup:] == pytest.approx(library[warmup:], rel=1e-12)
    assert ours[:warmup] == pytest.approx(library[1 : warmup + 1], rel=1e-12)  # the first iteration counts


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        (
            "constant_with_warmup",
            {"num_cycles": 2},
            "has no effect under schedule=constant_with_warmup",
        ),
        ("cosine", {"nonsense": 3}, "does not fit schedule=cosine: .*nonsense"),
        ("cosine_with_min_lr", {}, "does not fit schedule=cosine_with_min_lr"),
        ("warmup_stable_decay", {}, "does not fit schedule=warmup_stable_decay"),
    ],
)
def test_arguments_that_a_schedule_does_not_take_are_refused(
    name: str, args: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=r"^schedule_args=.*" + message):
        settings(name, args=args)


def test_a_longer_run_under_a_schedule_of_its_whole_length_is_told(caplog: pytest.LogCaptureFixture) -> None:
    told = {}
    for name, warmup, args in SCHEDULES:
        module = BareModule(
            tiny_policy(), objective=algorithm(), update=UpdateSettings(), optim=settings(name, warmup, args)
        )
        saved: dict[str, Any] = {"state_dict": {}}
        module._fake_trainer = SimpleNamespace(max_epochs=10)
        module.on_save_checkpoint(saved)
        with caplog.at_level(logging.WARNING):
            module.on_load_checkpoint(saved)
            assert not caplog.records
            module._fake_trainer = SimpleNamespace(max_epochs=20)
            module.on_load_checkpoint(saved)
        told[name] = any("the learning rate jumps" in record.getMessage() for record in caplog.records)
        caplog.clear()
    assert told == {
        name: name not in ("constant", "constant_with_warmup", "inverse_sqrt") for name, _, _ in SCHEDULES
    }


def test_scaled_gradients_are_refused() -> None:
    module = BareModule(
        tiny_policy(), objective=algorithm(), update=UpdateSettings(), optim=settings("constant")
    )
    scaler = torch.amp.GradScaler("cpu")
    for precision, is_refused in [("bf16-mixed", False), ("16-mixed", True)]:
        plugin = MixedPrecision(precision, "cpu", scaler if is_refused else None)  # type: ignore[arg-type]
        module._fake_trainer = SimpleNamespace(precision_plugin=plugin, strategy=SingleDeviceStrategy())
        if not is_refused:
            module.setup("fit")
            continue
        with pytest.raises(ValueError, match=r"trainer\.precision=16-mixed .* use bf16-mixed"):
            module.setup("validate")


def test_a_filter_that_leaves_too_little_skips_the_iteration() -> None:
    module, change = step(minibatches=13, kept_groups=2, max_bad_steps=2)
    assert module.version == 0 and not any(float(delta.abs().max()) for delta in change.values())
    assert module.row["train/skipped_steps"] == 1
    with pytest.raises(ValueError, match=r"filter left too few trajectories for update\.minibatches=13 in 2"):
        step(minibatches=13, kept_groups=2, max_bad_steps=2, iterations=2)
    with pytest.raises(ValueError, match=r"update\.minibatches=13 exceeds the 12"):  # nothing was filtered
        step(minibatches=13)
