"""The critic: values of states, learnt beside the policy from the targets of an advantage estimator."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.checks import require_number, require_positive, require_whole
from lit_agentrl.distributed import gather_rows
from lit_agentrl.models.logprobs import at_least_float32, hidden_before
from lit_agentrl.models.packing import Packing
from lit_agentrl.models.policy import Policy
from lit_agentrl.models.pretrained import held_back, load_network
from lit_agentrl.rl.binding import bind, try_out
from lit_agentrl.rl.masked import masked_sum
from lit_agentrl.rl.value_loss import ValueLoss, explained_variance
from lit_agentrl.update.settings import OptimSettings


class Critic(nn.Module):
    """``V(s_t)``, the value of the state before sampled token t, in environment points, from one linear head.

    The head starts at zero, so that the first values are exactly 0.  It reads the hidden
    state at position t - 1: what the policy itself knows when it samples token t.

    Args:
        hidden: width of the trunk.
        trunk: a network of the critic's own, or None: the head then reads the policy's hidden states.
        loss: per-token value loss; see ``rl/value_loss.py``.
        optim: optimizer and schedule of the critic's own parameters.
        coef: weight of the value loss where the trunk is the policy's; of the trunk's gradient and the head's.
        grad_clip: largest gradient norm of the critic's own parameters.
        warmup_iterations: first iterations in which values alone are learnt.

    Raises:
        ValueError: a value out of range, naming the option.
    """

    def __init__(
        self,
        hidden: int,
        *,
        trunk: nn.Module | None,
        loss: Callable[..., ValueLoss],
        optim: OptimSettings,
        coef: float = 1.0,
        grad_clip: float = 1.0,
        warmup_iterations: int = 0,
    ) -> None:
        super().__init__()
        require_number(
            "coef", coef, "finite and > 0; critic=separate learns without the policy", lambda value: value > 0
        )
        require_positive("grad_clip", grad_clip)
        require_whole("warmup_iterations", warmup_iterations, 0)
        self.trunk = trunk
        self.head = nn.Linear(hidden, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        try_out("loss", loss, ValueLoss, TrajectoryBatch.toy().tensors())
        self.loss = loss
        self.optim = optim
        self.coef = coef
        self.grad_clip = grad_clip
        self.warmup_iterations = warmup_iterations

    @property
    def is_shared(self) -> bool:
        """Whether the value loss also trains the policy's trunk."""
        return self.trunk is None

    def forward(
        self,
        policy: PreTrainedModel,
        *,
        tokens_BT: Tensor,
        is_action_BT: Tensor,
        hidden_AD: Tensor | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        """``value_BT``, 0 where not an action; gradient into head and trunk; precision as in `score_tokens`.

        Args:
            policy: the network whose trunk is read where the critic has none.
            tokens_BT: right-padded rows of ids.
            is_action_BT: where values are wanted.
            hidden_AD: the policy's hidden states before its action tokens, where they are at hand.
            packing: of the rows, where they are to be packed.
        """
        if self.trunk is not None or hidden_AD is None:
            network = policy if self.trunk is None else self.trunk
            hidden_AD = hidden_before(
                network, tokens_BT=tokens_BT, is_action_BT=is_action_BT, packing=packing
            )
        value_A = at_least_float32(self.head(hidden_AD.to(self.head.weight.dtype)).squeeze(-1))
        value_BT = torch.zeros(tokens_BT.shape, dtype=value_A.dtype, device=tokens_BT.device)
        return value_BT.index_put(torch.nonzero(is_action_BT, as_tuple=True), value_A)

    def value_loss(self, value_BT: Tensor, part: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean over the minibatch's targets, this micro-batch's share of it; and metrics for `add_metrics`.

        Args:
            value_BT: with gradient.
            part: holds ``old_value_BT``, ``return_BT``, ``is_value_target_BT`` and ``value_weight_BT``, which
                sums to 1 over the targets of the whole minibatch on all ranks.
        """
        mask_BT = part["is_value_target_BT"]
        result: ValueLoss = bind(self.loss, {**part, "value_BT": value_BT})
        loss = masked_sum(part["value_weight_BT"] * result.loss_BT, mask_BT)
        count = mask_BT.sum().float()
        with torch.no_grad():
            metrics = {
                "critic_loss": torch.stack([masked_sum(result.loss_BT, mask_BT), count]),
                "critic_value": torch.stack([masked_sum(value_BT, mask_BT), count]),
                "critic_clip_share": torch.stack([masked_sum(result.is_clipped_BT.float(), mask_BT), count]),
            }
        return loss, metrics


def explained(tensors: dict[str, Tensor]) -> float:
    """Explained variance of the values that the advantages were computed from, over the rows of all ranks."""
    names = ("old_value_BT", "return_BT", "is_value_target_BT")
    everyone, _ = gather_rows({name: tensors[name] for name in names}, tensors["trajectory_B"])
    return float(
        explained_variance(
            value_BT=everyone["old_value_BT"],
            return_BT=everyone["return_BT"],
            is_value_target_BT=everyone["is_value_target_BT"],
        )
    )


def separate(
    policy: Policy,
    *,
    loss: Callable[..., ValueLoss],
    optim: OptimSettings,
    model: str | None = None,
    grad_clip: float = 1.0,
    warmup_iterations: int = 0,
) -> Critic:
    """A critic with a network of its own: a copy of the policy's trunk, or ``model``.

    Where the policy has adapters, the copy has its own on the same base, which is not copied, and trains them alone.

    Args:
        policy: the policy beside which it learns.
        loss: see `Critic`, as for all others.
        optim: optimizer and schedule.
        model: folder or hub id of a network that speaks the same token ids, of any size.
        grad_clip: largest gradient norm.
        warmup_iterations: iterations of values alone.

    Raises:
        ValueError: ``model`` cannot be loaded or knows fewer tokens than the policy.
    """
    if model is None:
        trunk: Any = _copied_trunk(policy)
    else:
        try:
            with held_back():
                trunk = load_network(AutoModel, model, policy.network.dtype)
        except ValueError as error:
            raise ValueError(f"model={model} could not be loaded ({error})") from error
        if trunk.config.vocab_size < policy.network.config.vocab_size:
            raise ValueError(
                f"model={model} knows {trunk.config.vocab_size} tokens, the policy "
                f"{policy.network.config.vocab_size}; give a model with the same tokenizer"
            )
        trunk.requires_grad_(True)
    trunk.train(False)
    return Critic(
        trunk.config.hidden_size, trunk=trunk, loss=loss, optim=optim, grad_clip=grad_clip,
        warmup_iterations=warmup_iterations,
    )  # fmt: skip


def _copied_trunk(policy: Policy) -> Any:
    trunk = policy.network.base_model
    if policy.adapters is None:
        return copy.deepcopy(trunk).requires_grad_(True)
    base = {id(parameter): parameter for parameter in trunk.parameters() if not parameter.requires_grad}
    return copy.deepcopy(trunk, base)  # what is in the memo is taken as it is


@functools.wraps(separate, assigned=("__annotations__",))  # start-up checks options against the signature
def separate_if_needed(*args: Any, **options: Any) -> Critic:
    """As `separate`; a run whose advantage asks for no values goes without it."""
    return separate(*args, **options)


def shared(
    policy: Policy,
    *,
    loss: Callable[..., ValueLoss],
    optim: OptimSettings,
    coef: float,
    grad_clip: float = 1.0,
    warmup_iterations: int = 0,
) -> Critic:
    """A head on the policy's own trunk, which the value loss then trains too, weighted by ``coef``."""
    return Critic(
        policy.network.config.hidden_size, trunk=None, loss=loss, optim=optim, coef=coef,
        grad_clip=grad_clip, warmup_iterations=warmup_iterations,
    )  # fmt: skip
