"""The networks of an update and their passes over rows."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lit_agentrl.distributed import StrategyHooks, sum_over_ranks
from lit_agentrl.models.heads import ScoreHead
from lit_agentrl.models.logprobs import Logits, read_logits, score_tokens
from lit_agentrl.models.lora import disable_adapters, get_levels, use_level
from lit_agentrl.models.packing import Packing
from lit_agentrl.models.routers import Routing
from lit_agentrl.models.routing import Pass, Routers, find_read_tokens
from lit_agentrl.rl.objective import Objective
from lit_agentrl.update.critic import Critic
from lit_agentrl.update.lanes import Lanes
from lit_agentrl.update.microbatches import Form, run_micro_batches
from lit_agentrl.update.scoring import choose_experts, choose_form, evaluate_rows, save_memory, score_rows
from lit_agentrl.update.settings import UpdateSettings

Tensors = dict[str, Tensor]


class Scores(NamedTuple):
    """Scores of a micro-batch for a loss.

    Attributes:
        columns: scores by name, with gradient.
        hidden_AD: inputs of the policy's head, for a critic that shares them.
    """

    columns: Tensors
    hidden_AD: Tensor | None = None


class Networks:
    """The policy's network with an optional critic and reference, or a reward model.

    Args:
        policy: a causal LM, trained in place.
        critic: the critic, or None.
        reference: the frozen reference network, or None.
        settings: how rows are split and packed.
        temperature: sampling temperature of the trajectories, used for log-probs.
        routing: treatment of the policy's routers.
        head: head of a reward model, trained with the network below it; log-probs are then not computed.

    Raises:
        ValueError: a network does not support the requested form of rows, or its layers cannot be recomputed.
    """

    def __init__(
        self,
        policy: Any,
        *,
        critic: Critic | None,
        reference: Any | None,
        settings: UpdateSettings,
        temperature: float,
        routing: Routing,
        head: ScoreHead | None = None,
    ) -> None:
        self.policy = policy
        self.critic = critic
        self.head = head
        self.reference = reference
        self._settings = settings
        self._temperature = temperature
        self.routing = routing
        if get_levels(policy) and critic is not None and critic.is_shared:
            raise ValueError(
                "critic=shared needs one set of hidden states, and two adapters have two: set critic=separate"
            )
        if get_levels(policy) and settings.checkpoint_activations:
            raise ValueError(
                "checkpoint_activations=true recomputes layers under the wrong one of two adapters: set it to false, "
                "or use model/lora=default"
            )
        observes_routers = routing.loss > 0 or routing.replay != "none"
        self._routers = Routers(policy, routing.format_first_option()) if observes_routers else None
        if routing.replay != "none" and settings.packing == "shared":
            raise ValueError(
                "packing=shared computes common prefixes once, but under model.routing_replay each row has its own "
                "experts; use update.packing=true or auto"
            )
        self._form: Form | None = None
        if settings.packing not in (False, "auto"):
            _ = self.form  # raises now if a network does not support the packing
        with save_memory(settings.checkpoint_activations, policy, self._critic_trunk):
            pass  # raises now if layers cannot be recomputed
        self.lanes: Lanes | None = None
        if settings.lanes > 1:
            if observes_routers:
                raise ValueError(
                    f"lanes={settings.lanes}: routers are observed in one micro-batch at a time; set update.lanes=1, "
                    "or set neither model.router_loss nor model.routing_replay"
                )
            _ = self.form  # chosen before the modules are copied, because choosing it prepares them
            self.lanes = Lanes((policy, critic, head), settings.lanes)

    @property
    def _critic_trunk(self) -> nn.Module | None:
        return None if self.critic is None else self.critic.trunk

    @property
    def trained(self) -> list[nn.Module]:
        return [network for network in (self.policy, self.critic, self.head) if network is not None]

    @property
    def has_observed_routers(self) -> bool:
        """True if routers are balanced or replayed."""
        return self._routers is not None

    @property
    def frozen(self) -> list[nn.Module]:
        """Networks that are not trained; with adapters the reference is the policy itself."""
        return [] if self.reference is None or self.reference is self.policy else [self.reference]

    def iterate_modules(self) -> Iterator[nn.Module]:
        """Iterate over all layers of all networks."""
        for network in (*self.trained, *self.frozen):
            yield from network.modules()
        if self.lanes is not None:
            yield from self.lanes.iterate_modules()

    def copy_for_lane(self, number: int) -> Networks:
        """Return the networks of one lane."""
        assert self.lanes is not None
        networks = copy.copy(self)
        networks.policy, networks.critic, networks.head = self.lanes.modules_of[number]
        return networks

    @property
    def scored(self) -> str:
        """Column that is True at the tokens to score."""
        return "is_action_BT" if self.head is None else "is_scored_BT"

    @property
    def form(self) -> Form:
        """The form in which rows go through the networks."""
        if self._form is None:
            readers = [self.policy, self._critic_trunk, self.reference]
            device = next(self.policy.parameters()).device
            # before its first use a frozen reference waits on the CPU, which has no kernel to try
            if self.reference is not None and next(self.reference.parameters()).device != device:
                self.reference.to(device)
            networks = [network for network in readers if network is not None]
            form = choose_form(networks, self._settings.packing, is_cuda=device.type == "cuda")
            self._form = "packed" if form == "shared" and self.routing.replay != "none" else form
        return self._form

    # ------------------------------------------------------------------ without gradient
    def compute_logp(self, tensors: Tensors, network: Any | None = None) -> Tensor:
        """Compute log-probs (nats) of the rows under the current policy or another network.

        Routers of another network are not replayed.
        """
        if network is None and (levels := get_levels(self.policy)):
            return sum(  # type: ignore[return-value]
                self._score_actions(part, None) for part in self._split_levels(tensors, levels)
            )
        return self._score_actions(tensors, network)

    def _split_levels(self, tensors: Tensors, levels: tuple[str, ...]) -> Iterator[Tensors]:
        """Yield the rows with only the tokens of each level, while its adapter is active."""
        # place_A lists the places of all sampled tokens, so it would be wrong for those of one level
        others = {name: tensor for name, tensor in tensors.items() if name != "place_A"}
        for level, is_plan in zip(levels, (False, True), strict=True):
            is_of_level_BT = tensors["is_action_BT"] & (tensors["is_plan_BT"] == is_plan)
            with use_level(self.policy, level):
                yield others | {"is_action_BT": is_of_level_BT}

    def _score_actions(self, tensors: Tensors, network: Any | None) -> Tensor:
        return score_rows(
            self.policy if network is None else network, tensors, temperature=self._temperature,
            form=self.form, tokens_per_microbatch=self._settings.tokens_per_microbatch,
            logits_chunk=self._settings.logits_chunk, routers=self._routers if network is None else None,
        )  # fmt: skip

    def choose_experts(self, tensors: Tensors) -> Tensor:
        """Return the experts that the policy's routers choose now, (B, T x choices per token)."""
        assert self._routers is not None
        return choose_experts(
            self.policy, self._routers, tensors, form=self.form,
            tokens_per_microbatch=self._settings.tokens_per_microbatch,
        )  # fmt: skip

    def measure_loads(self, minibatch: Tensors) -> Tensors:
        """Measure how the minibatch of all ranks loads the experts; a collective.

        Returns:
            ``load_LE``, the fraction of the balanced tokens that chose each expert, and ``num_balanced``, their number.
        """
        assert self._routers is not None
        is_balanced_BT = find_balanced_tokens(minibatch)
        experts_BK = minibatch["experts_BK"] if "experts_BK" in minibatch else self.choose_experts(minibatch)
        count_LE = sum_over_ranks(self._routers.count_choices(experts_BK, is_balanced_BT))
        num_balanced = sum_over_ranks(is_balanced_BT.sum())
        return {"load_LE": count_LE.double() / num_balanced.clamp(min=1), "num_balanced": num_balanced}

    @contextmanager
    def observe_routers(self, part: Tensors, packing: Packing | None) -> Iterator[Pass | None]:
        """Observe the routers during the passes of a micro-batch, and replay its recorded experts."""
        if self._routers is None:
            yield None
            return
        with self._routers.trace(part["tokens_BT"], packing, part.get("experts_BK")) as routed:
            yield routed

    def compute_reference_logp(self, tensors: Tensors, hooks: StrategyHooks) -> Tensor:
        """Compute log-probs (nats) of the rows under the reference."""
        assert self.reference is not None
        with (
            hooks.place_on_device(self.reference, tensors["tokens_BT"].device),
            disable_adapters(self.reference),
        ):
            return self.compute_logp(tensors, self.reference)

    def describe_computation(self, device: torch.device) -> dict[str, Any]:
        """Describe all settings, besides weights and rows, that change bits of reference log-probs."""
        assert self.reference is not None
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        return {
            "form": self.form, "tokens_per_microbatch": self._settings.tokens_per_microbatch,
            "logits_chunk": self._settings.logits_chunk, "temperature": self._temperature, "device": name,
            "attention": self.reference.config._attn_implementation, "is_base": self.reference is self.policy,
            "torch": torch.__version__, "matmul": torch.get_float32_matmul_precision(),
        }  # fmt: skip

    def compute_values(self, tensors: Tensors) -> Tensor:
        """Compute the critic's values of the rows, in reward units."""
        return self.compute_critic_columns(tensors)["value_BT"]

    def compute_critic_columns(self, tensors: Tensors) -> Tensors:
        """Compute all outputs of the critic, in reward units: ``value_BT`` and others."""
        assert self.critic is not None
        output_BT = evaluate_rows(
            self.critic, self.policy, tensors, form=self.form,
            tokens_per_microbatch=self._settings.tokens_per_microbatch, routers=self._routers,
        )  # fmt: skip
        return self.critic.name_columns(output_BT)

    def compute_target_values(self, tensors: Tensors) -> Tensors:
        """Compute the values, in reward units, under the critic's slow weights."""
        assert self.critic is not None and self.critic.slow is not None
        with self.critic.slow.use(self.critic):
            columns = self.compute_critic_columns(tensors)
        return {f"target_{name}": columns[name] for name in ("value_BT", "implicit_q_BT") if name in columns}

    def compute_head_scores(self, tensors: Tensors) -> Tensor:
        """Compute the head's scores where ``is_scored_BT``: (B, T), or (B, T, H) for H heads."""
        assert self.head is not None
        head = self.head

        def score(is_action_BT: Tensor, **rows: Any) -> Tensor:
            score_BT: Tensor = head(self.policy, is_scored_BT=is_action_BT, **rows)
            return score_BT

        rows = {name: tensors[name] for name in ("tokens_BT", "is_real_BT")}
        rows["is_action_BT"] = tensors["is_scored_BT"]
        return run_micro_batches(score, rows, 2 * self._settings.tokens_per_microbatch, self.form)

    # ------------------------------------------------------------------ with gradient
    def score(
        self, part: Tensors, packing: Packing | None, *, entropy_grad: bool, with_ref_kl: bool = False
    ) -> Scores:
        """Score a micro-batch for a loss: the policy's log-probs and entropies, or head scores.

        Args:
            part: the rows.
            packing: how they are packed.
            entropy_grad: whether entropies carry gradient.
            with_ref_kl: whether to also compute ``ref_kl_BT``, the KL of the reference to the policy over the
                vocabulary.
        """
        with save_memory(self._settings.checkpoint_activations, self.policy):
            if self.head is not None:
                rows = {name: part[name] for name in ("tokens_BT", "is_scored_BT", "place_A")}
                return Scores({self.head.column: self.head(self.policy, **rows, packing=packing)})
            if not (levels := get_levels(self.policy)):
                return self._score_policy(part, packing, entropy_grad, with_ref_kl)
            # A level without tokens is not computed, so that its adapter gets no gradient and does not change.  The
            # zeros require gradient, so that the backward pass also works if no level has tokens.
            zero_BT = part["sampler_logp_BT"].new_zeros(part["tokens_BT"].shape, requires_grad=True)
            names = ("logp_BT", "entropy_BT") + (("ref_kl_BT",) if with_ref_kl else ())
            columns = {name: zero_BT * 1 for name in names}
            for own in self._split_levels(part, levels):
                if bool(own["is_action_BT"].any()):
                    own_columns = self._score_policy(own, packing, entropy_grad, with_ref_kl).columns
                    columns = {name: column + own_columns[name] for name, column in columns.items()}
            return Scores(columns)

    def _score_policy(
        self, part: Tensors, packing: Packing | None, entropy_grad: bool, with_ref_kl: bool
    ) -> Scores:
        rows: dict[str, Any] = {name: part[name] for name in ("tokens_BT", "is_action_BT")}
        rows |= {
            "packing": packing,
            "place_A": part.get("place_A"),
            "logits_chunk": self._settings.logits_chunk,
        }
        scores = score_tokens(
            self.policy, **rows, temperature=self._temperature, with_entropy=True, entropy_grad=entropy_grad,
            with_hidden=self.critic is not None and self.critic.is_shared, is_checked=True,
            reference=self._read_reference(rows) if with_ref_kl else None,
        )  # fmt: skip
        columns = {name: getattr(scores, name) for name in ("logp_BT", "entropy_BT", "ref_kl_BT")}
        return Scores({name: x_BT for name, x_BT in columns.items() if x_BT is not None}, scores.hidden_AD)

    @torch.no_grad()
    def _read_reference(self, rows: dict[str, Any]) -> Logits:
        assert self.reference is not None
        with disable_adapters(self.reference):
            return read_logits(self.reference, **rows)

    def compute_value_loss(
        self, part: Tensors, packing: Packing | None, hidden_AD: Tensor | None, objective: Objective
    ) -> tuple[Tensor, Tensors]:
        """Compute the critic's weighted loss, including the objective's value loss, and metrics."""
        assert self.critic is not None
        rows: dict[str, Any] = {name: part[name] for name in ("tokens_BT", "is_action_BT", "place_A")}
        with save_memory(self._settings.checkpoint_activations, self._critic_trunk):
            output_BT = self.critic(self.policy, **rows, packing=packing, hidden_AD=hidden_AD)
        columns = self.critic.name_columns(output_BT)
        loss, metrics = self.critic.compute_loss(columns, part)
        if (extra := objective.value_loss(part | columns)) is not None:
            loss, metrics = loss + extra[0], metrics | extra[1]
        return self.critic.coef * loss, metrics


def find_balanced_tokens(rows: Tensors) -> Tensor:
    """Find the tokens that the network reads in rows with sampled tokens, (B, T)."""
    return find_read_tokens(rows["is_real_BT"]) & rows["is_action_BT"].any(1)[:, None]
