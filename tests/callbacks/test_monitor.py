"""The monitor in a toy run: it warns once, ends a run, adds metrics, and an interrupt changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Trainer

from lit_agentrl.callbacks.checkpoints import BestCheckpoint, LastCheckpoint
from lit_agentrl.callbacks.iteration_log import IterationLog
from lit_agentrl.callbacks.monitor import CollapseMonitor
from lit_agentrl.report.rules import Rule
from lit_agentrl.report.table import Metrics

Launch = Callable[..., Trainer]
SCORES = {2: 0.8, 4: 0.9, 6: 0.2, 8: 0.3, 10: 0.1, 12: 0.1}  # validated every second iteration


def callbacks(folder: Path, action: str = "warn") -> list[Any]:
    rules = {"validation": Rule("val/success", below=0.5, reference="peak", patience=3), "dropped": None}
    last = folder / "checkpoints"
    return [CollapseMonitor(rules, action), IterationLog(), BestCheckpoint(last), LastCheckpoint(last)]


def test_it_warns_once_and_changes_nothing(
    launch: Launch, toy_module: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine = callbacks(tmp_path / "a")
    launch(tmp_path / "a", 12, mine, module=toy_module(SCORES))
    (line,) = mine[0].warnings
    assert line == (
        "iteration 10: collapse rule validation: 0.1 is below 0.45 (0.5 of its peak), 3 times in a row; "
        "last values 0.8, 0.9, 0.2, 0.3, 0.1"
    )
    assert caplog.messages.count(f"warning: {line}") == 1
    launch(tmp_path / "b", 12, callbacks(tmp_path / "b")[1:], module=toy_module(SCORES))
    told, alone = (Metrics.read(tmp_path / at / "metrics.csv") for at in "ab")
    assert told["train/loss"] == alone["train/loss"]
    assert told["collapse/alarms"] == [1.0 if at == 10 else None for at in range(1, 13)]
    assert told["collapse/template_share"] == [1.0] * 12  # the toy thinks one thing


def test_it_ends_a_run_and_the_run_stays_ended(launch: Launch, toy_module: Any, tmp_path: Path) -> None:
    for _ in range(2):  # the second launch continues the first
        mine = callbacks(tmp_path, "stop")
        trainer = launch(tmp_path, 12, mine, module=toy_module(SCORES))
        assert trainer.current_epoch == 10 and mine[0].has_stopped and len(mine[0].warnings) == 1
    mine = callbacks(tmp_path, "warn")
    trainer = launch(tmp_path, 12, mine, module=toy_module(SCORES))
    assert trainer.current_epoch == 12 and not mine[0].has_stopped and len(mine[0].warnings) == 1


@pytest.mark.parametrize("at", [3, 7, 9])
def test_an_interrupt_changes_nothing(
    launch: Launch, toy_module: Any, tmp_path: Path, stop_at: Any, at: int
) -> None:
    with pytest.raises(RuntimeError):
        launch(tmp_path, 12, [*callbacks(tmp_path), stop_at(at, RuntimeError())], module=toy_module(SCORES))
    mine = callbacks(tmp_path)
    launch(tmp_path, 12, mine, module=toy_module(SCORES))
    assert (
        mine[0].warnings[0].startswith("iteration 10: collapse rule validation")
        and len(mine[0].warnings) == 1
    )
    alarms = Metrics.read(tmp_path / "metrics.csv")["collapse/alarms"]
    assert [number + 1 for number, value in enumerate(alarms) if value] == [10]


def test_an_unknown_action_is_refused() -> None:
    with pytest.raises(ValueError, match="action=cry must be one of warn, stop"):
        CollapseMonitor({}, "cry")
