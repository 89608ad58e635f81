"""What every trained module shares: the row of metrics of an iteration, and evaluation by played episodes."""

from __future__ import annotations

from lightning.pytorch import LightningModule

from lit_agentrl.batch import StepBatch
from lit_agentrl.report.episodes import EpisodeMetrics, evaluation_row


class EvaluatedModule(LightningModule):
    """Gathers the episodes that the rollout callback played on ``val`` or ``test`` into metrics.

    Args:
        levels: chance and oracle success of each validated game, for ``val/normalised``.

    Attributes:
        row: metrics of the iteration under way, emptied by the iteration log.
    """

    def __init__(self, levels: dict[str, tuple[float, float]] | None = None) -> None:
        super().__init__()
        self.levels = levels or {}
        self.row: dict[str, float] = {}
        self.last_row: dict[str, float] = {}
        self.eval_metrics: dict[str, EpisodeMetrics] = {}

    def on_validation_epoch_start(self) -> None:
        self.eval_metrics = {}

    def validation_step(self, batch: StepBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        for episode_task in sorted({outcome.task_name for outcome in batch.outcomes}):
            # every rank holds the outcomes of all
            new = EpisodeMetrics(is_shared=False).to(self.device)
            metrics = self.eval_metrics.setdefault(episode_task, new)
            metrics.update([each for each in batch.outcomes if each.task_name == episode_task])

    def on_validation_epoch_end(self) -> None:
        self._log_evaluation("val")

    def on_test_epoch_start(self) -> None:
        self.eval_metrics = {}

    def test_step(self, batch: StepBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.validation_step(batch, batch_idx, dataloader_idx)

    def on_test_epoch_end(self) -> None:
        self._log_evaluation("test")

    def _log_evaluation(self, split: str) -> None:
        self.row |= evaluation_row(split, self.eval_metrics, self.levels)
        success = self.row.get(f"{split}/success")
        if success is not None:
            self.log(f"{split}/success", success, logger=False, batch_size=1, sync_dist=False)
