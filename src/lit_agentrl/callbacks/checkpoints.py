"""Callbacks that save checkpoints: the last one, and the best one with its loadable export."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn

from lit_agentrl import screen
from lit_agentrl.callbacks.export import export_policy
from lit_agentrl.callbacks.iteration_log import get_iteration_metrics
from lit_agentrl.callbacks.options import check_best, check_last
from lit_agentrl.callbacks.save_period import SavePeriod
from lit_agentrl.distributed import gather_objects
from lit_agentrl.files import has_checkpoint, recover_folder
from lit_agentrl.report.summary import Saves
from lit_agentrl.strategies.background import Writer
from lit_agentrl.strategies.checkpoint_io import (
    LEFTOVERS,
    AtomicIO,
    remove_checkpoint,
)

AUTO = "auto"
_LOWER_IS_BETTER = ("val/data_loss", "val/data_nll", "val/data_perplexity")


def _get_writer(trainer: Trainer) -> Writer | None:
    io = trainer.strategy.checkpoint_io
    return io.writer if isinstance(io, AtomicIO) else None


class LastCheckpoint(Checkpoint):
    """Callback that saves ``last.ckpt``, from which ``resume=`` continues, after an iteration.

    Training waits for a copy to host memory; a thread then writes the copy.  Sharded checkpoints, to which all ranks
    write, hold training until they are written.  The first save and the save at the end of training wait for the disk.

    Args:
        dirpath: the run's checkpoint folder.
        every: iterations between saves; ``auto``: as many as keep saves within 5 % of the time (`SavePeriod`), and a
            save that is due while the last one is being written is put off by an iteration.  The end is always saved.
        keep: 1 keeps only the newest file, 2 also its predecessor in case the newest is damaged.
    """

    def __init__(self, dirpath: str | Path, every: int | Literal["auto"] = "auto", keep: int = 2) -> None:
        check_last(every=every, keep=keep)
        self.path = Path(dirpath) / "last.ckpt"
        self.every = every
        self.keep = keep
        self.period = SavePeriod()
        self._saved_at = 0
        self._has_noted_period = False

    @property
    def first(self) -> int:
        """Return the first iteration that is saved."""
        return 1 if self.every == "auto" else self.every

    def describe(self) -> Saves:
        """Return what the saves of this launch cost, for the summary."""
        every = self.period.every if self.every == "auto" else self.every
        return {
            "every": every,
            "held_seconds": self.period.held_s,
            "share": self.period.share,
            "skipped": self.period.skipped,
        }

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Remove files that an interrupted write left behind."""
        if stage == "fit" and trainer.is_global_zero and self.path.parent.is_dir():
            for leftover in self.path.parent.glob("*.ckpt.*"):
                if leftover.suffix in LEFTOVERS:
                    remove_checkpoint(leftover)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record which iteration is already on disk."""
        self._saved_at = trainer.current_epoch
        self.period = SavePeriod()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raise the error of a write that failed."""
        if (writer := _get_writer(trainer)) is not None:
            writer.check()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save if the period ends with this iteration or training stops."""
        iterations = trainer.current_epoch + 1
        is_end = iterations == trainer.max_epochs or trainer.should_stop
        if is_end or self._is_due(trainer, iterations):
            self._save(trainer, iterations, wait=is_end)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save after a stop between two saves (``max_steps``)."""
        if trainer.current_epoch > self._saved_at:
            self._save(trainer, trainer.current_epoch, wait=True)

    def _is_due(self, trainer: Trainer, iterations: int) -> bool:
        if isinstance(self.every, int):
            return iterations % self.every == 0
        is_due = iterations - self._saved_at >= self.period.every
        writer = _get_writer(trainer)
        if is_due and writer is not None and writer.is_pending(str(self.path.absolute())):
            self.period.skipped += 1
            is_due = False
        # rank 0 decides: clocks and signals differ between ranks, and all ranks must save together
        return gather_objects([is_due or trainer.received_sigterm])[0]

    def _save(self, trainer: Trainer, iterations: int, *, wait: bool) -> None:
        began, num_since = time.perf_counter(), iterations - self._saved_at
        self._saved_at = iterations
        trainer.save_checkpoint(
            self.path, weights_only=False, storage_options={"keep": self.keep, "wait": wait}
        )
        writer = _get_writer(trainer)
        is_on_cpu = trainer.strategy.root_device.type == "cpu"
        core_s = writer.seconds.get(str(self.path.absolute()), 0.0) if writer and is_on_cpu else 0.0
        if num_since > 0:
            self.period.note_save(began, time.perf_counter(), num_since, core_s)
        if self.every == "auto" and self.period.line is not None and not self._has_noted_period and not wait:
            self._has_noted_period = True
            screen.note(self.period.line)


