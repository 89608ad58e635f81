"""The display with and without a terminal."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console

from lit_agentrl.callbacks import progress
from lit_agentrl.callbacks.checkpoints import LastCheckpoint
from lit_agentrl.callbacks.iteration_log import IterationLog
from lit_agentrl.callbacks.progress import LiveDisplay, format_duration, list_fields

Launch = Callable[..., Trainer]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Metrics(IterationLog):
    """Adds what a rollout would."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        success = 0.25 * trainer.current_epoch
        pl_module.row |= {"rollout/success": success, "rollout/return_mean": 1.5, "rollout/entropy": 0.125}
        pl_module.row |= {"time/rollout": 61.0, "time/update": 2.5}
        super().on_train_epoch_end(trainer, pl_module)


class Phases(Callback):
    """What the panel says is done, as each part of an iteration begins."""

    def __init__(self, display: LiveDisplay) -> None:
        self.display, self.seen = display, []

    def _look(self, *where: Any) -> None:
        assert self.display._bar is not None
        self.seen.append(self.display._bar.tasks[0].fields["phase"].strip())

    on_train_epoch_start = on_train_batch_start = on_validation_start = _look


def show(launch: Launch, folder: Path, display: LiveDisplay, epochs: int = 4, **options: Any) -> None:
    options.setdefault("callbacks", [Metrics(), display])
    launch(folder, epochs, loggers=False, enable_progress_bar=True, enable_checkpointing=False, **options)


def test_durations_are_readable() -> None:
    assert [format_duration(s) for s in (0, 7.42, 59.94, 185, 3599.6, 7385)] == [
        "0.0 s", "7.4 s", "59.9 s", "3:05", "1:00:00", "2:03:05",
    ]  # fmt: skip


def test_parts_leave_out_what_is_unknown() -> None:
    assert list_fields({"train/loss": 2.5, "train/grad_norm": 1.0}, {}, None, is_short=True) == [
        ("loss", "2.5")
    ]
    played = {"rollout/success": 0.5, "train/loss": 2.5}
    assert list_fields(played, {}, None, is_short=True) == [("success", "0.500")]
    assert list_fields({}, {"chance": 0.1}, None) == []
    assert list_fields({}, {"chance": 0.1, "start": 0.25}, None, {"val/data_loss": (None, 0.5)}) == [
        ("val success", "at the start 0.250 (chance 0.100)"),
        ("val loss", "at the start 0.5"),
    ]
    accuracy = "val/data_reward_accuracy"
    assert list_fields({}, {}, None, {accuracy: (None, 0.5)})[0][1] == "at the start 0.5 (chance 0.5)"
    assert list_fields({}, {}, None, {accuracy: (0.75, 0.5)})[0][1] == "0.75 (chance 0.5, start 0.5)"
    row = {"rollout/success": 0.5, "rollout/entropy": 0.25, "time/validate": 3.0, "time/rollout": 90.0}
    assert list_fields(row, {"start": 0.25, "oracle": 1.0}, 0.75) == [
        ("success", "0.500"),
        ("entropy", "0.250 nats"),
        ("val success", "0.750 (start 0.250, oracle 1.000)"),
        ("time", "rollout 1:30, validate 3.0 s"),
    ]


def test_what_the_update_measured_is_shown() -> None:
    row = {"train/loss": -0.0123, "train/ref_kl": 0.5, "train/grad_norm": 1.25, "reward/model_score": 0.75}
    assert list_fields(row, {}, None) == [
        ("reward model", "0.75"),
        ("loss", "-0.0123"),
        ("KL to reference (nats)", "0.5"),
        ("gradient norm", "1.25"),
    ]


