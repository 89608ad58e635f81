"""Policy optimisation as one LightningModule whose training step reads like the paper."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn

from lit_agentrl import seeds
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.models.lora import adapters_off
from lit_agentrl.models.policy import Policy
from lit_agentrl.modules.adapters import check_base, with_base, without_base
from lit_agentrl.modules.collective import (
    gather_rows,
    max_over_ranks,
    mean_over_ranks,
    sum_over_ranks,
    world_size,
)
from lit_agentrl.modules.critic import Critic, explained
from lit_agentrl.modules.evaluated import EvaluatedModule
from lit_agentrl.modules.microbatches import kept_rows, micro_batched, split_by_tokens, split_trajectories
from lit_agentrl.modules.reference import frozen
from lit_agentrl.modules.settings import OptimSettings, UpdateSettings
from lit_agentrl.rl.advantages import Advantage
from lit_agentrl.rl.aggregation import Weights, divide
from lit_agentrl.rl.algorithm import (
    Algorithm,
    add_metrics,
    bind,
    metric_values,
    policy_loss,
    shape_rewards,
    tensor_names,
)
from lit_agentrl.rl.kl import old_kl
from lit_agentrl.types import StepBatch, TrajectoryBatch

Tensors = dict[str, Tensor]


class PolicyModule(EvaluatedModule):
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
        super().__init__(levels)
        self.automatic_optimization = False
        self.policy = policy
        self.network = policy.network
        self.algorithm = algorithm
        self.critic = critic(policy) if critic is not None else None
        self.update = update
        self.optim = optim
        self.temperature = temperature
        self.seed = seed
        self.version = 0  # optimizer steps taken: the version of the weights
        self._bad_steps = 0
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
        if self._is_empty(batch.trajectories is None, "filter kept no group"):
            return
        assert batch.trajectories is not None
        trajectories = batch.trajectories.to(self.device).trimmed()
        tensors = self._shaped(self._with_old_scores(trajectories))
        tensors |= self._advantages(tensors)
        tensors |= self._kept_tokens(tensors)
        if (selected := self._selected(tensors)) is None:
            return
        tensors = selected
        self._adapt_entropy(tensors)
        is_warming_up = self.critic is not None and batch.iteration < self.critic.warmup_iterations
        totals: Tensors = {}
        for epoch in range(self.update.epochs):
            generator = torch.Generator().manual_seed(
                seeds.key(self.seed, "minibatch", batch.iteration, epoch)
            )
            units_B = tensors["group_B" if self.algorithm.needs_fresh_advantages else "trajectory_B"]
            parts = split_trajectories(units_B.cpu(), self.update.minibatches, generator)
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
        names = trajectories.__dataclass_fields__
        tensors = {name: getattr(trajectories, name) for name in names}
        tensors["old_logp_BT"] = trajectories.sampler_logp_BT
        if self.algorithm.correction is not None:
            tensors["old_logp_BT"] = self._score_all(self.network, tensors)
        if self._reference:
            reference = cast(nn.Module, self._reference[0]).to(self.device)
            with adapters_off(reference):
                tensors["ref_logp_BT"] = self._score_all(reference, tensors)
        if self.critic is not None:
            values_BT = micro_batched(
                partial(self.critic, self.network), tensors, 2 * self.update.tokens_per_microbatch
            )
            tensors["value_BT"] = tensors["old_value_BT"] = values_BT
        return tensors

    def _shaped(self, tensors: Tensors) -> Tensors:
        return {**tensors, **shape_rewards(self.algorithm, tensors=tensors)}

    def _advantages(self, tensors: Tensors) -> Tensors:
        """Advantages, and the critic's targets, from statistics over all ranks; no gradient."""
        given = {name: t for name, t in tensors.items() if self.algorithm.needs(name)}
        given["is_action_BT"] = tensors["is_action_BT"]
        if self.algorithm.needs_fresh_advantages:
            given["logp_BT"] = tensors.get("logp_BT", tensors["old_logp_BT"])
        everyone, mine = gather_rows(given)
        result: Advantage = bind(self.algorithm.advantage, everyone)
        width = tensors["is_action_BT"].shape[1]
        found = {"advantage_BT": result.advantage_BT[mine, :width].detach()}
        if self.critic is not None:
            assert result.return_BT is not None, "Algorithm and critic were checked against each other"
            found["return_BT"] = result.return_BT[mine, :width].detach()
            targets_BT = result.is_value_target_BT
            is_target_BT = tensors["is_action_BT"] if targets_BT is None else targets_BT[mine, :width]
            found["is_value_target_BT"] = is_target_BT & ~tensors["return_B"].isnan()[:, None]
        return found

    def _kept_tokens(self, tensors: Tensors) -> Tensors:
        """The tokens whose policy loss counts, chosen among those of all ranks."""
        if self.algorithm.tokens is None:
            return {}
        everyone, mine = gather_rows({name: tensors[name] for name in tensor_names(self.algorithm.tokens)})
        is_kept_BT: Tensor = bind(self.algorithm.tokens, everyone)
        self.row["train/kept_token_share"] = float(
            is_kept_BT.sum() / everyone["is_action_BT"].sum().clamp(min=1)
        )
        return {"is_kept_BT": is_kept_BT[mine, : tensors["is_action_BT"].shape[1]]}

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
            names = {"old_logp_BT": tensors["old_logp_BT"], "logp_BT": self._score_all(self.network, tensors)}
            kl = mean_over_ranks(old_kl(**names, is_action_BT=is_action_BT), is_action_BT)
            self.row[f"train/{term.measure}"] = kl
        num_tokens = int(sum_over_ranks(is_action_BT.sum()))
        self.row |= self.algorithm.after_update(kl=kl, num_tokens=num_tokens)

    def _selected(self, tensors: Tensors) -> Tensors | None:
        """The rows to train on, chosen among those of all ranks; None where none is left."""
        names = {*tensor_names(self.algorithm.rows), "trajectory_B"}
        everyone, mine = gather_rows({name: tensors[name] for name in names})
        keep_B: Tensor = bind(self.algorithm.rows, everyone)
        self.row["train/kept_row_share"] = float(keep_B.float().mean())
        if self._is_empty(not bool(keep_B.any()), "algo.rows kept no row"):
            return None
        return kept_rows(tensors, keep_B[mine], at_least=self.update.minibatches)

    def _is_empty(self, is_empty: bool, reason: str) -> bool:
        """Skip and count an iteration with nothing to train on; stop the run when they do not cease."""
        if not bool(max_over_ranks(torch.tensor(float(not is_empty), device=self.device))):
            self._skip(f"{reason} in", "choose another filter or more groups")
            self._step_schedules()
            return True
        return False

    def _optimise(self, tensors: Tensors, rows: Tensor, is_fresh: bool, is_warming_up: bool) -> Tensors:
        """One step of each optimizer on the minibatch of these rows."""
        minibatch = {name: tensor[rows] for name, tensor in tensors.items()}
        if self.algorithm.needs_fresh_advantages and not is_fresh:
            minibatch["logp_BT"] = self._score_all(self.network, minibatch)
            minibatch |= self._advantages(minibatch)
        weights: Weights = bind(self.algorithm.aggregate, minibatch)
        denominator = None if weights.denominator is None else sum_over_ranks(weights.denominator)
        if self.critic is not None:
            is_target_BT = minibatch["is_value_target_BT"].to(minibatch["old_value_BT"].dtype)
            minibatch["value_weight_BT"] = is_target_BT / sum_over_ranks(is_target_BT.sum()).clamp(min=1)
        self._zero_grad()
        metrics = self._accumulate(minibatch, weights.weight_BT, denominator)
        gap = sum_over_ranks(metrics["logp_gap"])
        is_off = float(gap[0] / gap[1].clamp(min=1)) > self.update.max_logp_gap
        if is_fresh and is_off and self.algorithm.correction is None:
            # the sampler's numbers are not this network's: take the ratio against recomputed ones
            self._zero_grad()
            tensors["old_logp_BT"] = self._score_all(self.network, tensors)
            minibatch["old_logp_BT"] = tensors["old_logp_BT"][rows]
            again = self._accumulate(minibatch, weights.weight_BT, denominator)
            metrics = {**again, "logp_gap": metrics["logp_gap"], "logp_gap_max": metrics["logp_gap_max"]}
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.update.grad_clip)
        metrics["grad_norm"] = torch.stack([norm, torch.ones_like(norm)])
        if self.critic is not None:
            own = torch.nn.utils.clip_grad_norm_(self.critic.parameters(), self.critic.grad_clip)
            metrics["critic_grad_norm"] = torch.stack([own, torch.ones_like(own)])
            norm = norm + own
        if self._is_usable(norm):
            for optimizer in self._optimizers()[1 if is_warming_up else 0 :]:
                optimizer.step()
            self.version += not is_warming_up
        return metrics if is_fresh else {n: v for n, v in metrics.items() if not n.startswith("logp_gap")}

    def _accumulate(self, minibatch: Tensors, weight_BT: Tensor, denominator: Tensor | None) -> Tensors:
        """Gradients of the minibatch, in micro-batches; every rank does equally many."""
        lengths_B = minibatch["is_real_BT"].sum(1).cpu()
        parts = split_by_tokens(lengths_B, self.update.tokens_per_microbatch)
        most = int(max_over_ranks(torch.tensor(len(parts), device=self.device)))
        totals: Tensors = {}
        for number in range(most):
            is_extra = number >= len(parts)  # another rank has more: run along with weight zero
            index = (parts[0][:1] if is_extra else parts[number]).to(self.device)
            width = int(lengths_B[index.cpu()].max())
            part = {n: t[index, :width] if n.endswith("_BT") else t[index] for n, t in minibatch.items()}
            part_weight_BT = weight_BT[index, :width]
            if is_extra:
                part_weight_BT = part_weight_BT * 0
                part |= {n: t * 0 for n, t in part.items() if n == "value_weight_BT"}
            loss, metrics = self._microbatch(part, part_weight_BT, denominator)
            self.manual_backward(loss * world_size())  # gradients are averaged over ranks
            if not is_extra:
                padded = torch.tensor(float(index.numel() * width), device=self.device)
                metrics["padding_share"] = torch.stack([padded - lengths_B[index.cpu()].sum(), padded])
                totals = add_metrics(totals, metrics)
        return totals

    def _microbatch(
        self, part: Tensors, weight_BT: Tensor, denominator: Tensor | None
    ) -> tuple[Tensor, Tensors]:
        scores = score_tokens(
            self.network,
            tokens_BT=part["tokens_BT"],
            is_action_BT=part["is_action_BT"],
            temperature=self.temperature,
            with_entropy=True,
            with_hidden=self.critic is not None and self.critic.is_shared,
        )
        assert scores.entropy_BT is not None
        part["logp_BT"] = scores.logp_BT
        keep = self.algorithm.needs_entropy
        part["entropy_BT"] = scores.entropy_BT if keep else scores.entropy_BT.detach()
        loss_sum, metrics = policy_loss(self.algorithm, tensors=part, weight_BT=weight_BT)
        loss = policy_share = divide(loss_sum, denominator)
        if self.critic is not None:
            value_BT = self.critic(
                self.network, tokens_BT=part["tokens_BT"], is_action_BT=part["is_action_BT"],
                hidden_AD=scores.hidden_AD,
            )  # fmt: skip
            value_loss, value_metrics = self.critic.value_loss(value_BT, part)
            loss = loss + self.critic.coef * value_loss
            metrics |= value_metrics
        with torch.no_grad():
            gap_BT = (scores.logp_BT - part["sampler_logp_BT"]).abs() * part["is_action_BT"]
            count = part["is_action_BT"].sum().float()
            metrics["logp_gap"] = torch.stack([gap_BT.sum(), count])
            metrics["logp_gap_max"] = gap_BT.max()
            metrics["loss"] = torch.stack([policy_share.detach(), torch.zeros_like(loss)])
        return loss, metrics

    def _score_all(self, network: Any, tensors: Tensors) -> Tensor:
        """Log-probs of every action token under ``network``, without gradient."""

        def scored(tokens_BT: Tensor, is_action_BT: Tensor) -> Tensor:
            scores = score_tokens(
                network, tokens_BT=tokens_BT, is_action_BT=is_action_BT, temperature=self.temperature
            )
            return scores.logp_BT

        return micro_batched(scored, tensors, 2 * self.update.tokens_per_microbatch)

    def _is_usable(self, norm: Tensor) -> bool:
        """Skip and count steps whose gradient is not finite; stop the run when they do not cease."""
        if bool(torch.isfinite(norm)):
            self._bad_steps = 0
            return True
        self._skip(
            "the gradient was not finite in",
            "lower optim.lr or update.grad_clip, or resume from an earlier checkpoint",
        )
        return False

    def _skip(self, reason: str, remedy: str) -> None:
        self._bad_steps += 1
        self.row["train/skipped_steps"] = self.row.get("train/skipped_steps", 0.0) + 1
        if self._bad_steps >= self.update.max_bad_steps:
            raise ValueError(f"{reason} {self._bad_steps} consecutive steps; {remedy}")

    def _step_schedules(self) -> None:
        schedules = self.lr_schedulers()
        for schedule in schedules if isinstance(schedules, list) else [schedules]:
            assert isinstance(schedule, torch.optim.lr_scheduler.LRScheduler)
            schedule.step()

    def _optimizers(self) -> list[LightningOptimizer]:
        """The policy's, then the critic's."""
        found = self.optimizers()
        return cast(list[LightningOptimizer], found if isinstance(found, list) else [found])

    def _zero_grad(self) -> None:
        for optimizer in self._optimizers():
            optimizer.zero_grad()

    def _log_update(self, totals: Tensors, batch: StepBatch, seconds: float) -> None:
        loss = float(totals.pop("loss")[0])
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
    def configure_optimizers(self) -> Any:
        parameters = [p for p in self.network.parameters() if p.requires_grad]
        iterations = self.trainer.max_epochs or 1
        built = [self.optim.build(parameters, iterations)]
        if self.critic is not None:
            of_critic = [p for p in self.critic.parameters() if p.requires_grad]
            built.append(self.critic.optim.build(of_critic, iterations))
        return [{"optimizer": optimizer, "lr_scheduler": {"scheduler": s}} for optimizer, s in built]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["policy"] = {
            "version": self.version,
            "bad_steps": self._bad_steps,
            "name": self.policy.name,
            "coefficients": self.algorithm.state_dict(),
            "adapters": self.policy.adapters,
        }
        if self.policy.adapters is not None:
            checkpoint["state_dict"] = without_base(checkpoint["state_dict"], self)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse checkpoints of other programs before their weights are touched.

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
        self.version = checkpoint["policy"]["version"]
        self._bad_steps = checkpoint["policy"]["bad_steps"]
        self.algorithm.load_state_dict(checkpoint["policy"].get("coefficients", {}))

    def export(self, folder: str | Path) -> None:
        """Write the policy as a folder that ``AutoModelForCausalLM.from_pretrained`` loads."""
        self.policy.save(folder)
