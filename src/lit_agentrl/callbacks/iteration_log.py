"""Logging of one row per iteration to every logger, before checkpoints are written."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.utilities import rank_zero_warn

from lit_agentrl.modules.contract import Measured, as_measured
from lit_agentrl.report.memory import read_peaks
from lit_agentrl.report.summary import Summary


@runtime_checkable
class Rewinds(Protocol):
    """A logger or a log-writing callback that can drop entries after a checkpoint."""

    def rewind(self, iterations: int) -> None:
        """Drop everything after ``iterations`` completed iterations; −1 drops all."""


@runtime_checkable
class Compares(Protocol):
    """A logger or display that shows success together with reference levels."""

    def compare_with(self, **references: float) -> None:
        """Set the levels, such as ``chance`` and ``oracle``, before anything is logged."""


@runtime_checkable
class Concludes(Protocol):
    """A logger that can show the closing scores."""

    def conclude(self, summary: Summary) -> None:
        """Show the closing scores, at the very end of a run."""


def rewind(trainer: Trainer, iterations: int) -> None:
    """Truncate the logs that an earlier launch of the run left, before anything is added.

    Args:
        trainer: its loggers, and its callbacks that write logs, are rewound.
        iterations: number of completed iterations to keep; −1 also drops the measurement of the start.
    """
    for log in (*trainer.loggers, *trainer.callbacks):  # type: ignore[attr-defined]
        if isinstance(log, Rewinds):
            log.rewind(iterations)


def get_iteration_metrics(pl_module: LightningModule) -> dict[str, float]:
    """Return the metrics of an iteration at its end: those logged, and those added since."""
    return {**pl_module.last_row, **pl_module.row} if isinstance(pl_module, Measured) else {}


class IterationLog(Callback):
    """Callback that logs ``pl_module.row`` after each iteration, and rewinds loggers at start.

    The module, and callbacks that run before this one, add metrics to ``pl_module.row`` (a dict of floats)
    during the iteration.  This callback logs the row at ``step`` = completed iterations, keeps it as
    ``pl_module.last_row`` for checkpoints and displays, and empties it.  Rows are on disk before the checkpoint
    of the same iteration: a run killed in between repeats the iteration and its row.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check that the module has a row to log.

        Raises:
            ValueError: the module has none.
        """
        as_measured(pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drop rows that an earlier launch logged after the checkpoint from which training continues."""
        for logger in trainer.loggers:
            if isinstance(logger, Rewinds):
                logger.rewind(trainer.current_epoch)
            elif trainer.current_epoch > 0:
                name = type(logger).__name__
                rank_zero_warn(
                    f"{name} cannot rewind: rows after iteration {trainer.current_epoch} may appear twice"
                )
        # metrics of a validation before training belong to row 0, not to the first iteration
        as_measured(pl_module).row = {}
        # Lightning does not save should_stop: without this, a stopped run that is relaunched would train on
        stoppers = [c for c in trainer.callbacks if isinstance(c, EarlyStopping)]  # type: ignore[attr-defined]
        if any(stopper.wait_count >= stopper.patience for stopper in stoppers):
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the iteration's row."""
        module = as_measured(pl_module)
        metrics = module.last_row = module.row | read_peaks(pl_module.device)
        module.row = {}
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=trainer.current_epoch + 1)
            logger.save()