def test_without_a_terminal_an_iteration_is_one_plain_line(
    tmp_path: Path, launch: Launch, toy_module: Any, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich believe in a terminal
    display = LiveDisplay()
    display.compare_with(chance=0.05)
    show(launch, tmp_path, display, module=toy_module({2: 0.25, 4: 0.5}))
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\r" not in out
    lines = out.splitlines()
    assert len(lines) == 4
    assert re.sub(r"left [\d.]+ s", "left T", lines[1]) == (
        "iteration 2/4 | success 0.250 | return 1.500 | entropy 0.125 nats | "
        "val success 0.250 (chance 0.050) | time rollout 1:01, update 2.5 s | left T"
    )
    assert "val success" not in lines[0] and "val success 0.250" in lines[2]  # the newest score stays
    assert "left" not in lines[3]


def test_lines_are_throttled_by_count_and_by_time(
    tmp_path: Path, launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    show(launch, tmp_path, LiveDisplay(every=3), epochs=7)
    assert re.findall(r"iteration (\d)/7", capsys.readouterr().out) == ["1", "3", "6", "7"]
    show(launch, tmp_path, LiveDisplay(every_seconds=3600), epochs=7)
    assert re.findall(r"iteration (\d)/7", capsys.readouterr().out) == ["1", "7"]


def test_time_left_is_the_median_of_the_last_twenty_times_what_remains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock.now)
    out = io.StringIO()
    display = LiveDisplay(console=Console(file=out))
    trainer: Any = SimpleNamespace(current_epoch=0, max_epochs=50, check_val_every_n_epoch=10)
    module: Any = SimpleNamespace(row={}, last_row={})
    display.on_train_start(trainer, module)
    # 10 slow ones, which the window has forgotten after 30 iterations, and one hiccup
    for epoch, seconds in enumerate([100.0] * 10 + [2.0] * 10 + [50.0] + [4.0] * 9):
        module.row = {"time/validate": 7.0} if (epoch + 1) % 10 == 0 else {}
        clock.now += seconds + sum(module.row.values())
        trainer.current_epoch = epoch
        display.on_train_epoch_end(trainer, module)
    assert display.estimate_seconds_left(trainer, 30) == 3.0 * 20 + 2 * 7.0  # and validations after 40 and 50
    assert out.getvalue().splitlines()[-1] == "iteration 30/50 | time validate 7.0 s | left 1:14"
    trainer.max_epochs = -1
    assert display.estimate_seconds_left(trainer, 30) is None


def test_on_a_terminal_a_panel_is_drawn_and_the_cursor_comes_back(
    tmp_path: Path, launch: Launch, toy_module: Any
) -> None:
    out = Terminal()
    console = Console(file=out, force_terminal=True, width=100, height=20, _environ={"TERM": "xterm"})
    display = LiveDisplay(console=console)
    display.compare_with(oracle=1.0)
    phases = Phases(display)
    show(
        launch,
        tmp_path,
        display,
        module=toy_module({2: 0.25, 4: 0.5}),
        callbacks=[Metrics(), display, phases],
    )
    drawn = out.getvalue()
    assert phases.seen[:2] == ["rollout", "update"] and "validate" in phases.seen
    assert "4/4" in drawn and "val success" in drawn and "0.500 (oracle 1.000)" in drawn
    assert "left 0.0 s" in drawn
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("\x1b[?25l")  # cursor shown after it was hidden
    assert display._live is None


def test_time_left_is_counted_down_between_iterations() -> None:
    task: Any = SimpleNamespace(fields={"end": 90.0}, get_time=lambda: 12.0)
    assert progress._TimeLeft().render(task).plain == "left 1:18"
    task.get_time = lambda: 99.0  # slower than the last ones
    assert progress._TimeLeft().render(task).plain == "left 0.0 s"
    task.fields["end"] = None
    assert progress._TimeLeft().render(task).plain == "left …"


def test_an_error_gives_the_terminal_back(tmp_path: Path, launch: Launch, stop_at: Any) -> None:
    out = Terminal()
    console = Console(file=out, force_terminal=True, width=100, height=20, _environ={"TERM": "xterm"})
    display = LiveDisplay(console=console)
    with pytest.raises(MemoryError):
        show(launch, tmp_path, display, callbacks=[stop_at(2, MemoryError()), Metrics(), display])
    assert display._live is None and out.getvalue().rindex("\x1b[?25h") > out.getvalue().rindex("\x1b[?25l")


def test_a_dumb_terminal_gets_plain_lines(tmp_path: Path, launch: Launch) -> None:
    out = Terminal()
    console = Console(file=out, force_terminal=True, _environ={"TERM": "dumb"})
    show(launch, tmp_path, LiveDisplay(console=console), epochs=2)
    assert "\x1b" not in out.getvalue()
    assert [line[:13] for line in out.getvalue().splitlines()] == ["iteration 1/2", "iteration 2/2"]


def test_disabled_shows_nothing(tmp_path: Path, launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    display = LiveDisplay()
    display.disable()
    show(launch, tmp_path, display, epochs=2)
    assert capsys.readouterr().out == ""
    display.enable()
    show(launch, tmp_path, display, epochs=2)
    assert "iteration 2/2" in capsys.readouterr().out


def test_the_validation_before_training_is_the_start(
    tmp_path: Path, toy_module: Any, batches: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    display, module = LiveDisplay(), toy_module({0: 0.125, 2: 0.5})
    trainer = Trainer(
        max_epochs=2, accelerator="cpu", logger=False, callbacks=[IterationLog(), display],
        check_val_every_n_epoch=2, enable_checkpointing=False, enable_model_summary=False,
        num_sanity_val_steps=0, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.validate(module, batches(), verbose=False)
    trainer.fit(module, batches(), batches())
    first, second = capsys.readouterr().out.splitlines()
    assert "val success at the start 0.125 |" in first, "the first iteration is not validated"
    assert "val success 0.500 (start 0.125)" in second


def test_a_resumed_run_shows_the_start_and_the_latest_validation(
    tmp_path: Path, toy_module: Any, launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    for epochs in (2, 4):
        callbacks = [IterationLog(), LiveDisplay(), LastCheckpoint(tmp_path / "checkpoints", every=1)]
        module = toy_module({0: 0.125, 2: 0.5, 4: 0.75})
        launch(
            tmp_path, epochs, callbacks, module=module, loggers=False, measures_start=True,
            enable_progress_bar=True,
        )  # fmt: skip
    third, fourth = [line for line in capsys.readouterr().out.splitlines() if "iteration" in line][2:]
    assert "val success 0.500 (start 0.125)" in third, "the third iteration is not validated"
    assert "val success 0.750 (start 0.125)" in fourth


@pytest.mark.parametrize(("option", "value"), [("every", 0), ("every_seconds", -1.0)])
def test_wrong_options_are_named(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{option}={value} must be"):
        LiveDisplay(**{option: value})
