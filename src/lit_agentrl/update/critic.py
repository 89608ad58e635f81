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
from lit_agentrl.engines.reweighted import Reweighted
from lit_agentrl.models.heads import StateValues, TokensAndState, TokenValues, ValueHead, ValuesAndCosts
from lit_agentrl.models.logprobs import read_hidden_before
from lit_agentrl.models.packing import Packing
from lit_agentrl.models.policy import Policy
from lit_agentrl.models.pretrained import hold_back_logs, load_network
from lit_agentrl.rl.binding import bind, tensor_names, try_out
from lit_agentrl.rl.credit.value_loss import ValueLoss, explained_variance
from lit_agentrl.rl.masked import masked_sum
from lit_agentrl.update.settings import OptimSettings
from lit_agentrl.update.slow import SlowWeights

_HEADS: dict[str, type[ValueHead]] = {  # by the option that has them
    "separate": StateValues, "conservative": TokenValues, "implicit": TokensAndState, "costs": ValuesAndCosts,
}  # fmt: skip


class Critic(nn.Module):
    """Values of the state before sampled token t, in environment points, from one linear head.

    The head starts at zero, so that the first values are exactly 0.  It reads the hidden
    state at position t - 1: what the policy itself knows when it samples token t.

    Args:
        hidden: width of the trunk.
        vocabulary: tokens.
        trunk: a network of the critic's own, or None: the head then reads the policy's hidden states.
        loss: per-token value loss; see ``rl/credit/value_loss.py``.
        optim: optimizer and schedule of the critic's own parameters.
        coef: weight of the value loss where the trunk is the policy's; of the trunk's gradient and the head's.
        grad_clip: largest gradient norm of the critic's own parameters.
        warmup_iterations: first iterations in which values alone are learnt.
        target_rate: of `SlowWeights`, whose values are the ``target_value_BT`` of an estimator; 1: there are none, and
            targets are made of the values of before the update.
        head: says what the critic gives; None: `StateValues`.
        beta: by which Q reweighs what evaluations play, see `played_with`, in 1 / points; 0: it does not.

    Raises:
        ValueError: a value out of range, or a loss that asks for what the head does not give, naming the option.
    """

    def __init__(
        self,
        hidden: int,
        vocabulary: int,
        *,
        trunk: nn.Module | None,
        loss: Callable[..., ValueLoss],
        optim: OptimSettings,
        coef: float = 1.0,
        grad_clip: float = 1.0,
        warmup_iterations: int = 0,
        target_rate: float = 1.0,
        head: ValueHead | None = None,
        beta: float = 0.0,
    ) -> None:
        super().__init__()
        require_number(
            "coef", coef, "finite and > 0; critic=separate learns without the policy", lambda value: value > 0
        )
        require_positive("grad_clip", grad_clip)
        require_whole("warmup_iterations", warmup_iterations, 0)
        self.trunk = trunk
        require_number("target_rate", target_rate, "above 0 and at most 1", lambda share: 0 < share <= 1)
        self.reads = head or StateValues()
        require_number("beta", beta, "finite and >= 0; 0 plays the policy alone", lambda value: value >= 0)
        if beta and not isinstance(self.reads, TokensAndState):
            raise ValueError(f"beta={beta:g} reweighs by Q of all tokens beside V; set critic=implicit")
        self.beta = beta
        self.head = nn.Linear(hidden, self.reads.get_width(vocabulary))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        try_out("loss", loss, ValueLoss, TrajectoryBatch.make_toy().to_dict())
        asked = set(tensor_names(loss)) & {column for heads in _HEADS.values() for column in heads.columns}
        for critic, heads in _HEADS.items():
            if asked <= set(heads.columns) and (lacking := sorted(asked - set(self.reads.columns))):
                raise ValueError(
                    f"loss asks for {lacking[0]}, which this critic does not have; set critic={critic}"
                )
        self.loss = loss
        self.optim = optim
        self.coef = coef
        self.grad_clip = grad_clip
        self.warmup_iterations = warmup_iterations
        self.slow = SlowWeights(self, target_rate) if target_rate < 1 else None

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
        """The columns of the head, 0 where not an action; gradient into head and trunk; precision as in `score_tokens`.

        One column is (B, T), several are (B, T, C); `named` tells them apart.

        Args:
            policy: the network whose trunk is read where the critic has none.
            tokens_BT: right-padded rows of ids.
            is_action_BT: where values are wanted.
            hidden_AD: the policy's hidden states before its action tokens, where they are at hand.
            packing: of the rows, where they are to be packed.
        """
        if self.trunk is not None or hidden_AD is None:
            network = policy if self.trunk is None else self.trunk
            hidden_AD = read_hidden_before(
                network, tokens_BT=tokens_BT, is_action_BT=is_action_BT, packing=packing
            )
        out_AC = self.head(hidden_AD.to(self.head.weight.dtype))
        found_A = self.reads.read(out_AC, tokens_BT[is_action_BT])
        shape = (*tokens_BT.shape, *found_A.shape[1:])
        found_BT = torch.zeros(shape, dtype=found_A.dtype, device=tokens_BT.device)
        return found_BT.index_put(torch.nonzero(is_action_BT, as_tuple=True), found_A)

    def named(self, found_BT: Tensor) -> dict[str, Tensor]:
        """What :meth:`forward` gives, (B, T) by name; ``value_BT`` is always there."""
        parts = found_BT.unbind(-1) if found_BT.dim() > 2 else (found_BT,)
        return dict(zip(self.reads.columns, parts, strict=True))

    def value_loss(
        self, found: dict[str, Tensor], part: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean over the minibatch's targets, this micro-batch's share of it; and metrics for `add_metrics`.

        Args:
            found: the columns of :meth:`named`, with gradient.
            part: holds ``old_value_BT``, ``return_BT``, ``is_value_target_BT`` and ``value_weight_BT``, which
                sums to 1 over the targets of the whole minibatch on all ranks.
        """
        mask_BT = part["is_value_target_BT"]
        value_BT = found["value_BT"]
        result: ValueLoss = bind(self.loss, {**part, **found})
        loss = masked_sum(part["value_weight_BT"] * result.loss_BT, mask_BT)
        count = mask_BT.sum().float()
        with torch.no_grad():
            metrics = {
                "critic_loss": torch.stack([masked_sum(result.loss_BT, mask_BT), count]),
                "critic_value": torch.stack([masked_sum(value_BT, mask_BT), count]),
                "critic_clip_share": torch.stack([masked_sum(result.is_clipped_BT.float(), mask_BT), count]),
            }
        return loss, metrics


def played_with(network: Any, critic: Critic | None) -> Any:
    """What evaluations play with: the policy's network, its tokens reweighed by Q where the critic has a ``beta``."""
    if critic is None or not critic.beta:
        return network
    assert isinstance(critic.reads, TokensAndState) and critic.trunk is not None
    return Reweighted(
        network, trunk=critic.trunk, head=critic.head, tokens=critic.reads.select_tokens, beta=critic.beta
    )


def explained(tensors: dict[str, Tensor], kind: str = "") -> float:
    """Explained variance of what the advantages were computed from, over the rows of all ranks.

    It is of the values of states, or of Q of tokens where the critic has it: what the targets are of.

    Args:
        tensors: of this rank.
        kind: ``cost_``: of the values of costs.
    """
    of = next((n for n in ("q_BT", "implicit_q_BT") if n in tensors), f"old_{kind}value_BT")
    targets = f"{kind}return_BT"
    names = (of, targets, "is_value_target_BT")
    everyone, _ = gather_rows({name: tensors[name] for name in names}, tensors["trajectory_B"])
    return float(
        explained_variance(
            value_BT=everyone[of],
            return_BT=everyone[targets],
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
    target_rate: float = 1.0,
    head: ValueHead | None = None,
    beta: float = 0.0,
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
        target_rate: see `Critic`.
        head: see `Critic`.
        beta: see `Critic`.

    Raises:
        ValueError: ``model`` cannot be loaded or knows fewer tokens than the policy.
    """
    if model is None:
        trunk: Any = _copied_trunk(policy)
    else:
        try:
            with hold_back_logs():
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
        trunk.config.hidden_size, policy.network.config.get_text_config().vocab_size, trunk=trunk, loss=loss,
        optim=optim, grad_clip=grad_clip, warmup_iterations=warmup_iterations, target_rate=target_rate, head=head,
        beta=beta,
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
        policy.network.config.hidden_size, 0, trunk=None, loss=loss, optim=optim, coef=coef,
        grad_clip=grad_clip, warmup_iterations=warmup_iterations,
    )  # fmt: skip
