"""The monitor in a toy run: it warns once, ends a run, adds metrics, and an interrupt changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.trainer.states import TrainerFn

from lit_agentrl.callbacks.checkpoints import BestCheckpoint, LastCheckpoint
from lit_agentrl.callbacks.iteration_log import IterationLog
from lit_agentrl.monitor.actions import Action, Stop, Warn
from lit_agentrl.monitor.callback import CollapseMonitor
from lit_agentrl.monitor.rules import Rule
from lit_agentrl.monitor.signals import both_fallen
from lit_agentrl.report.table import Metrics

Launch = Callable[..., Trainer]
SCORES = {2: 0.8, 4: 0.9, 6: 0.2, 8: 0.3, 10: 0.1, 12: 0.1}  # validated every second iteration


def callbacks(folder: Path, action: Action | None = None) -> list[Any]:
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
        mine = callbacks(tmp_path, Stop())
        trainer = launch(tmp_path, 12, mine, module=toy_module(SCORES))
        assert trainer.current_epoch == 10 and mine[0].has_stopped and len(mine[0].warnings) == 1
    mine = callbacks(tmp_path, Warn())
    trainer = launch(tmp_path, 12, mine, module=toy_module(SCORES))
    assert trainer.current_epoch == 12 and not mine[0].has_stopped and len(mine[0].warnings) == 1


@pytest.mark.parametrize("stops", [2, 8])
def test_the_start_is_the_first_thing_to_fall_short_of(
    launch: Launch, toy_module: Any, tmp_path: Path, stops: int
) -> None:
    """It is looked at once, also where the run goes on later."""
    for iterations in (stops, 8):
        mine = callbacks(tmp_path)
        scores = {0: 0.8, 2: 0.1, 4: 0.2, 6: 0.1, 8: 0.1}
        launch(tmp_path, iterations, mine, module=toy_module(scores), measures_start=True)
    (line,) = mine[0].warnings
    assert line.startswith("iteration 6:") and line.endswith("last values 0.8, 0.1, 0.2, 0.1")


def test_a_rule_that_the_start_breaks_is_told_before_training(
    launch: Launch, toy_module: Any, tmp_path: Path
) -> None:
    rules = {"low": Rule("val/success", below=0.5)}
    monitor = CollapseMonitor(rules, Stop())
    trainer = launch(tmp_path, 4, [monitor, IterationLog()], module=toy_module({0: 0.4}), measures_start=True)
    assert monitor.warnings == ["iteration 0: collapse rule low: 0.4 is below 0.5; last values 0.4"]
    assert monitor.has_stopped and trainer.current_epoch == 0


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


def agent(network: Any = "policy", **row: float) -> Any:
    """What the monitor asks of a module: its row, and a vocabulary of 100."""
    config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(vocab_size=100))
    policy = SimpleNamespace(network=network and SimpleNamespace(config=config))
    return SimpleNamespace(
        row=row, last_row={}, policy=policy, eval_metrics={}, version=0, export=print
    )  # fmt: skip


def test_draws_that_are_almost_uniform_are_an_alarm_whichever_episodes_show_them() -> None:
    rule = Rule("collapse/uniformity", above=0.99, advice="try a lower optim.lr")
    monitor = CollapseMonitor({"noise": rule})
    in_training = SimpleNamespace(fn=TrainerFn.FITTING)
    trainer: Any = SimpleNamespace(current_epoch=4, is_global_zero=False, state=in_training)
    module = agent(**{"rollout/entropy": 0.5 * math.log(100)})
    monitor.on_train_epoch_end(trainer, module)
    assert module.row["collapse/uniformity"] == 0.5 and not monitor.warnings
    module.eval_metrics = {"bandit": SimpleNamespace(compute=lambda: {"entropy": math.log(100)})}
    monitor.on_validation_end(trainer, module)
    monitor.on_train_epoch_end(trainer, module)
    assert monitor.warnings == [
        "iteration 5: collapse rule noise: 1 is above 0.99; last values 0.5, 1; try a lower optim.lr"
    ]
    monitor.on_train_epoch_end(trainer, module)
    assert module.row["collapse/uniformity"] == 0.5  # the validation was that of an earlier iteration
    behind_an_api = agent(None, **{"rollout/entropy": 1.0})
    monitor.on_train_epoch_end(trainer, behind_an_api)
    assert "collapse/uniformity" not in behind_an_api.row


def test_both_sides_of_pairs_that_fall_are_a_signal() -> None:
    def row(chosen: float, rejected: float) -> dict[str, float]:
        return {"train/moved_chosen": chosen, "train/moved_rejected": rejected}

    rule = Rule(both_fallen, below=-1.0)
    alarms = [rule.look("pairs", each) for each in ({}, row(0.2, -3), row(-0.9, -1.1), row(-1.1, -1.3))]
    assert alarms[:3] == [None] * 3 and alarms[3] is not None and alarms[3].value == -1.1
