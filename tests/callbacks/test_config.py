"""The shipped YAML composes, and its parts can be changed and switched off on the command line."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from hydra import compose
from hydra.errors import InstantiationException
from hydra.utils import instantiate

from lit_agentrl.config.composition import initialize_hydra
from lit_agentrl.loggers.files import CSVLog, add_csv_log


def parts(group: str, option: str, *overrides: str) -> dict[str, Any]:
    with initialize_hydra():
        config = compose("train", overrides=[f"{group}={option}", "run_dir=run", *overrides])
        return {name: instantiate(part) for name, part in config[group].items()}


def test_callbacks_in_their_order() -> None:
    found = parts("callbacks", "default")
    assert list(found) == ["collapse", "iteration_log", "transcripts", "progress", "best", "last"]
    assert found["best"].path == Path("run/checkpoints/best.ckpt")
    assert found["last"].path == Path("run/checkpoints/last.ckpt")
    assert found["transcripts"].folder == Path("run/transcripts")


def test_one_is_changed_and_one_is_dropped() -> None:
    found = parts("callbacks", "default", "callbacks.last.every=5", "~callbacks.transcripts")
    assert found["last"].every == 5 and "transcripts" not in found


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("csv", ["csv"]),
        ("tensorboard", ["tensorboard"]),
        ("default", ["csv", "tensorboard"]),
        ("[default,wandb,mlflow]", ["csv", "tensorboard", "wandb", "mlflow"]),
    ],
)
def test_loggers_lie_in_the_run_folder(option: str, names: list[str]) -> None:
    found = parts("logger", option)
    assert list(found) == names
    assert {Path(logger.save_dir).absolute() for logger in found.values()} == {Path("run").absolute()}


def test_the_table_of_metrics_is_written_whatever_the_logger() -> None:
    loggers = list(parts("logger", "[tensorboard,csv]").values())
    assert add_csv_log(loggers, Path("run")) == loggers[::-1]
    table, board = add_csv_log(loggers[:1], Path("run"))
    assert isinstance(table, CSVLog) and table.path == Path("run/metrics.csv") and board is loggers[0]


@pytest.mark.parametrize(
    ("option", "package", "extra"),
    [("wandb", "wandb", "wandb"), ("mlflow", "alembic", "mlflow"), ("tensorboard", "matplotlib", "figures")],
)
def test_a_logger_names_the_extra_that_it_lacks(
    option: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_spec(name: str) -> object:
        return None if name == package else object()

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    asked = ["logger.tensorboard.figure=true"] if option == "tensorboard" else []
    with pytest.raises(InstantiationException) as refused:
        parts("logger", option, *asked)
    told = f"needs the package {package}; install it with: pip install 'lit-agentrl[{extra}]'"
    assert str(refused.value.__cause__).endswith(told)
