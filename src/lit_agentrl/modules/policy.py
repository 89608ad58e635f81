"""Policy optimisation as a LightningModule: what was played is trained on."""

from __future__ import annotations

import time

from lit_agentrl.batch import StepBatch, TrajectoryBatch
from lit_agentrl.models.onednn import quick_linears
from lit_agentrl.modules.base import AgentModule


class PolicyModule(AgentModule):
    """Optimises a policy on the trajectories that the rollout callback put into the batch."""

    def training_step(self, batch: StepBatch, batch_idx: int) -> None:
        started = time.perf_counter()
        if not batch.episodes and batch.trajectories is None:
            raise RuntimeError("the batch holds no trajectories: the rollout callback must run first")
        trajectories = (batch.trajectories or TrajectoryBatch.empty()).to(self.device).trimmed()
        width = trajectories.tokens_BT.shape[1]
        columns = {name: column.to(self.device) for name, column in batch.columns.items()}
        beside = {n: column[:, :width] if n.endswith("_BT") else column for n, column in columns.items()}
        with quick_linears(self.updater.networks.modules()):
            row = self.updater.update(
                trajectories.tensors() | beside, self.lent(), iteration=batch.iteration,
                is_filtered=batch.num_kept_groups < batch.num_groups,
            )  # fmt: skip
        if "train/loss" in row:
            row["train/kept_group_share"] = batch.num_kept_groups / max(batch.num_groups, 1)
            row["time/update"] = time.perf_counter() - started
        self.row |= row
