"""Lightning's side of rollouts: when batches are filled, with which network, and what checkpoints keep."""

from __future__ import annotations

import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lit_agentrl import seeds
from lit_agentrl.batch import StepBatch
from lit_agentrl.distributed import StrategyDoors, rank
from lit_agentrl.episode import Outcome
from lit_agentrl.rollout.ahead import staleness
from lit_agentrl.rollout.collector import Collector
from lit_agentrl.rollout.evaluation import Evaluation
from lit_agentrl.rollout.players import Players
from lit_agentrl.strategies.doors import doors_of, require_whole_weights

_AHEAD = "played_ahead"  # of a checkpoint


class RolloutCallback(Callback):
    """Plays the episodes of every batch before the module sees it.

    Args:
        collector: fills the batches of training.
        players: play episodes.
        val, test: how evaluations are played; ``test`` may be exchanged.
    """

    def __init__(self, collector: Collector, players: Players, *, val: Evaluation, test: Evaluation) -> None:
        self.settings = collector.settings
        self.test = test
        self.val_outcomes: list[Outcome] = []  # of all episodes of the last validation, for reports
        self.test_outcomes: list[Outcome] = []
        self._collector = collector
        self._players = players
        self._val = val
        self._restored: dict[str, Any] | None = None
        self._doors = StrategyDoors()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Build the engine around the module's own network, which Lightning moves to its device afterwards."""
        self._doors = doors_of(trainer.strategy)
        self._collector.setup(trainer.strategy.root_device)
        if self._players.have_a_worker:
            require_whole_weights(trainer.strategy)
        network: Any = pl_module.network
        self._players.open(network, trainer.precision_plugin.forward_context, self._doors)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        last = None if trainer.max_epochs in (None, -1) else trainer.max_epochs
        self._players.start(last=last, iteration=trainer.current_epoch, state=self._restored)
        self._restored = None

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._players.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        trainer.strategy.on_exception(exception)  # tells other processes, before a game takes its time to close
        self._players.close()

    # ------------------------------------------------------------------ checkpoints
    def state_dict(self) -> dict[str, Any]:
        """What reward parts and the structure have learnt."""
        return self._collector.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""
        self._collector.load_state_dict(state_dict)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if (state := self._players.state_dict()) is not None:
            checkpoint[_AHEAD] = state

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._restored = checkpoint.get(_AHEAD)

    # ------------------------------------------------------------------ batches
    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: StepBatch, batch_idx: int
    ) -> None:
        # dropout and whatever else draws from the global generator is keyed like everything else
        torch.manual_seed(seeds.key(self._collector.rules.seed, "global", batch.iteration, rank()))
        version, row = _version(pl_module), _row(pl_module)
        row |= self._collector.collect(
            batch, lambda wave: self._players.play_training(wave, version), device=pl_module.device
        )
        if self._players.are_ahead:
            row["train/staleness"] = staleness(batch.trajectories, version, pl_module.device)
        self._players.update_begins(version, trainer.current_epoch)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: StepBatch, batch_idx: int
    ) -> None:
        self._players.update_ends()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.val_outcomes = []

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: StepBatch, *where: int
    ) -> None:
        started, row = time.perf_counter(), _row(pl_module)
        self.val_outcomes += self._evaluate(self._val, pl_module, batch)
        row["time/validate"] = row.get("time/validate", 0.0) + time.perf_counter() - started

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.test_outcomes = []

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: StepBatch, *where: int
    ) -> None:
        self.test_outcomes += self._evaluate(self.test, pl_module, batch)

    def _evaluate(self, how: Evaluation, pl_module: LightningModule, batch: StepBatch) -> list[Outcome]:
        version = _version(pl_module)
        how.collect(
            batch, lambda wave: self._players.play(wave, version),
            max_failed_share=self.settings.max_failed_share,
        )  # fmt: skip
        return batch.outcomes


def _version(pl_module: LightningModule) -> int:
    return int(getattr(pl_module, "version", 0))


def _row(pl_module: LightningModule) -> dict[str, float]:
    return pl_module.row  # type: ignore[return-value]
