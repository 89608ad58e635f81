"""The networks of an update, and how rows go through them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lit_agentrl.distributed import StrategyHooks
from lit_agentrl.models.heads import ScoreHead
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.models.lora import disable_adapters, get_levels, use_level
from lit_agentrl.models.packing import Packing
from lit_agentrl.models.routers import Routing
from lit_agentrl.models.routing import Pass, Routers
from lit_agentrl.rl.objective import Objective
from lit_agentrl.update.critic import Critic
from lit_agentrl.update.lanes import Lanes
from lit_agentrl.update.microbatches import Form, micro_batched
from lit_agentrl.update.scoring import expert_rows, form_of_rows, memory_saved, score_rows, value_rows
from lit_agentrl.update.settings import UpdateSettings

Tensors = dict[str, Tensor]


class Found(NamedTuple):
    """What a loss reads off a micro-batch.

    Attributes:
        columns: by name, with gradient.
        hidden_AD: what the policy's head read, where a critic reads it too.
    """

    columns: Tensors
    hidden_AD: Tensor | None = None


class Networks:
    """The policy's network, and beside it a critic and a frozen reference, where there are any; or a reward model.

    Args:
        policy: causal LM, trained in place.
        critic: or None.
        reference: the policy as it was at the start, or None.
        settings: how rows are cut up and packed.
        temperature: sampling temperature of the trajectories; log-probs are taken at it.
        routing: what is done about the policy's routers.
        head: of a reward model: it is trained with the network below it, whose log-probs nobody asks for.

    Raises:
        ValueError: a network cannot take rows in the form that is demanded, or its layers cannot be run again.
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
                "critic=shared reads the policy's states, and those of two adapters are two: set critic=separate"
            )
        if get_levels(policy) and settings.checkpoint_activations:
            raise ValueError(
                "checkpoint_activations=true runs layers again, under whichever adapter acts then: leave it false, "
                "or use model/lora=default"
            )
        asks = routing.loss > 0 or routing.replay != "none"
        self._routers = Routers(policy, routing.given()) if asks else None
        if routing.replay != "none" and settings.packing == "shared":
            raise ValueError(
                "packing=shared computes once what rows begin alike in, and model.routing_replay has each row keep its "
                "own experts; use update.packing=true or auto"
            )
        self._form: Form | None = None
        if settings.packing not in (False, "auto"):  # a network that cannot is refused at once
            _ = self.form
        with memory_saved(settings.checkpoint_activations, policy, self._own_trunk):
            pass  # and one whose layers cannot be run again
        self.lanes: Lanes | None = None
        if settings.lanes > 1:
            if asks:
                raise ValueError(
                    f"lanes={settings.lanes}: what routers do is seen one micro-batch at a time; set update.lanes=1, "
                    "or leave model.routing_loss and model.routing_replay"
                )
            _ = self.form  # which copies then have as well
            self.lanes = Lanes((policy, critic, head), settings.lanes)

    @property
    def _own_trunk(self) -> nn.Module | None:
        return None if self.critic is None else self.critic.trunk

    @property
    def trained(self) -> list[nn.Module]:
        return [each for each in (self.policy, self.critic, self.head) if each is not None]

    @property
    def frozen(self) -> list[nn.Module]:
        """Those that are read alone; of a policy with adapters the reference is the policy itself."""
        return [] if self.reference is None or self.reference is self.policy else [self.reference]

    def modules(self) -> Iterator[nn.Module]:
        """All layers of all networks."""
        for network in (*self.trained, *self.frozen):
            yield from network.modules()
        if self.lanes is not None:
            yield from self.lanes.modules()

    def of_lane(self, number: int) -> Networks:
        """Those that a lane computes with."""
        assert self.lanes is not None
        own = copy.copy(self)
        own.policy, own.critic, own.head = self.lanes.each[number]
        return own

    @property
    def form(self) -> Form:
        """The form in which rows go through the networks."""
        if self._form is None:
            readers = [self.policy, self._own_trunk, self.reference]
            is_cuda = next(self.policy.parameters()).device.type == "cuda"
            found = [network for network in readers if network is not None]
            form = form_of_rows(found, self._settings.packing, is_cuda=is_cuda)
            self._form = "packed" if form == "shared" and self.routing.replay != "none" else form
        return self._form

    # ------------------------------------------------------------------ without gradient
    def logp(self, tensors: Tensors, network: Any | None = None) -> Tensor:
        """Log-probs (nats) of the rows under the policy of now, or another network, whose routers choose freely."""
        if network is None and (levels := get_levels(self.policy)):
            return sum(  # type: ignore[return-value]
                self._scored(part, None) for part in self._of_levels(tensors, levels)
            )
        return self._scored(tensors, network)

    def _of_levels(self, tensors: Tensors, levels: tuple[str, ...]) -> Iterator[Tensors]:
        """The rows with the sampled tokens of one level, whose adapter acts meanwhile."""
        for is_plan, name in enumerate(levels):
            is_own_BT = tensors["is_action_BT"] & (tensors["is_plan_BT"] == bool(is_plan))
            with use_level(self.policy, name):
                yield {**tensors, "is_action_BT": is_own_BT}

    def _scored(self, tensors: Tensors, network: Any | None) -> Tensor:
        return score_rows(
            self.policy if network is None else network, tensors, temperature=self._temperature,
            form=self.form, tokens_per_microbatch=self._settings.tokens_per_microbatch,
            logits_chunk=self._settings.logits_chunk, routers=self._routers if network is None else None,
        )  # fmt: skip

    def experts(self, tensors: Tensors) -> Tensor:
        """What the policy's routers choose for the rows now, (B, T x choices of a token)."""
        assert self._routers is not None
        return expert_rows(
            self.policy, self._routers, tensors, form=self.form,
            tokens_per_microbatch=self._settings.tokens_per_microbatch,
        )  # fmt: skip

    @contextmanager
    def routed(self, part: Tensors, packing: Packing | None) -> Iterator[Pass | None]:
        """Around the passes of a micro-batch and its backward: its routers are seen, and told where that is asked."""
        if self._routers is None:
            yield None
            return
        with self._routers.trace(part["tokens_BT"], packing, part.get("experts_BK")) as found:
            yield found

    def reference_logp(self, tensors: Tensors, hooks: StrategyHooks) -> Tensor:
        """Log-probs (nats) of the rows under the reference."""
        assert self.reference is not None
        with hooks.in_use(self.reference, tensors["tokens_BT"].device), disable_adapters(self.reference):
            return self.logp(tensors, self.reference)

    def computed(self, device: torch.device) -> dict[str, Any]:
        """All that the reference's log-probs depend on, to the last bit, beside its weights and the rows."""
        assert self.reference is not None
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        return {
            "form": self.form, "tokens_per_microbatch": self._settings.tokens_per_microbatch,
            "logits_chunk": self._settings.logits_chunk, "temperature": self._temperature, "device": name,
            "attention": self.reference.config._attn_implementation, "is_base": self.reference is self.policy,
            "torch": torch.__version__, "matmul": torch.get_float32_matmul_precision(),
        }  # fmt: skip

    def values(self, tensors: Tensors) -> Tensor:
        """The critic's values (points) of the rows."""
        return self.valued(tensors)["value_BT"]

    def valued(self, tensors: Tensors) -> Tensors:
        """All that the critic says of the rows (points): ``value_BT``, and what else its head gives."""
        assert self.critic is not None
        found_BT = value_rows(
            self.critic, self.policy, tensors, form=self.form,
            tokens_per_microbatch=self._settings.tokens_per_microbatch, routers=self._routers,
        )  # fmt: skip
        return self.critic.named(found_BT)

    def target_values(self, tensors: Tensors) -> Tensors:
        """The values (points) of the critic's slow weights, of states, and of tokens where V is learnt from them."""
        assert self.critic is not None and self.critic.slow is not None
        with self.critic.slow.in_use(self.critic):
            found = self.valued(tensors)
        return {f"target_{name}": found[name] for name in ("value_BT", "implicit_q_BT") if name in found}

    def head_scores(self, tensors: Tensors) -> Tensor:
        """The head's scores of the rows where ``is_scored_BT``, (B, T), or (B, T, H) of several heads."""
        assert self.head is not None
        head = self.head

        def scored(tokens_BT: Tensor, is_action_BT: Tensor, packing: Packing | None) -> Tensor:
            found_BT: Tensor = head(
                self.policy, tokens_BT=tokens_BT, is_scored_BT=is_action_BT, packing=packing
            )
            return found_BT

        rows = {name: tensors[name] for name in ("tokens_BT", "is_real_BT")}
        rows["is_action_BT"] = tensors["is_scored_BT"]
        return micro_batched(scored, rows, 2 * self._settings.tokens_per_microbatch, self.form)

    # ------------------------------------------------------------------ with gradient
    def scores(self, part: Tensors, packing: Packing | None, *, entropy_grad: bool) -> Found:
        """What a loss reads of a micro-batch: log-probs and entropies of the policy, or scores of the head."""
        with memory_saved(self._settings.checkpoint_activations, self.policy):
            if self.head is not None:
                rows = {name: part[name] for name in ("tokens_BT", "is_scored_BT")}
                return Found({self.head.column: self.head(self.policy, **rows, packing=packing)})
            if not (levels := get_levels(self.policy)):
                return self._of_policy(part, packing, entropy_grad)
            # a level without tokens here is not computed: its adapter gets no gradient, and stands still to the bit
            idle_BT = part["sampler_logp_BT"].new_zeros(part["tokens_BT"].shape, requires_grad=True)
            columns = {"logp_BT": idle_BT * 1, "entropy_BT": idle_BT * 1}
            for own in self._of_levels(part, levels):
                if bool(own["is_action_BT"].any()):
                    found = self._of_policy(own, packing, entropy_grad).columns
                    columns = {name: column + found[name] for name, column in columns.items()}
            return Found(columns)

    def _of_policy(self, part: Tensors, packing: Packing | None, entropy_grad: bool) -> Found:
        found = score_tokens(
            self.policy, tokens_BT=part["tokens_BT"], is_action_BT=part["is_action_BT"], packing=packing,
            temperature=self._temperature, with_entropy=True, entropy_grad=entropy_grad,
            with_hidden=self.critic is not None and self.critic.is_shared,
            logits_chunk=self._settings.logits_chunk, is_checked=True,
        )  # fmt: skip
        assert found.entropy_BT is not None
        return Found({"logp_BT": found.logp_BT, "entropy_BT": found.entropy_BT}, found.hidden_AD)

    def value_loss(
        self, part: Tensors, packing: Packing | None, hidden_AD: Tensor | None, objective: Objective
    ) -> tuple[Tensor, Tensors]:
        """The critic's loss on a micro-batch, with what the objective adds, times its weight; and metrics."""
        assert self.critic is not None
        rows: dict[str, Any] = {name: part[name] for name in ("tokens_BT", "is_action_BT")}
        with memory_saved(self._settings.checkpoint_activations, self._own_trunk):
            found_BT = self.critic(self.policy, **rows, packing=packing, hidden_AD=hidden_AD)
        found = self.critic.named(found_BT)
        loss, metrics = self.critic.value_loss(found, part)
        if (beside := objective.value_loss(part | found)) is not None:
            loss, metrics = loss + beside[0], metrics | beside[1]
        return self.critic.coef * loss, metrics
