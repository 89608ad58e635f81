"""One step of each optimizer on one minibatch, its gradient accumulated over micro-batches."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from lit_agentrl.distributed import get_world_size, max_count_over_ranks, sum_over_ranks
from lit_agentrl.episode import Source
from lit_agentrl.models.packing import Packing
from lit_agentrl.models.routing import Pass
from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.objective import Objective, add_metrics
from lit_agentrl.rl.policy.kl import old_kl
from lit_agentrl.update.lanes import Lanes
from lit_agentrl.update.microbatches import MicroBatch, split_micro_batches
from lit_agentrl.update.networks import Networks, find_balanced_tokens
from lit_agentrl.update.progress import Loop, Progress
from lit_agentrl.update.settings import UpdateSettings

Tensors = dict[str, Tensor]


class Stepper:
    """Steps on minibatches: scores, losses of objective and critic, backward, clip, step.

    Args:
        objective: the training objective.
        settings: micro-batches and clipping.
        networks: the networks to score and train.
        progress: counter of the steps.
    """

    def __init__(
        self, objective: Objective, settings: UpdateSettings, networks: Networks, progress: Progress
    ) -> None:
        self._objective = objective
        self._settings = settings
        self._networks = networks
        self._progress = progress

    def step(
        self, tensors: Tensors, rows: Tensor, loop: Loop, *, is_first: bool, is_warming_up: bool
    ) -> tuple[Tensors, bool]:
        """Take one step on a minibatch; return metrics, and whether the step was taken.

        It is not taken if `UpdateSettings.stop` finds that the policy has moved too far.

        Args:
            tensors: all rows of this rank; ``old_logp_BT`` is replaced if recorded log-probs are too far off.
            rows: indices of the minibatch's rows.
            loop: optimizers and backward pass.
            is_first: whether this is the first step of an iteration.
            is_warming_up: whether only the critic is trained.
        """
        minibatch = self._add_denominators({name: tensor[rows] for name, tensor in tensors.items()})
        loop.zero_grad()
        metrics = self._accumulate(minibatch, loop)
        if self._must_stop(minibatch, metrics) and not is_first:
            return {"stop_kl_max": metrics["stop_kl_max"]}, False
        if is_first and self._has_wrong_logps(metrics) and not self._objective.needs("sampler_logp_BT"):
            # the sampler's log-probs differ from this network's: use recomputed ones for the ratio
            loop.zero_grad()
            recomputed_BT = self._networks.compute_logp(tensors)
            tensors["old_logp_BT"] = torch.where(_is_current(tensors), recomputed_BT, tensors["old_logp_BT"])
            minibatch["old_logp_BT"] = tensors["old_logp_BT"][rows]
            recomputed = self._accumulate(minibatch, loop)
            metrics = {**recomputed, "logp_gap": metrics["logp_gap"], "logp_gap_max": metrics["logp_gap_max"]}
        norm = self._clip(metrics, loop)
        self._progress.require_finite(norm)
        # Lightning has one autocast region around the whole training step, in which torch caches the casts of weights
        # to half precision; without clearing, the next minibatch would use the weights from before this step, and the
        # casts would take memory beside the temporary tensors of the step
        torch.clear_autocast_cache()
        for optimizer in loop.optimizers[1 if is_warming_up else 0 :]:
            optimizer.step()
        if (critic := self._networks.critic) is not None and critic.slow is not None:
            critic.slow.follow(critic)
        self._progress.count_step(moves_policy=not is_warming_up)
        if not is_first:
            metrics = {name: value for name, value in metrics.items() if not name.startswith("logp_gap")}
        return metrics, True

    @torch.no_grad()
    def measure_loss(self, tensors: Tensors, loop: Loop) -> Tensors:
        """Compute the loss and metrics of all rows as one minibatch, without gradient; a collective."""
        minibatch = self._add_denominators(dict(tensors))
        metrics = self._run_in_turn(minibatch, self._split(minibatch), loop, is_trained=False)
        return {
            name: value
            for name, value in metrics.items()
            if name not in ("logp_gap", "logp_gap_max", "moved")
        }

    def measure_gradients(self, tensors: Tensors, rows: Tensor, loop: Loop) -> tuple[Tensor, Tensor]:
        """Measure the gradient norms of the task and of the regulariser on some rows.

        The regulariser's gradient is the one with all advantages 0, and the task's is the difference of the full
        gradient from it.  Weights do not change, and gradients are cleared.
        """
        minibatch = self._add_denominators({name: tensor[rows] for name, tensor in tensors.items()})
        parameters = list(self._networks.policy.parameters())
        loop.zero_grad()
        self._accumulate(minibatch | {"advantage_BT": torch.zeros_like(minibatch["advantage_BT"])}, loop)
        regulariser = loop.hooks.clip_gradient_norm(parameters, math.inf)
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.neg_()
        self._accumulate(minibatch, loop)
        task = loop.hooks.clip_gradient_norm(parameters, math.inf)
        loop.zero_grad()
        return task, regulariser

    def _has_wrong_logps(self, metrics: Tensors) -> bool:
        """Return whether the recorded log-probs are too far from this network's.

        A reward model has no log-probs.
        """
        if self._networks.head is not None:
            return False
        gap = sum_over_ranks(metrics["logp_gap"])
        return float(gap[0] / gap[1].clamp(min=1)) > self._settings.max_logp_gap

    def _must_stop(self, minibatch: Tensors, metrics: Tensors) -> bool:
        """Return whether `UpdateSettings.stop` ends the iteration here, equally on all ranks.

        The metric ``stop_kl_max`` is the measured KL; it replaces the sum ``moved``.
        """
        if (rule := self._settings.stop) is None:
            return False
        is_action_BT = minibatch["is_action_BT"]
        trajectories = torch.unique(minibatch["trajectory_B"][is_action_BT.any(1)]).numel()
        sums = [
            metrics.pop("moved"),
            is_action_BT.sum(),
            torch.tensor(trajectories, device=is_action_BT.device),
        ]
        nats, tokens, number = sum_over_ranks(torch.stack([value.double() for value in sums])).tolist()
        measured = rule.compute_kl(nats=nats, tokens=tokens, trajectories=number)
        metrics["stop_kl_max"] = torch.tensor(measured, device=is_action_BT.device)
        return measured > rule.bound

    def _add_denominators(self, minibatch: Tensors) -> Tensors:
        """Add what the losses are divided by, or weighted with, counted over all ranks."""
        for name, value in self._objective.count(minibatch).items():
            minibatch[name] = sum_over_ranks(value) if value.dim() == 0 else value
        if self._networks.critic is not None:
            is_target_BT = minibatch["is_value_target_BT"].to(minibatch["old_value_BT"].dtype)
            minibatch["value_weight_BT"] = is_target_BT / sum_over_ranks(is_target_BT.sum()).clamp(min=1)
        if self._networks.routing.loss:
            if self._networks.routing.loss_over == "batch":
                minibatch |= self._networks.measure_loads(minibatch)
            else:
                minibatch["num_balanced"] = sum_over_ranks(minibatch["is_action_BT"].any(1).sum())
        return minibatch

    def _compute_router_loss(self, part: Tensors, routed: Pass) -> tuple[Tensor, Tensors]:
        """Compute the weighted load-balancing loss of rows with actions, and router metrics.

        The loss is the share of these rows: the shares of all micro-batches and ranks sum to the minibatch's loss.
        """
        metrics: Tensors = {}
        loss = torch.zeros((), device=part["tokens_BT"].device)
        if self._networks.routing.loss:
            if self._networks.routing.loss_over == "batch":
                is_counted = find_balanced_tokens(part)
                balance = routed.compute_batch_balance(is_counted, part["load_LE"])
            else:
                is_counted = part["is_action_BT"].any(1)
                balance = torch.where(is_counted, routed.compute_balance(part["is_real_BT"]), 0.0).sum()
            loss = self._networks.routing.loss * balance / part["num_balanced"].clamp(min=1)
            metrics["router_loss"] = torch.stack([balance.detach(), is_counted.sum().to(balance)])
        if routed.given is not None:
            flips = [pair for pair in routed.flips if pair is not None]
            metrics["routing_flips"] = torch.stack(flips).sum(0).float()
        return loss, metrics

    def _clip(self, metrics: Tensors, loop: Loop) -> Tensor:
        """Scale gradients down to the allowed norms; return the sum of the norms before scaling."""
        critic = self._networks.critic
        head = self._networks.head
        parameters = [*self._networks.policy.parameters(), *([] if head is None else head.parameters())]
        norm = loop.hooks.clip_gradient_norm(parameters, self._settings.grad_clip)
        metrics["grad_norm"] = torch.stack([norm, torch.ones_like(norm)])
        if critic is not None:
            critic_norm = loop.hooks.clip_gradient_norm(critic.parameters(), critic.grad_clip)
            metrics["critic_grad_norm"] = torch.stack([critic_norm, torch.ones_like(critic_norm)])
            norm = norm + critic_norm
        return norm

    def _accumulate(self, minibatch: Tensors, loop: Loop) -> Tensors:
        """Accumulate the gradients of the minibatch in equally many micro-batches on every rank."""
        parts = self._split(minibatch)
        if self._networks.lanes is None:
            totals = self._run_in_turn(minibatch, parts, loop)
        else:
            totals = self._run_in_lanes(minibatch, parts, loop, self._networks.lanes)
        real = float(sum(part.num_real for part in parts))
        needed = float(sum(part.num_needed for part in parts))
        computed = float(sum(part.num_computed for part in parts))
        shares = torch.tensor([[computed - needed, computed], [real - needed, real]])
        padding, shared = shares.to(loop.device, non_blocking=True)
        return totals | {"padding_share": padding, "shared_token_share": shared}

    def _split(self, minibatch: Tensors) -> list[MicroBatch]:
        budget, unit = self._settings.tokens_per_microbatch, self._objective.unit
        return split_micro_batches(minibatch, budget, self._networks.form, unit, self._networks.scored)

    def _run_in_turn(
        self, minibatch: Tensors, parts: list[MicroBatch], loop: Loop, *, is_trained: bool = True
    ) -> Tensors:
        num_rounds = max_count_over_ranks(len(parts), loop.device)
        totals: Tensors = {}
        with self._place_reference(loop):
            for number in range(num_rounds):
                # another rank has more parts: join its collectives with weight zero
                is_extra = number >= len(parts)
                part = parts[0].keep_first() if is_extra else parts[number]
                rows = _cut_rows(minibatch, part)
                with (
                    nullcontext() if number == num_rounds - 1 else loop.hooks.block_backward_sync(),
                    self._networks.observe_routers(rows, part.packing) as routed,
                ):
                    loss, metrics = self._compute_loss(rows, part.packing, routed, self._networks)
                    if is_trained:  # gradients are averaged over ranks
                        loop.backward(loss * get_world_size() * (0 if is_extra else 1))
                if not is_extra:
                    totals = add_metrics(totals, metrics)
        return totals

    def _place_reference(self, loop: Loop) -> AbstractContextManager[None]:
        """Keep the reference on the device if the loss reads its logits."""
        if not self._objective.needs("ref_kl_BT"):
            return nullcontext()
        assert self._networks.reference is not None
        return loop.hooks.place_on_device(self._networks.reference, loop.device)

    def _run_in_lanes(self, minibatch: Tensors, parts: list[MicroBatch], loop: Loop, lanes: Lanes) -> Tensors:
        networks = [self._networks.copy_for_lane(number) for number in range(len(lanes.modules_of))]
        in_turn = loop.is_watched or lanes.has_hooks
        backward = loop.backward if in_turn else torch.Tensor.backward

        def run_microbatch(lane: int, number: int) -> Tensors:
            rows = _cut_rows(minibatch, parts[number])
            loss, metrics = self._compute_loss(rows, parts[number].packing, None, networks[lane])
            backward(loss)
            return metrics

        totals: Tensors = {}
        for metrics in lanes.run(run_microbatch, [part.num_computed for part in parts], in_turn=in_turn):
            totals = add_metrics(totals, metrics)
        return totals

    def _compute_loss(
        self, part: Tensors, packing: Packing | None, routed: Pass | None, networks: Networks
    ) -> tuple[Tensor, Tensors]:
        """Compute the loss of a micro-batch and its metrics."""
        needs = self._objective.needs
        scores = networks.score(
            part, packing, entropy_grad=needs("entropy_BT"), with_ref_kl=needs("ref_kl_BT")
        )
        part |= scores.columns
        if "logp_BT" in part:  # NaN marks values that were not computed: they equal those of this step
            new_logp_BT = part["logp_BT"].detach()
            names = ("old_logp_BT", "sampler_logp_BT")
            part |= {name: torch.where(part[name].isnan(), new_logp_BT, part[name]) for name in names}
        loss, metrics = self._objective.loss(part)
        objective_loss = loss.detach()
        if networks.critic is not None:
            value_loss, value_metrics = networks.compute_value_loss(
                part, packing, scores.hidden_AD, self._objective
            )
            loss = loss + value_loss
            metrics |= value_metrics
        if routed is not None:
            router_loss, router_metrics = self._compute_router_loss(part, routed)
            loss = loss + router_loss
            metrics |= router_metrics
        with torch.no_grad():
            if "logp_BT" in scores.columns:
                is_own_BT = part["is_action_BT"] & _is_current(part)
                gap_BT = (part["logp_BT"] - part["sampler_logp_BT"]).abs() * is_own_BT
                metrics["logp_gap"] = torch.stack([gap_BT.sum(), is_own_BT.sum().float()])
                metrics["logp_gap_max"] = gap_BT.max()
            metrics["loss"] = torch.stack([objective_loss, torch.zeros_like(objective_loss)])
            if self._settings.stop is not None:
                metrics["moved"] = bind(old_kl, self._objective.measured(part)).sum()
        return loss, metrics


def _is_current(tensors: Tensors) -> Tensor:
    """Return (B, 1), True for rows sampled by the weights before the update.

    The log-probs of other rows differ by design.
    """
    source_B = tensors["source_B"][:, None]
    return (source_B == Source.ROLLOUT) | (source_B == Source.HINT)


def _cut_rows(minibatch: Tensors, part: MicroBatch) -> Tensors:
    """Cut columns to the rows and width of a micro-batch, and add ``place_A``.

    Scalars and loads of experts (``_LE``) are unchanged.
    """
    index, place_A = part.upload(minibatch["tokens_BT"].device)

    def cut(name: str, tensor: Tensor) -> Tensor:
        if tensor.dim() == 0 or name.endswith("_LE"):
            return tensor
        return tensor[index, : part.width] if name.endswith("_BT") else tensor[index]

    return {name: cut(name, tensor) for name, tensor in minibatch.items()} | {"place_A": place_A}


def needs_old_logps(objective: Objective, settings: UpdateSettings) -> bool:
    """Return whether log-probs from before the first step are needed.

    In an iteration of one step, they equal those of the step.
    """
    reads_old = any(objective.needs(name) for name in ("old_logp_BT", "sampler_logp_BT"))
    return reads_old or bool(objective.terms()) or settings.epochs * settings.minibatches > 1
