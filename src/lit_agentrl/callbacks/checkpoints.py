"""Callbacks that save checkpoints: the last one, and the best one with its loadable export."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn

from lit_agentrl.callbacks.iteration_log import get_iteration_metrics
from lit_agentrl.checks import require, require_one_of, require_whole
from lit_agentrl.distributed import gather_objects
from lit_agentrl.files import recover_folder, replace_folder
from lit_agentrl.modules.contract import Agent
from lit_agentrl.strategies.checkpoint_io import (
    LEFTOVERS,
    CheckpointError,
    has_checkpoint,
    remove_checkpoint,
)
from lit_agentrl.strategies.hooks import get_hooks


def _check_keep(keep: int) -> int:
    require(keep in (1, 2), "keep", keep, "1 (newest) or 2 (and its predecessor)")
    return keep


class LastCheckpoint(Checkpoint):
    """Callback that saves ``last.ckpt``, from which ``resume=`` continues, after an iteration.

    Args:
        dirpath: the run's checkpoint folder.
        every: iterations between saves; the end of training is always saved.
        keep: 1 keeps only the newest file, 2 also its predecessor in case the newest is damaged.
    """

    def __init__(self, dirpath: str | Path, every: int = 1, keep: int = 2) -> None:
        require_whole("every", every, 1)
        self.path = Path(dirpath) / "last.ckpt"
        self.every = every
        self.keep = _check_keep(keep)
        self._saved_at = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Remove files that an interrupted write left behind."""
        if stage == "fit" and trainer.is_global_zero and self.path.parent.is_dir():
            for leftover in self.path.parent.glob("*.ckpt.*"):
                if leftover.suffix in LEFTOVERS:
                    remove_checkpoint(leftover)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record which iteration is already on disk."""
        self._saved_at = trainer.current_epoch

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save if the period ends with this iteration or training stops."""
        iterations = trainer.current_epoch + 1
        if iterations % self.every == 0 or iterations == trainer.max_epochs or trainer.should_stop:
            self._save(trainer, iterations)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save after a stop between two saves (``max_steps``)."""
        if trainer.current_epoch > self._saved_at:
            self._save(trainer, trainer.current_epoch)

    def _save(self, trainer: Trainer, iterations: int) -> None:
        self._saved_at = iterations
        trainer.save_checkpoint(self.path, weights_only=False, storage_options={"keep": self.keep})


class BestCheckpoint(Checkpoint):
    """Callback that saves ``best.ckpt`` and a loadable export when the monitored metric improves.

    The last iteration is always validated, so that a run of any length writes both.

    It must be listed before :class:`LastCheckpoint`: the last checkpoint then holds the best score, and a
    resumed run decides as the uninterrupted one would.  If the module is an `Agent`, rank zero calls its export,
    which replaces the folder ``hf/`` next to the checkpoint folder.

    Args:
        dirpath: the run's checkpoint folder.
        monitor: a metric that validation adds to ``pl_module.row`` or logs.
        mode: ``max`` or ``min``.  Ties keep the earlier iteration; NaN is never better.
        keep: 1 keeps only the newest file, 2 also the previous best.
    """

    def __init__(
        self, dirpath: str | Path, monitor: str = "val/success", mode: str = "max", keep: int = 1
    ) -> None:
        require_one_of("mode", mode, ("max", "min"))
        self.path = Path(dirpath) / "best.ckpt"
        self.monitor = monitor
        self.mode = mode
        self.keep = _check_keep(keep)
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
        """Save if the score improved."""
        score = self._score(trainer, pl_module)
        if score is None or not self._is_better(score):
            return
        self.best_score, self.best_iteration = score, trainer.current_epoch + 1
        trainer.save_checkpoint(self.path, weights_only=False, storage_options={"keep": self.keep})
        hooks = get_hooks(trainer.strategy)
        if isinstance(pl_module, Agent) and pl_module.policy.network is not None:  # None: behind an API
            network = hooks.unshard_on_rank_zero(pl_module.policy.network)  # a collective
            if trainer.is_global_zero:
                self._export(partial(pl_module.export, network=network))
        hooks.barrier("export")

    def _export(self, write: Callable[[str], None]) -> None:
        try:
            replace_folder(self.export_folder, write)
        except OSError as error:
            reason = error.strerror or error
            folder = self.export_folder
            raise CheckpointError(
                f"cannot write {folder}: {reason}; its earlier contents are unchanged"
            ) from error

    def _score(self, trainer: Trainer, pl_module: LightningModule) -> float | None:
        """Return this iteration's value; None if it was not measured.

        Lightning's own table also holds older values, hence the check.
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
        return score > self.best_score if self.mode == "max" else score < self.best_score
