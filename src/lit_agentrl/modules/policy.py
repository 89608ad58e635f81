"""Policy optimisation as one LightningModule whose training step reads like the paper."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lit_agentrl import seeds
from lit_agentrl.batch import StepBatch, TrajectoryBatch
from lit_agentrl.distributed import gather_rows, max_over_ranks, mean_over_ranks, sum_over_ranks
from lit_agentrl.models.adapters import check_base, with_base, without_base
from lit_agentrl.models.lora import adapters_off
from lit_agentrl.models.onednn import quick_linears
from lit_agentrl.models.policy import Policy
from lit_agentrl.modules.base import Tensors
from lit_agentrl.modules.optimise import SteppingModule
from lit_agentrl.rl.algorithm import Algorithm, add_metrics, metric_values, shape_rewards
from lit_agentrl.rl.binding import bind, tensor_names
from lit_agentrl.rl.kl import old_kl
from lit_agentrl.update.critic import Critic, explained
from lit_agentrl.update.estimates import kept_tokens
from lit_agentrl.update.microbatches import kept_rows
from lit_agentrl.update.reference import frozen
from lit_agentrl.update.scoring import log, value_rows
from lit_agentrl.update.settings import OptimSettings, UpdateSettings


class PolicyModule(SteppingModule):
    """Optimises a policy on the trajectories that the rollout callback put into the batch.

    Args:
        policy: network and tokenizer; the network is trained in place.
        algorithm: the mix of rules.
        update: passes, minibatches, micro-batches, clipping.
        optim: optimizer and schedule.
        critic: makes the critic from the policy; None without one.
        temperature: sampling temperature of the trajectories (log-probs are taken at it).
        seed: run seed.
        levels: see `EvaluatedModule`.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        algorithm: Algorithm,
        update: UpdateSettings,
        optim: OptimSettings,
        temperature: float = 1.0,
        seed: int = 0,
        critic: Callable[[Policy], Critic] | None = None,
        levels: dict[str, tuple[float, float]] | None = None,
    ) -> None:
        super().__init__(
            policy, algorithm=algorithm, update=update, critic=critic(policy) if critic is not None else None,
            temperature=temperature, levels=levels,
        )  # fmt: skip
        self.optim = optim
        self.seed = seed
        # a tuple keeps the frozen copy out of parameters(), state_dict() and checkpoints
        self._reference = (frozen(self.network, algorithm),) if algorithm.needs_reference else ()

    @property
    def tokenizer(self) -> Any:
        return self.policy.tokenizer

    # ------------------------------------------------------------------ training
    def training_step(self, batch: StepBatch, batch_idx: int) -> None:
        started = time.perf_counter()
        if not batch.episodes and batch.trajectories is None:
            raise RuntimeError("the batch holds no trajectories: the rollout callback must run first")
        trajectories = (batch.trajectories or TrajectoryBatch.empty()).to(self.device).trimmed()
        if self._is_empty(trajectories.num_rows == 0, "filter kept no group"):
            return
        networks = (self, *self._reference)
        with quick_linears(module for network in networks for module in network.modules()):
            self._update(trajectories, batch, started)

    def _update(self, trajectories: TrajectoryBatch, batch: StepBatch, started: float) -> None:
        tensors = self._shaped(self._with_old_scores(trajectories))
        tensors |= self._advantages(tensors)
        tensors |= self._kept_tokens(tensors)
        if (selected := self._selected(tensors)) is None:
            return
        tensors = selected
        units = "group_B" if self.algorithm.needs_fresh_advantages else "trajectory_B"
        if self._is_too_little(tensors[units], batch):
            return
        self._adapt_entropy(tensors)
        is_warming_up = self.critic is not None and batch.iteration < self.critic.warmup_iterations
        totals: Tensors = {}
        for epoch in range(self.update.epochs):
            generator = torch.Generator().manual_seed(
                seeds.key(self.seed, "minibatch", batch.iteration, epoch)
            )
            tensors, parts = self._minibatches(tensors, units, generator)
            for step, rows in enumerate(parts):
                is_fresh = epoch == 0 and step == 0
                totals = add_metrics(
                    totals, self._optimise(tensors, rows.to(self.device), is_fresh, is_warming_up)
                )
        if self.critic is not None:
            self.row["critic/explained_variance"] = explained(tensors)
        self._adapt_kl(tensors, totals)
        self._log_update(totals, batch, time.perf_counter() - started)
        self._step_schedules()

    def _with_old_scores(self, trajectories: TrajectoryBatch) -> Tensors:
        """All tensors that parts may ask for; old log-probs are the sampler's own (no second forward)."""
        if bool(trajectories.is_action_BT[:, :1].any()):
            raise ValueError("the first token of a row is an action: nothing precedes it that could score it")
        tensors = trajectories.tensors()
        tensors["old_logp_BT"] = trajectories.sampler_logp_BT
        if self.algorithm.correction is not None:
            tensors["old_logp_BT"] = self._scored(self.network, tensors)
        if self._reference:
            with self._in_use(self._reference[0]) as reference, adapters_off(reference):
                tensors["ref_logp_BT"] = self._scored(reference, tensors)
        if self.critic is not None:
            values_BT = value_rows(
                self.critic, self.network, tensors, form=self._form(),
                tokens_per_microbatch=self.update.tokens_per_microbatch,
            )  # fmt: skip
            tensors["value_BT"] = tensors["old_value_BT"] = values_BT
        return tensors

    def _shaped(self, tensors: Tensors) -> Tensors:
        return {**tensors, **shape_rewards(self.algorithm, tensors=tensors)}

    def _kept_tokens(self, tensors: Tensors) -> Tensors:
        found, share = kept_tokens(self.algorithm, tensors)
        if found:
            self.row["train/kept_token_share"] = share
        return found

    def _adapt_entropy(self, tensors: Tensors) -> None:
        """Tells the entropy term what entropy the iteration's tokens were sampled with."""
        entropy = mean_over_ranks(tensors["sampler_entropy_BT"], tensors["is_action_BT"])
        self.row |= self.algorithm.before_update(entropy=entropy)

    def _adapt_kl(self, tensors: Tensors, totals: Tensors) -> None:
        """Tells the controller of the KL coefficient what KL the iteration led to."""
        if (term := self.algorithm.kl) is None:
            return
        is_action_BT = tensors["is_action_BT"]
        if term.measure in totals:
            total, count = sum_over_ranks(totals[term.measure]).tolist()
            kl = total / max(count, 1.0)
        else:  # of the policy after the update
            names = {"old_logp_BT": tensors["old_logp_BT"], "logp_BT": self._scored(self.network, tensors)}
            kl = mean_over_ranks(old_kl(**names, is_action_BT=is_action_BT), is_action_BT)
            self.row[f"train/{term.measure}"] = kl
        num_tokens = int(sum_over_ranks(is_action_BT.sum()))
        self.row |= self.algorithm.after_update(kl=kl, num_tokens=num_tokens)

    def _selected(self, tensors: Tensors) -> Tensors | None:
        """The rows to train on, chosen among those of all ranks; None where none is left."""
        names = {*tensor_names(self.algorithm.rows), "trajectory_B"}
        everyone, mine = gather_rows({name: tensors[name] for name in names}, tensors["trajectory_B"])
        keep_B: Tensor = bind(self.algorithm.rows, everyone)
        self.row["train/kept_row_share"] = float(keep_B.float().mean())
        if self._is_empty(not bool(keep_B.any()), "algo.rows kept no row"):
            return None
        among = (everyone["trajectory_B"], keep_B)
        return kept_rows(tensors, keep_B[mine], at_least=self.update.minibatches, among=among)

    def _is_too_little(self, unit_B: Tensor, batch: StepBatch) -> bool:
        """Whether a filter has left less than every minibatch needs; without one, that is an error of the config."""
        count = int(sum_over_ranks(torch.tensor(len(torch.unique(unit_B)), device=self.device)))
        is_filtered = batch.num_kept_groups < batch.num_groups
        return self._is_empty(
            is_filtered and count < self.update.minibatches,
            f"filter left too few trajectories for update.minibatches={self.update.minibatches}",
        )

    def _log_update(self, totals: Tensors, batch: StepBatch, seconds: float) -> None:
        loss = float(sum_over_ranks(totals.pop("loss")[0]))
        totals = {
            n: max_over_ranks(v) if n.endswith("_max") else sum_over_ranks(v) for n, v in totals.items()
        }
        steps = self.update.epochs * self.update.minibatches
        for name, value in metric_values(totals).items():
            self.row[f"critic/{name[7:]}" if name.startswith("critic_") else f"train/{name}"] = value
        self.row |= {
            "train/loss": loss / steps,
            "train/lr": float(self._optimizers()[0].param_groups[0]["lr"]),
            "train/kept_group_share": batch.num_kept_groups / max(batch.num_groups, 1),
            "time/update": seconds,
        }

    # ------------------------------------------------------------------ set-up and saving
    @property
    def frozen_networks(self) -> Sequence[nn.Module]:
        return self._reference

    def configure_optimizers(self) -> Any:
        parameters = [p for p in self.network.parameters() if p.requires_grad]
        iterations = self.trainer.max_epochs or 1
        built = [self.optim.build(parameters, iterations)]
        if self.critic is not None:
            of_critic = [p for p in self.critic.parameters() if p.requires_grad]
            built.append(self.critic.optim.build(of_critic, iterations))
        return [{"optimizer": optimizer, "lr_scheduler": {"scheduler": s}} for optimizer, s in built]

    @property
    def _max_epochs(self) -> int | None:
        """Iterations of the run; None where the module is used by itself."""
        try:
            return self.trainer.max_epochs
        except RuntimeError:  # Lightning's, of a module without a Trainer
            return None

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["policy"] = {
            "version": self.version,
            "bad_steps": self._bad_steps,
            "name": self.policy.name,
            "coefficients": self.algorithm.state_dict(),
            "adapters": self.policy.adapters,
            "max_epochs": self._max_epochs,
        }
        if self.policy.adapters is not None:
            checkpoint["state_dict"] = without_base(checkpoint["state_dict"], self)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse checkpoints of other programs before their weights are touched.

        A longer run under a schedule that is laid over the whole run is told: its learning rate jumps.

        Raises:
            ValueError: the checkpoint was not written by this trainer, or holds adapters of another base.
        """
        if "policy" not in checkpoint:
            raise ValueError(
                "this checkpoint was not written by lit_agentrl; give a run folder or its .ckpt file"
            )
        check_base(checkpoint["policy"].get("adapters"), self.policy.adapters)
        if self.policy.adapters is not None:
            checkpoint["state_dict"] = with_base(checkpoint["state_dict"], self)
        before, now = checkpoint["policy"].get("max_epochs"), self._max_epochs
        if None not in (before, now) and now != before and self.optim.depends_on_length:
            log.warning(
                "optim.schedule=%s is laid over trainer.max_epochs: continued with %s instead of %s, the learning rate "
                "jumps, and the run is not the one that %s iterations from the start would have been",
                self.optim.schedule, now, before, now,
            )  # fmt: skip
        self.version = checkpoint["policy"]["version"]
        self._bad_steps = checkpoint["policy"]["bad_steps"]
        self.algorithm.load_state_dict(checkpoint["policy"].get("coefficients", {}))

    def export(self, folder: str | Path, network: Any = None) -> None:
        """Write the policy as a folder that ``AutoModelForCausalLM.from_pretrained`` loads.

        Args:
            folder: to write to.
            network: the policy's network put together again, where this rank holds a share of it alone.
        """
        (self.policy if network is None else replace(self.policy, network=network)).save(folder)