def choose_mode(monitor: str) -> Literal["max", "min"]:
    """Choose the better direction of a metric.

    >>> choose_mode("val/success"), choose_mode("val/data_loss")
    ('max', 'min')
    """
    return "min" if monitor in _LOWER_IS_BETTER else "max"


class BestCheckpoint(Checkpoint):
    """Callback that saves ``best.ckpt`` and a loadable export when the monitored metric does not fall.

    The checkpoint holds the weights and what their evaluation needs, but no optimizer.  The last iteration is always
    validated, so that a run of any length writes both.

    It must be listed before :class:`LastCheckpoint`: the last checkpoint then holds the best score, and a
    resumed run decides as the uninterrupted one would.  If the module is an `Agent`, its export replaces the folder
    ``hf/`` next to the checkpoint folder.

    Args:
        dirpath: the run's checkpoint folder.
        monitor: a metric that validation adds to ``pl_module.row`` or logs.  ``auto`` is ``val/success`` here; a config
            replaces it by the metric that judges the run.
        mode: ``max`` or ``min``; ``auto``: see `choose_mode`.  Ties take the later iteration; NaN is never better.
        keep: 1 keeps only the newest file, 2 also the previous best.
    """

    def __init__(
        self, dirpath: str | Path, monitor: str = "val/success", mode: str = "max", keep: int = 1
    ) -> None:
        check_best(mode=mode, keep=keep)
        self.path = Path(dirpath) / "best.ckpt"
        self.monitor = "val/success" if monitor == AUTO else monitor
        self.mode = choose_mode(self.monitor) if mode == AUTO else mode
        self.keep = keep
        self.best_score: float | None = None
        self.best_iteration: int | None = None
        self._was_validated = False

    @property
    def state_key(self) -> str:
        return f"BestCheckpoint[{self.monitor},{self.mode}]"

    @property
    def export_folder(self) -> Path:
        return self.path.parent.parent / "hf"

    def state_dict(self) -> dict[str, Any]:
        """Return the best score and the iteration at which it was measured."""
        return {"best_score": self.best_score, "best_iteration": self.best_iteration}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best score; discard it with a warning if its checkpoint is gone."""
        self.best_score = state_dict["best_score"]
        self.best_iteration = state_dict["best_iteration"]
        if self.best_iteration is not None and not gather_objects([has_checkpoint(self.path)])[0]:
            rank_zero_warn(f"{self.path} was deleted: the best checkpoint from now on is saved instead")
            self.best_score = self.best_iteration = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Finish or undo an export that a kill interrupted."""
        if stage == "fit" and trainer.is_global_zero:
            recover_folder(self.export_folder)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reset the validation flag; validate the last iteration, which may be the best."""
        self._was_validated = False
        if trainer.current_epoch + 1 == trainer.max_epochs:
            trainer.check_val_every_n_epoch = 1

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that this iteration's metrics include fresh validation scores."""
        self._was_validated = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save if the score did not fall."""
        score = self._get_score(trainer, pl_module)
        if score is None or not self._is_better(score):
            return
        self.best_score, self.best_iteration = score, trainer.current_epoch + 1
        states = {
            each.state_key: each.state_dict()
            for each in trainer.callbacks  # type: ignore[attr-defined]
            if not getattr(each, "only_for_resuming", False)
        }
        add = {"callbacks": {key: state for key, state in states.items() if state}}
        is_end = trainer.current_epoch + 1 == trainer.max_epochs or trainer.should_stop
        trainer.save_checkpoint(
            self.path,
            weights_only=True,
            storage_options={"keep": self.keep, "wait": is_end, "add": add},
        )
        export_policy(trainer, pl_module, self.export_folder, wait=is_end)

    def _get_score(self, trainer: Trainer, pl_module: LightningModule) -> float | None:
        """Return this iteration's value; None if it was not measured.

        Lightning's own table also holds older values, so it is read only after a validation in this iteration.
        """
        row = get_iteration_metrics(pl_module)
        if self.monitor in row:
            return float(row[self.monitor])
        if not self._was_validated:
            return None
        if self.monitor in trainer.callback_metrics:
            return float(trainer.callback_metrics[self.monitor])
        known = sorted(name for name in {*row, *trainer.callback_metrics} if name.startswith("val/"))
        raise ValueError(
            f"{type(self).__name__}.monitor={self.monitor} was not measured by validation; valid: {', '.join(known)}"
        )

    def _is_better(self, score: float) -> bool:
        if math.isnan(score) or self.best_score is None:
            return not math.isnan(score)
        return score >= self.best_score if self.mode == "max" else score <= self.best_score


class FinalExport(Callback):
    """Callback that exports the last weights of a run that chose no best ones.

    Args:
        folder: the folder of the export, ``hf/`` of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        savers = trainer.checkpoint_callbacks
        if not any(isinstance(each, BestCheckpoint) and each.best_iteration is not None for each in savers):
            export_policy(trainer, pl_module, self.folder, wait=True)
