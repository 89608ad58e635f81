"""Options of ``trainer`` are refused in one line without Lightning, by the names and values that Lightning takes."""

from __future__ import annotations

import inspect
import re
from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.fabric.connector import _PRECISION_INPUT_STR, _PRECISION_INPUT_STR_ALIAS
from omegaconf import DictConfig, OmegaConf

from lit_agentrl.config import trainer_options
from lit_agentrl.config.trainer_options import check_trainer, describe_arguments


def make(trainer: dict[str, Any], strategy: str = "single.single") -> DictConfig:
    return OmegaConf.create(
        {"trainer": trainer, "strategy": {"_target_": f"lit_agentrl.strategies.{strategy}"}}
    )


def test_the_arguments_are_those_of_lightning() -> None:
    ours, theirs = inspect.signature(describe_arguments), inspect.signature(pl.Trainer)
    assert {name: each.default for name, each in ours.parameters.items()} == {
        name: each.default for name, each in theirs.parameters.items()
    }


def test_each_precision_of_lightning_is_known() -> None:
    ours = {
        *trainer_options.PRECISIONS,
        *trainer_options._OLD_PRECISIONS,
        *trainer_options._ENGINE_PRECISIONS,
        "16",
    }
    theirs = {*_PRECISION_INPUT_STR.__args__, *_PRECISION_INPUT_STR_ALIAS.__args__}
    assert theirs - {"16-true", "16-mixed"} <= ours


@pytest.mark.parametrize(
    ("trainer", "told"),
    [
        ({"precision": "nosuch"}, "trainer.precision=nosuch must be one of auto, 32-true, bf16-mixed"),
        ({"precision": 8}, "trainer.precision=8 must be one of"),
        ({"precision": "transformer-engine"}, "with the package transformer_engine, which is absent"),
        ({"accelerator": "mps"}, "trainer.accelerator=mps: Apple's GPUs have no float64"),
        ({"accelerator": "cpu", "devices": -1}, "trainer.devices=-1 must be a whole number >= 1 on a CPU"),
        ({"accelerator": "cpu", "devices": [0]}, "trainer.devices=[0] must be a whole number >= 1 on a CPU"),
        ({"devices": "nosuch"}, "trainer.devices=nosuch must be a whole number >= 1, a list such as [0,1]"),
        ({"devices": [0, 0]}, "trainer.devices=[0, 0] must be a whole number >= 1, a list of devices"),
        ({"devices": 2}, "strategy=single is one process on one device; choose another strategy"),
        ({"devices": "0,1"}, "strategy=single is one process on one device"),
        ({"num_nodes": 2}, "trainer.num_nodes=2: strategy=single is one process"),
        ({"max_time": "soon"}, "trainer.max_time=soon must be a text DAYS:HOURS:MINUTES:SECONDS"),
        ({"max_time": {"hour": 1}}, "trainer.max_time={hour: 1} must be"),
        ({"profiler": "nosuch"}, "trainer.profiler=nosuch must be one of simple, advanced, pytorch"),
        ({"min_epochs": -1}, "trainer.min_epochs=-1 must be a whole number >= 0"),
        ({"limit_test_batches": 0}, "trainer.limit_test_batches=0 would skip or shorten"),
    ],
)
def test_a_wrong_value(trainer: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        check_trainer(make(trainer))


@pytest.mark.parametrize(
    "trainer",
    [
        {"devices": [1]},
        {"devices": "auto"},
        {"devices": -1},
        {"precision": "bf16"},
        {"precision": 64},
        {"precision": None},
        {"max_time": "00:12:00:00"},
        {"max_time": {"hours": 2}},
        {"profiler": {"_target_": "lightning.pytorch.profilers.PyTorchProfiler"}},
        {"min_epochs": None, "limit_test_batches": 1.0},
    ],
)
def test_what_lightning_takes_is_accepted(trainer: dict[str, Any]) -> None:
    check_trainer(make(trainer))


def test_several_devices_with_a_strategy_for_them() -> None:
    check_trainer(make({"devices": 2, "num_nodes": 3}, strategy="ddp.DDP"))
