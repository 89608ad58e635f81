"""One step of each optimizer on one minibatch, its gradient accumulated over micro-batches."""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
from torch import Tensor

from lit_agentrl.distributed import get_world_size, max_over_ranks, sum_over_ranks
from lit_agentrl.episode import Source
from lit_agentrl.models.packing import Packing
from lit_agentrl.models.routing import Pass
from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.objective import Objective, add_metrics
from lit_agentrl.rl.policy.kl import old_kl
from lit_agentrl.update.lanes import Lanes
from lit_agentrl.update.microbatches import MicroBatch, micro_batches
from lit_agentrl.update.networks import Networks
from lit_agentrl.update.progress import Loop, Progress
from lit_agentrl.update.settings import UpdateSettings

Tensors = dict[str, Tensor]


class Stepper:
    """Steps on minibatches: scores -> loss of the objective, of the critic -> backward -> clip -> step.

    Args:
        objective: what is trained.
        settings: micro-batches and clipping.
        networks: scored and trained.
        progress: counts the steps.
    """

    def __init__(
        self, objective: Objective, settings: UpdateSettings, networks: Networks, progress: Progress
    ) -> None:
        self._objective = objective
        self._settings = settings
        self._networks = networks
        self._progress = progress

    def step(
        self, tensors: Tensors, rows: Tensor, loop: Loop, *, is_fresh: bool, is_warming_up: bool
    ) -> tuple[Tensors, bool]:
        """One step on the minibatch of these rows; returns metrics, and whether it was taken.

        It is not where `UpdateSettings.stop` finds that the policy has moved too far.

        Args:
            tensors: all rows of this rank; where the recorded log-probs are off, ``old_logp_BT`` is replaced.
            rows: indices of the minibatch's.
            loop: lends optimizers and backward.
            is_fresh: the first step of an iteration.
            is_warming_up: the policy is left alone.
        """
        minibatch = self._counted({name: tensor[rows] for name, tensor in tensors.items()})
        loop.zero_grad()
        metrics = self._accumulate(minibatch, loop)
        if self._is_too_far(minibatch, metrics) and not is_fresh:
            return {"stop_kl_max": metrics["stop_kl_max"]}, False
        if is_fresh and self._is_off(metrics) and not self._objective.needs("sampler_logp_BT"):
            # the sampler's numbers are not this network's: take the ratio against recomputed ones
            loop.zero_grad()
            recomputed_BT = self._networks.logp(tensors)
            tensors["old_logp_BT"] = torch.where(_is_of_now(tensors), recomputed_BT, tensors["old_logp_BT"])
            minibatch["old_logp_BT"] = tensors["old_logp_BT"][rows]
            again = self._accumulate(minibatch, loop)
            metrics = {**again, "logp_gap": metrics["logp_gap"], "logp_gap_max": metrics["logp_gap_max"]}
        norm = self._clip(metrics, loop)
        self._progress.require_finite(norm)
        for optimizer in loop.optimizers[1 if is_warming_up else 0 :]:
            optimizer.step()
        if (critic := self._networks.critic) is not None and critic.slow is not None:
            critic.slow.follow(critic)
        # Lightning holds one autocast region around the whole training step, and within a region torch casts
        # a weight to half precision once: the next minibatch must not see the weights of before this step
        torch.clear_autocast_cache()
        self._progress.step_taken(moves_policy=not is_warming_up)
        if not is_fresh:
            metrics = {name: v for name, v in metrics.items() if not name.startswith("logp_gap")}
        return metrics, True

    def gradients(self, tensors: Tensors, rows: Tensor, loop: Loop) -> tuple[Tensor, Tensor]:
        """Norms of the gradient that these rows alone would give: of the task, and of what is there without it.

        The second is taken with all advantages 0, the first of the difference.  No weight moves, and no gradient stays.
        """
        minibatch = self._counted({name: tensor[rows] for name, tensor in tensors.items()})
        own = list(self._networks.policy.parameters())
        loop.zero_grad()
        self._accumulate(minibatch | {"advantage_BT": torch.zeros_like(minibatch["advantage_BT"])}, loop)
        regulariser = loop.hooks.clip_gradient_norm(own, math.inf)
        for parameter in own:
            if parameter.grad is not None:
                parameter.grad.neg_()
        self._accumulate(minibatch, loop)
        task = loop.hooks.clip_gradient_norm(own, math.inf)
        loop.zero_grad()
        return task, regulariser

    def _is_off(self, metrics: Tensors) -> bool:
        """Whether the recorded log-probs are not this network's; a reward model has none."""
        if self._networks.head is not None:
            return False
        gap = sum_over_ranks(metrics["logp_gap"])
        return float(gap[0] / gap[1].clamp(min=1)) > self._settings.max_logp_gap

    def _is_too_far(self, minibatch: Tensors, metrics: Tensors) -> bool:
        """Whether `UpdateSettings.stop` ends the iteration here, alike on all ranks; ``stop_kl_max`` is what it saw."""
        if (rule := self._settings.stop) is None:
            return False
        is_action_BT = minibatch["is_action_BT"]
        trajectories = torch.unique(minibatch["trajectory_B"][is_action_BT.any(1)]).numel()
        own = [
            metrics.pop("moved"),
            is_action_BT.sum(),
            torch.tensor(trajectories, device=is_action_BT.device),
        ]
        nats, tokens, number = sum_over_ranks(torch.stack([each.double() for each in own])).tolist()
        measured = rule.kl(nats=nats, tokens=tokens, trajectories=number)
        metrics["stop_kl_max"] = torch.tensor(measured, device=is_action_BT.device)
        return measured > rule.bound

    def _counted(self, minibatch: Tensors) -> Tensors:
        """The minibatch with what divides and weighs its losses on all ranks."""
        for name, counted in self._objective.count(minibatch).items():
            minibatch[name] = sum_over_ranks(counted) if counted.dim() == 0 else counted
        if self._networks.critic is not None:
            is_target_BT = minibatch["is_value_target_BT"].to(minibatch["old_value_BT"].dtype)
            minibatch["value_weight_BT"] = is_target_BT / sum_over_ranks(is_target_BT.sum()).clamp(min=1)
        if self._networks.routing.loss:
            minibatch["num_balanced"] = sum_over_ranks(minibatch["is_action_BT"].any(1).sum())
        return minibatch

    def _of_routers(self, part: Tensors, routed: Pass) -> tuple[Tensor, Tensors]:
        """The weighted load-balancing loss of a micro-batch, of its rows with actions, and what routers did."""
        metrics: Tensors = {}
        loss = torch.zeros((), device=part["tokens_BT"].device)
        if self._networks.routing.loss:
            is_counted_B = part["is_action_BT"].any(1)
            balance = torch.where(is_counted_B, routed.compute_balance(part["is_real_BT"]), 0.0).sum()
            loss = self._networks.routing.loss * balance / part["num_balanced"].clamp(min=1)
            metrics["router_loss"] = torch.stack([balance.detach(), is_counted_B.sum().to(balance)])
        if routed.given is not None:
            flips = [pair for pair in routed.flips if pair is not None]
            metrics["routing_flips"] = torch.stack(flips).sum(0).float()
        return loss, metrics

    def _clip(self, metrics: Tensors, loop: Loop) -> Tensor:
        """Scales gradients down to the norms allowed; returns the sum of the norms before."""
        critic = self._networks.critic
        head = self._networks.head
        own = [*self._networks.policy.parameters(), *([] if head is None else head.parameters())]
        norm = loop.hooks.clip_gradient_norm(own, self._settings.grad_clip)
        metrics["grad_norm"] = torch.stack([norm, torch.ones_like(norm)])
        if critic is not None:
            of_critic = loop.hooks.clip_gradient_norm(critic.parameters(), critic.grad_clip)
            metrics["critic_grad_norm"] = torch.stack([of_critic, torch.ones_like(of_critic)])
            norm = norm + of_critic
        return norm

    def _accumulate(self, minibatch: Tensors, loop: Loop) -> Tensors:
        """Gradients of the minibatch, in micro-batches; every rank does equally many."""
        budget, unit = self._settings.tokens_per_microbatch, self._objective.unit
        parts = micro_batches(minibatch, budget, self._networks.form, unit)
        if self._networks.lanes is None:
            totals = self._in_turn(minibatch, parts, loop)
        else:
            totals = self._in_lanes(minibatch, parts, loop, self._networks.lanes)
        real = float(sum(part.num_real for part in parts))
        needed = float(sum(part.num_needed for part in parts))
        computed = float(sum(part.num_computed for part in parts))
        shares = torch.tensor([[computed - needed, computed], [real - needed, real]])
        padding, shared = shares.to(loop.device, non_blocking=True)
        return totals | {"padding_share": padding, "shared_token_share": shared}

    def _in_turn(self, minibatch: Tensors, parts: list[MicroBatch], loop: Loop) -> Tensors:
        most = int(max_over_ranks(torch.tensor(len(parts), device=loop.device)))
        totals: Tensors = {}
        for number in range(most):
            is_extra = number >= len(parts)  # another rank has more: run along with weight zero
            part = parts[0].first() if is_extra else parts[number]
            rows = _rows_of(minibatch, part)
            with (
                nullcontext() if number == most - 1 else loop.hooks.block_backward_sync(),
                self._networks.routed(rows, part.packing) as routed,
            ):
                loss, metrics = self._microbatch(rows, part.packing, routed, self._networks)
                # gradients are averaged over ranks
                loop.backward(loss * get_world_size() * (0 if is_extra else 1))
            if not is_extra:
                totals = add_metrics(totals, metrics)
        return totals

    def _in_lanes(self, minibatch: Tensors, parts: list[MicroBatch], loop: Loop, lanes: Lanes) -> Tensors:
        networks = [self._networks.of_lane(number) for number in range(len(lanes.each))]
        in_turn = loop.is_watched or lanes.is_listened_to
        backward = loop.backward if in_turn else torch.Tensor.backward

        def one(lane: int, number: int) -> Tensors:
            rows = _rows_of(minibatch, parts[number])
            loss, metrics = self._microbatch(rows, parts[number].packing, None, networks[lane])
            backward(loss)
            return metrics

        totals: Tensors = {}
        for metrics in lanes.run(one, [part.num_computed for part in parts], in_turn=in_turn):
            totals = add_metrics(totals, metrics)
        return totals

    def _microbatch(
        self, part: Tensors, packing: Packing | None, routed: Pass | None, networks: Networks
    ) -> tuple[Tensor, Tensors]:
        """Loss of a micro-batch and its metrics."""
        found = networks.scores(part, packing, entropy_grad=self._objective.needs("entropy_BT"))
        part |= found.columns
        if "logp_BT" in part:  # NaN: nobody knows, and nothing has asked before this step
            own_BT = part["logp_BT"].detach()
            names = ("old_logp_BT", "sampler_logp_BT")
            part |= {name: torch.where(part[name].isnan(), own_BT, part[name]) for name in names}
        loss, metrics = self._objective.loss(part)
        share = loss.detach()
        if networks.critic is not None:
            value_loss, value_metrics = networks.value_loss(part, packing, found.hidden_AD, self._objective)
            loss = loss + value_loss
            metrics |= value_metrics
        if routed is not None:
            router_loss, router_metrics = self._of_routers(part, routed)
            loss = loss + router_loss
            metrics |= router_metrics
        with torch.no_grad():
            if "logp_BT" in found.columns:
                is_own_BT = part["is_action_BT"] & _is_of_now(part)
                gap_BT = (part["logp_BT"] - part["sampler_logp_BT"]).abs() * is_own_BT
                metrics["logp_gap"] = torch.stack([gap_BT.sum(), is_own_BT.sum().float()])
                metrics["logp_gap_max"] = gap_BT.max()
            metrics["loss"] = torch.stack([share, torch.zeros_like(share)])
            if self._settings.stop is not None:
                metrics["moved"] = bind(old_kl, self._objective.measured(part)).sum()
        return loss, metrics


def _is_of_now(tensors: Tensors) -> Tensor:
    """(B, 1): rows of the weights that the update begins with; the log-probs of others are meant to differ."""
    source_B = tensors["source_B"][:, None]
    return (source_B == Source.ROLLOUT) | (source_B == Source.HINT)


def _rows_of(minibatch: Tensors, part: MicroBatch) -> Tensors:
    """The columns of a micro-batch, those of tokens as wide as it is, and the scalars."""
    index = part.rows.to(minibatch["tokens_BT"].device, non_blocking=True)

    def cut(name: str, tensor: Tensor) -> Tensor:
        if tensor.dim() == 0:
            return tensor
        return tensor[index, : part.width] if name.endswith("_BT") else tensor[index]

    return {name: cut(name, tensor) for name, tensor in minibatch.items()}


def asks_old(objective: Objective, settings: UpdateSettings) -> bool:
    """Whether anything asks for log-probs of before the first step; those of an only step are its own."""
    asked = any(objective.needs(name) for name in ("old_logp_BT", "sampler_logp_BT"))
    return asked or bool(objective.terms()) or settings.epochs * settings.minibatches > 1
