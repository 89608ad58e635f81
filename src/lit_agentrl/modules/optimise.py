"""One step of each optimizer on one minibatch, its gradient accumulated over micro-batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lit_agentrl.distributed import max_over_ranks, sum_over_ranks, world_size
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.models.packing import Packing
from lit_agentrl.models.policy import Policy
from lit_agentrl.modules.base import ManualModule, Tensors
from lit_agentrl.rl.aggregation import Weights, divide
from lit_agentrl.rl.algorithm import Algorithm, add_metrics, policy_loss
from lit_agentrl.rl.binding import bind
from lit_agentrl.update.critic import Critic
from lit_agentrl.update.estimates import advantages
from lit_agentrl.update.microbatches import Form, micro_batches
from lit_agentrl.update.scoring import form_of_rows, memory_saved, score_rows
from lit_agentrl.update.settings import UpdateSettings


class SteppingModule(ManualModule):
    """Steps on minibatches: log-prob -> ratio -> clip -> aggregate -> KL, entropy, value terms -> backward.

    Args:
        policy: network and tokenizer.
        algorithm: the mix of rules.
        update: passes, minibatches, micro-batches, clipping.
        critic: or None.
        temperature: sampling temperature of the trajectories (log-probs are taken at it).
        levels: see `EvaluatedModule`.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        algorithm: Algorithm,
        update: UpdateSettings,
        critic: Critic | None,
        temperature: float,
        levels: dict[str, tuple[float, float]] | None = None,
    ) -> None:
        super().__init__(update, levels)
        self.policy = policy
        self.network = policy.network
        self.algorithm = algorithm
        self.critic = critic
        self.temperature = temperature
        self.version = 0  # optimizer steps taken: the version of the weights
        self._rows_form: Form | None = None
        if update.packing not in (False, "auto"):  # a network that cannot is refused at once
            self._form()
        with memory_saved(update.checkpoint_activations, self.network, self._own_trunk):
            pass  # and one whose layers cannot be run again

    @property
    def _own_trunk(self) -> Any:
        return None if self.critic is None else self.critic.trunk

    def _form(self) -> Form:
        """The form in which rows go through the networks."""
        if self._rows_form is None:
            networks = [self.network, self._own_trunk, *getattr(self, "_reference", ())]
            networks = [each for each in networks if each is not None]
            self._rows_form = form_of_rows(networks, self.update.packing, is_cuda=self.device.type == "cuda")
        return self._rows_form

    def _scored(self, network: Any, tensors: Tensors) -> Tensor:
        return score_rows(
            network, tensors, temperature=self.temperature, form=self._form(),
            tokens_per_microbatch=self.update.tokens_per_microbatch, logits_chunk=self.update.logits_chunk,
        )  # fmt: skip

    def _advantages(self, tensors: Tensors) -> Tensors:
        return advantages(self.algorithm, tensors, with_targets=self.critic is not None)

    def _optimise(self, tensors: Tensors, rows: Tensor, is_fresh: bool, is_warming_up: bool) -> Tensors:
        """One step of each optimizer on the minibatch of these rows."""
        minibatch = {name: tensor[rows] for name, tensor in tensors.items()}
        if self.algorithm.needs_fresh_advantages and not is_fresh:
            minibatch["logp_BT"] = self._scored(self.network, minibatch)
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
            tensors["old_logp_BT"] = self._scored(self.network, tensors)
            minibatch["old_logp_BT"] = tensors["old_logp_BT"][rows]
            again = self._accumulate(minibatch, weights.weight_BT, denominator)
            metrics = {**again, "logp_gap": metrics["logp_gap"], "logp_gap_max": metrics["logp_gap_max"]}
        norm = self._clipped(self.network.parameters(), self.update.grad_clip)
        metrics["grad_norm"] = torch.stack([norm, torch.ones_like(norm)])
        if self.critic is not None:
            own = self._clipped(self.critic.parameters(), self.critic.grad_clip)
            metrics["critic_grad_norm"] = torch.stack([own, torch.ones_like(own)])
            norm = norm + own
        if self._is_usable(norm):
            for optimizer in self._optimizers()[1 if is_warming_up else 0 :]:
                optimizer.step()
            # Lightning holds one autocast region around the whole training step, and within a region torch casts
            # a weight to half precision once: the next minibatch must not see the weights of before this step
            torch.clear_autocast_cache()
            self.version += not is_warming_up
        return metrics if is_fresh else {n: v for n, v in metrics.items() if not n.startswith("logp_gap")}

    def _accumulate(self, minibatch: Tensors, weight_BT: Tensor, denominator: Tensor | None) -> Tensors:
        """Gradients of the minibatch, in micro-batches; every rank does equally many."""
        parts = micro_batches(minibatch, self.update.tokens_per_microbatch, self._form())
        most = int(max_over_ranks(torch.tensor(len(parts), device=self.device)))
        totals: Tensors = {}
        for number in range(most):
            is_extra = number >= len(parts)  # another rank has more: run along with weight zero
            part = parts[0].first() if is_extra else parts[number]
            index = part.rows.to(self.device, non_blocking=True)
            rows = {
                n: t[index, : part.width] if n.endswith("_BT") else t[index] for n, t in minibatch.items()
            }
            part_weight_BT = weight_BT[index, : part.width]
            if is_extra:
                part_weight_BT = part_weight_BT * 0
                rows |= {n: t * 0 for n, t in rows.items() if n == "value_weight_BT"}
            with self._synchronised(is_last=number == most - 1):
                loss, metrics = self._microbatch(rows, part_weight_BT, denominator, part.packing)
                self.manual_backward(loss * world_size())  # gradients are averaged over ranks
            if not is_extra:
                totals = add_metrics(totals, metrics)
        real, needed, computed = (
            float(sum(getattr(part, f"num_{name}") for part in parts))
            for name in ("real", "needed", "computed")
        )
        shares = torch.tensor([[computed - needed, computed], [real - needed, real]])
        padding, shared = shares.to(self.device, non_blocking=True)
        return totals | {"padding_share": padding, "shared_token_share": shared}

    def _microbatch(
        self, part: Tensors, weight_BT: Tensor, denominator: Tensor | None, packing: Packing | None
    ) -> tuple[Tensor, Tensors]:
        """Loss of a micro-batch and its metrics."""
        is_shared = self.critic is not None and self.critic.is_shared
        rows: dict[str, Any] = {
            "tokens_BT": part["tokens_BT"],
            "is_action_BT": part["is_action_BT"],
            "packing": packing,
        }
        with memory_saved(self.update.checkpoint_activations, self.network):
            scores = score_tokens(
                self.network, **rows, temperature=self.temperature, with_entropy=True, with_hidden=is_shared,
                entropy_grad=self.algorithm.needs_entropy, logits_chunk=self.update.logits_chunk,
                is_checked=True,
            )  # fmt: skip
        assert scores.entropy_BT is not None
        part |= {"logp_BT": scores.logp_BT, "entropy_BT": scores.entropy_BT}
        loss_sum, metrics = policy_loss(self.algorithm, tensors=part, weight_BT=weight_BT)
        loss = policy_share = divide(loss_sum, denominator)
        if self.critic is not None:
            with memory_saved(self.update.checkpoint_activations, self._own_trunk):
                value_BT = self.critic(self.network, **rows, hidden_AD=scores.hidden_AD)
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
