"""The base of all trained modules: metrics, evaluation, optimizers, checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden

from lit_agentrl.batch import StepBatch
from lit_agentrl.distributed import StrategyHooks
from lit_agentrl.models.adapters import add_base, check_base, remove_base
from lit_agentrl.models.heads import ScoreHead
from lit_agentrl.models.policy import Policy
from lit_agentrl.report.episodes import EpisodeMetrics, compute_evaluation_row
from lit_agentrl.rl.objective import Objective, coefficients, set_coefficients
from lit_agentrl.strategies.hooks import get_hooks
from lit_agentrl.update.critic import Critic
from lit_agentrl.update.progress import Loop
from lit_agentrl.update.reference import Reference
from lit_agentrl.update.reference_cache import ReferenceCache
from lit_agentrl.update.settings import OptimSettings, UpdateSettings
from lit_agentrl.update.updater import Updater

_log = logging.getLogger(__name__)


class AgentModule(LightningModule):
    """A policy that an `Updater` trains towards an objective; subclasses define the training data.

    Args:
        policy: Network and tokenizer; the network is trained in place.
        objective: The training objective.
        update: Passes, minibatches, micro-batches, clipping.
        optim: Optimizer and schedule.
        critic: Builds the critic from the policy; None for no critic.
        temperature: Sampling temperature of the training data, at which log-probs are computed.
        seed: Run seed.
        levels: Chance and oracle success of each validated game, for ``val/normalised``.
        reference: See `Updater`.
        is_reference_given: See `Updater`.
        reference_cache: See `Updater`.
        head: Head of a reward model, trained with the network below it.

    Attributes:
        row: Metrics of the current iteration, emptied by the iteration log.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        objective: Objective,
        update: UpdateSettings,
        optim: OptimSettings,
        critic: Callable[[Policy], Critic] | None = None,
        temperature: float = 1.0,
        seed: int = 0,
        levels: dict[str, tuple[float, float]] | None = None,
        reference: Reference | None = None,
        is_reference_given: bool = False,
        reference_cache: ReferenceCache | None = None,
        head: ScoreHead | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.policy = policy
        self.network = policy.network
        self.critic = critic(policy) if critic is not None else None
        self.head = head
        self.objective = objective
        self.optim = optim
        # the updater is no module, so a frozen reference is not part of parameters, state_dict and checkpoints
        self.updater = Updater(
            objective, update, policy, critic=self.critic, temperature=temperature, seed=seed,
            reference=reference, is_reference_given=is_reference_given, reference_cache=reference_cache, head=head,
        )  # fmt: skip
        # a moving reference is part of all three
        self.reference = self.updater.networks.reference if self.updater.reference.moves else None
        self.levels = levels or {}
        self.row: dict[str, float] = {}
        self.last_row: dict[str, float] = {}
        self.eval_metrics: dict[str, EpisodeMetrics] = {}
        self._hooks = StrategyHooks()

    @property
    def version(self) -> int:
        """The version of the weights: the number of optimizer steps taken."""
        return self.updater.progress.version

    # ------------------------------------------------------------------ set-up
    def setup(self, stage: str) -> None:
        """Connect to the strategy, and refuse unsupported options.

        Precisions that scale gradients are refused, since gradients are clipped and checked unscaled.

        Raises:
            ValueError: If ``trainer.precision=16-mixed``, if there are lanes with several processes or on a GPU, or
                if a sharded critic has slow weights.
        """
        if getattr(self.trainer.precision_plugin, "scaler", None) is not None:
            raise ValueError(
                "trainer.precision=16-mixed scales gradients, which is not supported; use bf16-mixed"
            )
        self._hooks = get_hooks(self.trainer.strategy)
        if (lanes := self.updater.settings.lanes) > 1:
            device = self.trainer.strategy.root_device.type
            if device != "cpu" or self.trainer.world_size > 1 or self._hooks.is_sharded:
                raise ValueError(
                    f"update.lanes={lanes} computes micro-batches in threads of one process on a CPU; set it to 1 on "
                    "GPUs and where there are several processes (strategy, trainer.devices)"
                )
        if self._hooks.is_sharded and self.critic is not None and self.critic.slow is not None:
            raise ValueError(
                "critic.target_rate below 1 keeps a whole copy of the weights, which the strategy shards; set it to 1, "
                "or use strategy=ddp or single"
            )

    def configure_model(self) -> None:
        """Let the strategy shard the networks; Lightning calls it before every fit and evaluation."""
        self._hooks.shard(self.updater.networks.trained, self.updater.networks.frozen)

    def configure_optimizers(self) -> Any:
        if not self.objective.trains:
            return []
        iterations = self.trainer.max_epochs or 1
        parameters = _list_trainable(self.network) + ([] if self.head is None else _list_trainable(self.head))
        built = [self.optim.build(parameters, iterations)]
        if self.critic is not None:
            built.append(self.critic.optim.build(_list_trainable(self.critic), iterations))
        return [{"optimizer": optimizer, "lr_scheduler": {"scheduler": s}} for optimizer, s in built]

    def make_loop(self) -> Loop:
        """Return the trainer's functions and optimizers that an update needs."""
        optimizers, schedules = self.optimizers(), self.lr_schedulers()
        return Loop(
            device=self.device, backward=self.manual_backward, hooks=self._hooks,
            is_watched=self._is_watched(self.trainer),
            optimizers=optimizers if isinstance(optimizers, list) else [optimizers],  # type: ignore[arg-type,list-item]
            schedules=schedules if isinstance(schedules, list) else [schedules],  # type: ignore[list-item]
        )  # fmt: skip

    def _is_watched(self, trainer: Any) -> bool:
        """Return whether this module, or a callback, has a hook on the backward pass."""
        hooks = ("on_before_backward", "on_after_backward")
        return any(is_overridden(hook, self, LightningModule) for hook in hooks) or any(
            is_overridden(hook, callback, Callback) for callback in trainer.callbacks for hook in hooks
        )

    def on_train_batch_end(self, *_: Any) -> None:
        """Free the gradients, which would take the memory of the weights beside the next rollout."""
        for optimizer in self.trainer.optimizers:
            optimizer.zero_grad()

    # ------------------------------------------------------------------ evaluation
    def on_validation_epoch_start(self) -> None:
        self.eval_metrics = {}

    def validation_step(self, batch: StepBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        for game in sorted({outcome.task_name for outcome in batch.outcomes}):
            # every rank holds the outcomes of all ranks
            new = EpisodeMetrics(is_shared=False).to(self.device)
            metrics = self.eval_metrics.setdefault(game, new)
            metrics.update([o for o in batch.outcomes if o.task_name == game])

    def on_validation_epoch_end(self) -> None:
        self._log_evaluation("val")

    def on_test_epoch_start(self) -> None:
        self.eval_metrics = {}

    def test_step(self, batch: StepBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.validation_step(batch, batch_idx, dataloader_idx)

    def on_test_epoch_end(self) -> None:
        self._log_evaluation("test")

    def _log_evaluation(self, split: str) -> None:
        if not self.eval_metrics:  # no game was played: held-out data were measured
            return
        self.row |= compute_evaluation_row(split, self.eval_metrics, self.levels)
        success = self.row.get(f"{split}/success")
        if success is not None:
            self.log(f"{split}/success", success, logger=False, batch_size=1, sync_dist=False)

    # ------------------------------------------------------------------ saving
    @property
    def _max_epochs(self) -> int | None:
        """Iterations of the run; None if the module is used without a Trainer."""
        try:
            return self.trainer.max_epochs
        except RuntimeError:  # Lightning raises it for a module without a Trainer
            return None

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["policy"] = {
            "version": self.version,
            "bad_steps": self.updater.progress.bad_steps,
            "name": self.policy.name,
            "coefficients": coefficients(self.objective),
            "adapters": self.policy.adapters,
            "reference": self.updater.reference.state_dict(),
            "max_epochs": self._max_epochs,
        }
        if self.policy.adapters is not None:
            checkpoint["state_dict"] = remove_base(checkpoint["state_dict"], self)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse checkpoints of other programs before their weights are read.

        Log a warning if the run has another length now and the schedule depends on it, since the learning rate jumps.

        Raises:
            ValueError: If the checkpoint was not written by this trainer, or holds adapters of another base.
        """
        if "policy" not in checkpoint:
            raise ValueError(
                "this checkpoint was not written by lit_agentrl; give a run folder or its .ckpt file"
            )
        saved = checkpoint["policy"]
        check_base(saved.get("adapters"), self.policy.adapters)
        if self.policy.adapters is not None:
            checkpoint["state_dict"] = add_base(checkpoint["state_dict"], self)
        self.updater.reference.load_state_dict(saved.get("reference", {}))
        # drop a moving reference that this module lacks, as in an evaluation; a sharded checkpoint has no weights here
        if self.reference is None and "state_dict" in checkpoint:
            entries = checkpoint["state_dict"].items()
            checkpoint["state_dict"] = {n: value for n, value in entries if not n.startswith("reference.")}
        before, now = saved.get("max_epochs"), self._max_epochs
        if None not in (before, now) and now != before and self.optim.depends_on_length:
            _log.warning(
                "optim.schedule=%s is laid over trainer.max_epochs: continued with %s instead of %s, the learning rate "
                "jumps, and the run is not the one that %s iterations from the start would have been",
                self.optim.schedule, now, before, now,
            )  # fmt: skip
        self.updater.progress.version = saved["version"]
        self.updater.progress.bad_steps = saved["bad_steps"]
        set_coefficients(self.objective, saved.get("coefficients", {}))

    @property
    def exports_network_alone(self) -> bool:
        """Return whether the export depends on no other changing weights than the network's."""
        return type(self).export is AgentModule.export

    def export(self, folder: str | Path, network: Any = None) -> None:
        """Write the policy as a folder that ``AutoModelForCausalLM.from_pretrained`` loads.

        Args:
            folder: Folder to write to.
            network: The policy's complete network, if this rank holds only a shard of it.
        """
        (self.policy if network is None else replace(self.policy, network=network)).save(folder)


def _list_trainable(network: Any) -> list[Any]:
    return [parameter for parameter in network.parameters() if parameter.requires_grad]
