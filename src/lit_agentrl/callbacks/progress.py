"""Live display of a run: a panel on a terminal, plain lines anywhere else."""

from __future__ import annotations

import statistics
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.trainer.states import TrainerFn
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from lit_agentrl import screen
from lit_agentrl.callbacks.iteration_log import get_iteration_metrics
from lit_agentrl.callbacks.options import check_display

PHASES = ("rollout", "score", "update", "validate")
_AT_START = "at the start"  # marks a score that training has not measured yet

# metrics of held-out data, and their labels
_ACCURACY = "val/data_reward_accuracy"
_HELD_OUT = (
    ("val/data_loss", "val loss"), (_ACCURACY, "val accuracy"),
    ("val/data_reward_margin", "val margin"), ("val/data_perplexity", "val perplexity"),
)  # fmt: skip
# metrics of the update and of a reward model, and their labels
_TRAINED = (
    ("reward/model_score", "reward model"), ("train/loss", "loss"), ("train/ref_kl", "KL to reference (nats)"),
    ("train/old_kl", "KL to old policy (nats)"), ("train/grad_norm", "gradient norm"),
)  # fmt: skip


def format_duration(seconds: float) -> str:
    """Format a duration for people: ``7.4 s``, ``3:05``, ``2:03:05``.

    >>> format_duration(7.42), format_duration(185), format_duration(7385)
    ('7.4 s', '3:05', '2:03:05')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def list_fields(
    metrics: Mapping[str, float],
    references: Mapping[str, float],
    val: float | None,
    held_out: Mapping[str, Sequence[float | None]] = MappingProxyType({}),
    *,
    is_short: bool = False,
) -> list[tuple[str, str]]:
    """List the (label, value) pairs to show for an iteration, without unmeasured ones.

    Args:
        metrics: the metrics of the iteration.
        references: success of ``start``, ``chance`` and ``oracle`` on the validation split, if known.
        val: the latest validation success during training; None: the one before training is shown, if known.
        held_out: for each metric of held-out data, its latest value during training (None if there is none yet) and, if
            known, its value before training.
        is_short: whether to leave out metrics of the update, as plain lines do; the loss stays if nothing was played.
    """
    shown = []
    for label, key in (("success", "success"), ("return", "return_mean"), ("entropy", "entropy")):
        if f"rollout/{key}" in metrics:
            unit = " nats" if key == "entropy" else ""
            shown.append((label, f"{metrics[f'rollout/{key}']:.3f}{unit}"))
    if not is_short or not shown:  # training on data plays nothing, and its lines have the loss
        trained = _TRAINED if not is_short else [("train/loss", "loss")]
        shown += [(label, f"{metrics[key]:.4g}") for key, label in trained if key in metrics]
    if val is not None or "start" in references:
        is_start = val is None
        value = f"{_AT_START} {references['start']:.3f}" if val is None else f"{val:.3f}"
        known = [f"{name} {x:.3f}" for name, x in references.items() if not (is_start and name == "start")]
        shown.append(("val success", value + (f" ({', '.join(known)})" if known else "")))
    for name, label in _HELD_OUT:
        latest, *start = held_out.get(name, (None,))
        known = ["chance 0.5"] if name == _ACCURACY else []  # one of two replies is the better one
        if latest is not None:
            known += [f"start {value:.4g}" for value in start]
            shown.append((label, f"{latest:.4g}" + (f" ({', '.join(known)})" if known else "")))
        elif start:
            shown.append((label, f"{_AT_START} {start[0]:.4g}" + "".join(f" ({text})" for text in known)))
    phases = [
        f"{name} {format_duration(metrics[f'time/{name}'])}" for name in PHASES if f"time/{name}" in metrics
    ]
    if phases:
        shown.append(("time", ", ".join(phases)))
    return shown


class _TimeLeft(ProgressColumn):
    """Column with the remaining time, counted down between iterations."""

    def render(self, task: Task) -> Text:
        if (end := task.fields["end"]) is None:
            return Text("left …")
        return Text(f"left {format_duration(max(end - task.get_time(), 0))}")


class _Played(ProgressColumn):
    """Column with the number of ended episodes, while this process plays episodes."""

    def render(self, task: Task) -> Text:
        return Text(screen.PLAYING.describe())


class LiveDisplay(ProgressBar):
    """Display of scores, loss, KL, gradient norm, validation, phase times and time left.

    On a terminal, a panel is redrawn in place.  Elsewhere, each iteration is one plain line, without control
    codes.  Time left is the median duration of the last 20 iterations times the remaining iterations, plus the
    duration of the last validation times the remaining validations.

    Args:
        every: iterations between plain lines; the first and the last iteration always get one.
        every_seconds: minimum time between plain lines, in seconds.
        console: where to draw; standard output by default.
    """

    def __init__(self, every: int = 1, every_seconds: float = 0.0, console: Console | None = None) -> None:
        super().__init__()
        check_display(every=every, every_seconds=every_seconds)
        self.every = every
        self.every_seconds = every_seconds
        self._console = console
        self._is_enabled = True
        self._references: dict[str, float] = {}
        self._val: float | None = None
        # by metric: the latest value during training (None if there is none yet), and one before training if known
        self._held_out: dict[str, tuple[float | None, ...]] = {}
        self._durations: deque[float] = deque(maxlen=20)
        self._validation_s = 0.0  # duration of the last validation, seconds
        self._iteration_began = 0.0
        self._printed_at = -float("inf")
        self._live: Live | None = None
        self._bar: Progress | None = None
        self._played: Progress | None = None

    def compare_with(self, **references: float) -> None:
        """Set the success to compare validation with: ``start``, ``chance``, ``oracle``."""
        self._references.update(references)

    def enable(self) -> None:
        """Show the display."""
        self._is_enabled = True

    def disable(self) -> None:
        """Show nothing; Lightning calls this on every rank but the first."""
        self._is_enabled = False
        self._stop()

    def state_dict(self) -> dict[str, Any]:
        """Return the scores that a resumed run shows: of the start and the latest validation."""
        return {
            "start": self._references.get("start"), "val": self._val,
            "held_out": {name: list(values) for name, values in self._held_out.items()},
        }  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the scores."""
        if state_dict["start"] is not None:
            self._references["start"] = state_dict["start"]
        self._val = state_dict["val"]
        self._held_out = {name: tuple(values) for name, values in state_dict["held_out"].items()}

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print a line above the panel."""
        if self._live is not None:
            self._live.console.print(*args, **kwargs)
        else:
            print(*args, **kwargs)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the score of a validation before training as the start."""
        if trainer.state.fn != TrainerFn.VALIDATING or trainer.current_epoch != 0:
            return
        row = get_iteration_metrics(pl_module)
        if (score := row.get("val/success")) is not None:
            self._references.setdefault("start", float(score))
        self._held_out |= {name: (None, float(row[name])) for name, _ in _HELD_OUT if name in row}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the panel if the output is a terminal."""
        self._iteration_began = time.monotonic()
        self._durations.clear()
        console = self._console or Console(file=sys.stdout)
        # also check isatty: environment variables can make rich report a terminal where there is none
        is_terminal = console.file.isatty() and console.is_terminal and not console.is_dumb_terminal
        if not self._is_enabled or not is_terminal:
            return
        self._bar = Progress(
            TextColumn("iteration"), MofNCompleteColumn(), BarColumn(None), TimeElapsedColumn(), _TimeLeft(),
            TextColumn("{task.fields[phase]}"), expand=True,
        )  # fmt: skip
        total = trainer.max_epochs if trainer.max_epochs != -1 else None
        self._bar.add_task("run", total=total, completed=trainer.current_epoch, end=None, phase="")
        self._played = Progress(_Played(), expand=True)
        self._played.add_task("played")
        self._live = Live(self._build_panel({}, console.width), console=console, refresh_per_second=4)
        self._live.start()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the rollout phase, with which an iteration begins."""
        self._show_phase("rollout")

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Show the update phase: the rollout callback runs first and has played the episodes."""
        self._show_phase("update")

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the validation phase; a validation before training has no panel."""
        self._show_phase("validate")

    def _show_phase(self, phase: str) -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], phase=f"{phase:<8}")  # the width of the longest phase

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the iteration that just ended."""
        now = time.monotonic()
        metrics = get_iteration_metrics(pl_module)
        validation = metrics.get("time/validate", 0.0)
        self._validation_s = validation or self._validation_s
        self._durations.append(now - self._iteration_began - validation)
        self._iteration_began = now
        if not self._is_enabled:
            return
        if "val/success" in metrics:
            self._val = float(metrics["val/success"])
        for name, _ in _HELD_OUT:
            if name in metrics:
                self._held_out[name] = (float(metrics[name]), *self._held_out.get(name, ())[1:])
        iteration = trainer.current_epoch + 1
        seconds_left = self.estimate_seconds_left(trainer, iteration)
        if self._live is not None and self._bar is not None:
            end = None if seconds_left is None else self._bar.get_time() + seconds_left
            self._bar.update(self._bar.task_ids[0], completed=iteration, end=end)
            self._live.update(self._build_panel(metrics, self._live.console.width))
        elif self._is_due(trainer, iteration, now):
            self._printed_at = now
            total = f"/{trainer.max_epochs}" if trainer.max_epochs != -1 else ""
            shown = [f"{label} {value}" for label, value in self._list_fields(metrics, is_short=True)]
            if seconds_left:
                shown.append(f"left {format_duration(seconds_left)}")
            file = self._console.file if self._console else sys.stdout
            print(" | ".join([f"iteration {iteration}{total}", *shown]), file=file, flush=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the last panel on the screen and release the terminal."""
        self._show_phase("")
        self._stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Release the terminal before the error is printed."""
        self._stop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Release the terminal."""
        self._stop()

    def estimate_seconds_left(self, trainer: Trainer, iteration: int) -> float | None:
        """Estimate the remaining seconds from the last 20 iterations; None if the end is open."""
        if not self._durations or trainer.max_epochs in (None, -1):
            return None
        end = max(trainer.max_epochs or 0, iteration)
        every = trainer.check_val_every_n_epoch or 1
        validations = end // every - iteration // every
        return statistics.median(self._durations) * (end - iteration) + self._validation_s * validations

    def _list_fields(self, metrics: Mapping[str, float], *, is_short: bool = False) -> list[tuple[str, str]]:
        return list_fields(metrics, self._references, self._val, self._held_out, is_short=is_short)

    def _is_due(self, trainer: Trainer, iteration: int, now: float) -> bool:
        if self._printed_at == -float("inf") or iteration == trainer.max_epochs:
            return True
        return iteration % self.every == 0 and now - self._printed_at >= self.every_seconds

    def _build_panel(self, metrics: Mapping[str, float], columns: int) -> Panel:
        assert self._bar is not None and self._played is not None
        table = Table.grid(padding=(0, 2))
        for label, value in self._list_fields(metrics):
            table.add_row(f"[bold]{label}[/bold]", value)
        # leave room for the ^C that a terminal echoes, which would otherwise wrap and move the panel
        return Panel(
            Group(self._bar, self._played, table), title="lit_agentrl", border_style="dim", width=columns - 3
        )

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = self._bar = None
