"""Policy optimisation as a LightningModule: what was played is trained on."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from lit_agentrl.batch import StepBatch, TrajectoryBatch
from lit_agentrl.distributed import max_over_ranks
from lit_agentrl.models.onednn import quick_linears
from lit_agentrl.modules.base import AgentModule


class PolicyModule(AgentModule):
    """Optimises a policy on the trajectories that the rollout callback put into the batch."""

    def training_step(self, batch: StepBatch, batch_idx: int) -> None:
        started = time.perf_counter()
        if not batch.episodes and batch.trajectories is None:
            raise RuntimeError("the batch holds no trajectories: the rollout callback must run first")
        trajectories = (batch.trajectories or TrajectoryBatch.make_empty()).to(self.device).trim()
        width = trajectories.tokens_BT.shape[1]
        columns = {name: column.to(self.device) for name, column in batch.columns.items()}
        columns = {n: column[:, :width] if n.endswith("_BT") else column for n, column in columns.items()}
        tensors = trajectories.to_dict() | columns
        if batch.recorded is not None:
            tensors = self._with(batch.recorded, trajectories, columns)
        with quick_linears(self.updater.networks.iterate_modules()):
            row = self.updater.update(
                tensors, self.lent(), iteration=batch.iteration,
                is_filtered=batch.num_kept_groups < batch.num_groups,
            )  # fmt: skip
        if "train/loss" in row:
            row["train/kept_group_share"] = batch.num_kept_groups / max(batch.num_groups, 1)
            row["time/update"] = time.perf_counter() - started
        self.row |= row

    def _with(
        self, read: StepBatch, played: TrajectoryBatch, columns: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """The rows with those that are read, unless a filter has left nothing of what all ranks have played."""
        self.row |= read.given or {}
        has_played = bool(max_over_ranks(torch.tensor(float(played.num_rows), device=self.device)))
        if read.trajectories is None or not has_played:
            return played.to_dict() | columns
        found = played.append(read.trajectories.to(self.device)).trim().to_dict()
        wide = found["tokens_BT"].shape
        for name, column in columns.items():
            size = wide if name.endswith("_BT") else (wide[0], *column.shape[1:])
            found[name] = column.new_zeros(size)
            found[name][tuple(map(slice, column.shape))] = column
        return found
