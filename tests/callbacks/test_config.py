"""The shipped YAML composes, and its parts can be changed and switched off on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

CONF = Path(__file__).parents[2] / "src/lit_agentrl/conf"


def parts(group: str, option: str, *overrides: str) -> dict[str, Any]:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", overrides=[f"{group}={option}", "run_dir=run", *overrides])
        return {name: instantiate(part) for name, part in config[group].items()}


def test_callbacks_in_their_order() -> None:
    found = parts("callbacks", "default")
    assert list(found) == ["iteration_log", "transcripts", "progress", "best", "last"]
    assert found["best"].path == Path("run/checkpoints/best.ckpt")
    assert found["last"].path == Path("run/checkpoints/last.ckpt")
    assert found["transcripts"].folder == Path("run/transcripts")


def test_one_is_changed_and_one_is_dropped() -> None:
    found = parts("callbacks", "default", "callbacks.last.every=5", "~callbacks.transcripts")
    assert found["last"].every == 5 and "transcripts" not in found


@pytest.mark.parametrize(
    ("option", "names"),
    [("csv", ["csv"]), ("tensorboard", ["tensorboard"]), ("default", ["csv", "tensorboard"])],
)
def test_loggers(option: str, names: list[str]) -> None:
    found = parts("logger", option)
    assert list(found) == names
    assert {Path(logger.log_dir) for logger in found.values()} <= {Path("run"), Path("run/tensorboard")}
