"""KL divergence of the policy from its start, measured in validation."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lit_agentrl.batch import StepBatch, TrajectoryBatch
from lit_agentrl.callbacks.options import check_start_kl
from lit_agentrl.distributed import sum_over_ranks
from lit_agentrl.models.lora import find_adapter_layers
from lit_agentrl.models.routers import Routing
from lit_agentrl.modules.contract import as_agent, as_trained
from lit_agentrl.rl.policy.kl import k3
from lit_agentrl.rollout.pack import pack
from lit_agentrl.strategies.hooks import get_hooks
from lit_agentrl.update.networks import Networks
from lit_agentrl.update.reference import make_frozen


class StartKL(Callback):
    """Callback that adds ``val/start_kl``: KL(policy || start), in nats per token.

    It is the mean of k3 over the action tokens of scored validation episodes.  The start is the weights with which
    the run began.  If a KL term keeps them, or adapters are trained, nothing more is stored; otherwise a copy of the
    network is stored.  The run's results do not change.

    Args:
        episodes: number of episodes to score for each validated game, on each rank.
        temperature: temperature of the log-probs; 0 means 1.

    Raises:
        ValueError: a value is out of range; or, in `setup`, the KL cannot be measured in this run.
    """

    def __init__(self, episodes: int = 32, temperature: float = 1.0) -> None:
        check_start_kl(episodes=episodes, temperature=temperature)
        self.episodes, self._temperature = episodes, temperature or 1.0
        self._networks: Networks | None = None
        self._sums = torch.zeros(2, dtype=torch.float64)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Store the current weights once, before a checkpoint replaces them."""
        if self._networks is not None:
            return
        network, updater = as_agent(pl_module).policy.network, as_trained(pl_module).updater
        if network is None:
            raise ValueError(
                "callbacks.start_kl: the policy has no network in this process; use callbacks/start_kl=none"
            )
        reference = updater.networks.reference if updater.reference.is_start else None
        if reference is None and get_hooks(trainer.strategy).is_sharded and not find_adapter_layers(network):
            raise ValueError(
                "callbacks.start_kl: the strategy shards the network, and no KL term keeps its start; use a KL term, "
                "such as algo/kl=loss_k3, or callbacks/start_kl=none"
            )
        self._networks = Networks(
            network, critic=None, reference=make_frozen(network, None) if reference is None else reference,
            settings=updater.settings, temperature=self._temperature, routing=Routing(),
        )  # fmt: skip

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._sums = torch.zeros(2, dtype=torch.float64)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: StepBatch, *_: int
    ) -> None:
        """Score some of the episodes under the policy and the start."""
        assert self._networks is not None, "setup() comes first"
        played = [episode for episode in batch.episodes if episode.num_action_tokens and not episode.failed]
        # a rank without episodes scores no rows, since scoring is a collective
        packed = pack(played[: self.episodes]) if played else TrajectoryBatch.make_empty()
        rows = packed.to(pl_module.device).trim().to_dict()
        with torch.no_grad(), trainer.precision_plugin.forward_context():
            logp_BT = self._networks.compute_logp(rows)
            ref_logp_BT = self._networks.compute_reference_logp(rows, get_hooks(trainer.strategy))
        is_action_BT = rows["is_action_BT"]
        kl_BT = k3(logp_BT=logp_BT.double(), ref_logp_BT=ref_logp_BT.double())
        self._sums += torch.stack([kl_BT[is_action_BT].sum(), is_action_BT.sum().double()]).cpu()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the mean over all ranks."""
        total, count = sum_over_ranks(self._sums.to(pl_module.device)).tolist()
        if count:
            as_agent(pl_module).row["val/start_kl"] = total / count
