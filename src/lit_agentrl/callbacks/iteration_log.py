"""One row an iteration: everything measured goes to every logger at once, before checkpoints are written."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.utilities import rank_zero_warn

from lit_agentrl.modules.contract import Measured, as_measured
from lit_agentrl.report.summary import Summary


@runtime_checkable
class Rewinds(Protocol):
    """A log that forgets what it holds beyond a checkpoint: a logger, or a callback that writes one."""

    def rewind(self, iterations: int) -> None:
        """Drop everything after ``iterations`` completed iterations; −1 drops all."""


@runtime_checkable
class Compares(Protocol):
    """Shows success beside levels that it is compared with: a logger, or the live display."""

    def compare_with(self, **references: float) -> None:
        """State them, such as ``chance`` and ``oracle``, before anything is logged."""


@runtime_checkable
class Concludes(Protocol):
    """A logger that has a place for the closing scores."""

    def conclude(self, summary: Summary) -> None:
        """Show them, at the very end of a run."""


def rewind(trainer: Trainer, iterations: int) -> None:
    """Cut the logs of a run back, as an earlier launch has left them, before anything is added to them.

    Args:
        trainer: its loggers, and those of its callbacks that write logs.
        iterations: that are completed; −1 before the start is measured.
    """
    for log in (*trainer.loggers, *trainer.callbacks):  # type: ignore[attr-defined]
        if isinstance(log, Rewinds):
            log.rewind(iterations)


def measured(pl_module: LightningModule) -> dict[str, float]:
    """The metrics of an iteration at its end: what has been logged, and what was added since."""
    return {**pl_module.last_row, **pl_module.row} if isinstance(pl_module, Measured) else {}


class IterationLog(Callback):
    """Moves ``pl_module.row`` into all loggers at the end of an iteration; rewinds them when training starts.

    The module, and callbacks that run before this one, add metrics to ``pl_module.row`` (a dict of floats)
    during the iteration.  Here it is logged at ``step`` = completed iterations, kept as
    ``pl_module.last_row`` for checkpoints and displays, and emptied.  Rows are on disk before the checkpoint
    of the same iteration: a run killed in between repeats the iteration and its row.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check that there is a row to log.

        Raises:
            ValueError: the module has none.
        """
        as_measured(pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drop what an earlier launch logged beyond the checkpoint that training continues from."""
        for logger in trainer.loggers:
            if isinstance(logger, Rewinds):
                logger.rewind(trainer.current_epoch)
            elif trainer.current_epoch > 0:
                name = type(logger).__name__
                rank_zero_warn(
                    f"{name} cannot rewind: rows after iteration {trainer.current_epoch} may be there twice"
                )
        # metrics of a validation before training belong to row 0, not to the first iteration
        as_measured(pl_module).row = {}
        # Lightning does not save should_stop: without this a relaunched run that had stopped trains on
        stoppers = [c for c in trainer.callbacks if isinstance(c, EarlyStopping)]  # type: ignore[attr-defined]
        if any(stopper.wait_count >= stopper.patience for stopper in stoppers):
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the iteration's row."""
        module = as_measured(pl_module)
        row = module.last_row = dict(module.row)
        module.row = {}
        for logger in trainer.loggers:
            logger.log_metrics(row, step=trainer.current_epoch + 1)
            logger.save()
