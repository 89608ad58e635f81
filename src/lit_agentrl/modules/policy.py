"""Policy optimisation on played episodes as a LightningModule."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from lit_agentrl.batch import StepBatch, TrajectoryBatch
from lit_agentrl.distributed import max_over_ranks
from lit_agentrl.models.onednn import use_onednn_linears
from lit_agentrl.modules.base import AgentModule


class PolicyModule(AgentModule):
    """Optimises a policy on the trajectories that the rollout callback put into the batch."""

    def training_step(self, batch: StepBatch, batch_idx: int) -> None:
        started = time.perf_counter()
        if not batch.episodes and batch.trajectories is None:
            raise RuntimeError("the batch holds no trajectories: the rollout callback must run first")
        trajectories, columns = self._read_rows(batch)
        tensors = trajectories.to_dict() | columns
        if batch.recorded is not None:
            tensors = self._join_rows(batch.recorded, trajectories, columns)
        with use_onednn_linears(self.updater.networks.iterate_modules()):
            metrics = self.updater.update(
                tensors, self.make_loop(), iteration=batch.iteration,
                is_filtered=batch.num_kept_groups < batch.num_groups,
            )  # fmt: skip
        if "train/loss" in metrics:
            metrics["train/kept_group_share"] = batch.num_kept_groups / max(batch.num_groups, 1)
            metrics["time/update"] = time.perf_counter() - started
        self.row |= metrics

    def validation_step(self, batch: StepBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Add the outcomes of played episodes, or measure the objective on held-out data."""
        if batch.given is None:
            super().validation_step(batch, batch_idx, dataloader_idx)
            return
        started = time.perf_counter()
        trajectories, columns = self._read_rows(batch)
        measured = self.updater.measure(
            trajectories.to_dict() | columns, self.make_loop(), with_nll=batch.measures_nll
        )
        self.row |= {f"val/data_{name}": value for name, value in measured.items()}
        self.row["time/validate"] = self.row.get("time/validate", 0.0) + time.perf_counter() - started

    def _read_rows(self, batch: StepBatch) -> tuple[TrajectoryBatch, dict[str, Tensor]]:
        """Return the rows and the further columns of a batch, on this device."""
        trajectories = (batch.trajectories or TrajectoryBatch.make_empty()).to(self.device).trim()
        width = trajectories.tokens_BT.shape[1]
        columns = {name: column.to(self.device) for name, column in batch.columns.items()}
        columns = {n: column[:, :width] if n.endswith("_BT") else column for n, column in columns.items()}
        return trajectories, columns

    def _join_rows(
        self, recorded: StepBatch, played: TrajectoryBatch, columns: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the played rows joined with the recorded ones.

        If a filter has removed all played rows on all ranks, only the (empty) played rows are returned.
        """
        self.row |= recorded.given or {}
        has_played = bool(max_over_ranks(torch.tensor(float(played.num_rows), device=self.device)))
        if recorded.trajectories is None or not has_played:
            return played.to_dict() | columns
        rows = played.append(recorded.trajectories.to(self.device)).trim().to_dict()
        shape = rows["tokens_BT"].shape
        for name, column in columns.items():
            size = shape if name.endswith("_BT") else (shape[0], *column.shape[1:])
            rows[name] = column.new_zeros(size)
            rows[name][tuple(map(slice, column.shape))] = column
        return rows
