"""Critics: values of states, learnt from the targets of an advantage estimator."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.distributed import gather_rows
from lit_agentrl.engines.reweighted import Reweighted
from lit_agentrl.facts import VALUE_COLUMNS
from lit_agentrl.models.heads import StateValues, ValueHead
from lit_agentrl.models.logprobs import find_places, read_hidden_before
from lit_agentrl.models.packing import Packing
from lit_agentrl.models.policy import Policy
from lit_agentrl.models.pretrained import hold_back_logs, load_network
from lit_agentrl.models.reward_model import load_model
from lit_agentrl.rl.binding import bind, tensor_names, try_out
from lit_agentrl.rl.credit.value_loss import ValueLoss, explained_variance
from lit_agentrl.rl.masked import masked_sum
from lit_agentrl.text.token_bytes import hash_tokenizer
from lit_agentrl.update.settings import OptimSettings, check_critic
from lit_agentrl.update.slow import SlowWeights


class Critic(nn.Module):
    """A linear head that predicts the value of the state before sampled token t.

    Values are in units of environment reward.  The head starts at zero, so the first values are exactly 0, unless it
    starts as a reward model (`from_reward_model`).  It reads the hidden state at position t - 1, which is the
    information from which the policy samples token t.

    Args:
        hidden: width of the trunk.
        vocabulary: number of tokens.
        trunk: a separate network of the critic; None: the head reads the policy's hidden states.
        loss: per-token value loss; see ``rl/credit/value_loss.py``.
        optim: optimizer and schedule of the critic's own parameters.
        coef: weight of the value loss of a head on the policy's trunk; scales the gradients of both.
        grad_clip: largest gradient norm of the critic's own parameters.
        warmup_iterations: number of first iterations that train the critic only.
        target_rate: rate of `SlowWeights`, which predict the ``target_value_BT`` of an estimator; 1: there are none,
            and targets use the values from before the update.
        head: selects the columns that the critic predicts; None: `StateValues`.
        beta: strength, in 1 / reward, with which Q reweights the policy in evaluations, see
            `reweight_by_critic`; 0: none.

    Raises:
        ValueError: a value is out of range, or the loss needs a column that the head lacks; the message names the
            option.
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
        check_critic(
            coef=coef,
            grad_clip=grad_clip,
            warmup_iterations=warmup_iterations,
            target_rate=target_rate,
            beta=beta,
        )
        self.trunk = trunk
        self.outputs = head or StateValues()
        if beta and getattr(self.outputs, "select_tokens", None) is None:
            raise ValueError(
                f"beta={beta:g} reweights the policy by Q of all tokens, which this critic lacks; "
                f"set {VALUE_COLUMNS['implicit_q_BT'].remedy}"
            )
        self.beta = beta
        self.head = nn.Linear(hidden, self.outputs.get_width(vocabulary))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        try_out("loss", loss, ValueLoss, TrajectoryBatch.make_toy().to_dict())
        if lacking := sorted({*VALUE_COLUMNS} & {*tensor_names(loss)} - {*self.outputs.columns}):
            raise ValueError(
                f"loss reads {lacking[0]}, which this critic does not predict; set {VALUE_COLUMNS[lacking[0]].remedy}"
            )
        self.loss = loss
        self.optim = optim
        self.coef = coef
        self.grad_clip = grad_clip
        self.warmup_iterations = warmup_iterations
        self.slow = SlowWeights(self, target_rate) if target_rate < 1 else None

    @property
    def is_shared(self) -> bool:
        """True if the value loss also trains the policy's trunk."""
        return self.trunk is None

    def forward(
        self,
        policy: PreTrainedModel,
        *,
        tokens_BT: Tensor,
        is_action_BT: Tensor,
        hidden_AD: Tensor | None = None,
        packing: Packing | None = None,
        place_A: Tensor | None = None,
    ) -> Tensor:
        """Compute the columns of the head for action tokens; 0 elsewhere.

        One column is (B, T), several are (B, T, C); `name_columns` maps them to names.  Gradients flow into head and
        trunk.  Precision is as in `score_tokens`.

        Args:
            policy: the network whose trunk is read if the critic has none.
            tokens_BT: right-padded rows of ids.
            is_action_BT: True at the tokens for which values are computed.
            hidden_AD: the policy's hidden states before its action tokens, if known.
            packing: packing of the rows; None: unpacked.
            place_A: places of the action tokens, as in `find_places`.
        """
        places = find_places(is_action_BT, place_A)
        if self.trunk is not None or hidden_AD is None:
            network = policy if self.trunk is None else self.trunk
            hidden_AD = read_hidden_before(
                network, tokens_BT=tokens_BT, is_action_BT=is_action_BT, packing=packing, place_A=place_A
            )
        out_AC = self.head(hidden_AD.to(self.head.weight.dtype))
        predicted_A = self.outputs.read(out_AC, tokens_BT[places])
        shape = (*tokens_BT.shape, *predicted_A.shape[1:])
        predicted_BT = torch.zeros(shape, dtype=predicted_A.dtype, device=tokens_BT.device)
        return predicted_BT.index_put(places, predicted_A)

    def name_columns(self, predicted_BT: Tensor) -> dict[str, Tensor]:
        """Map the output of :meth:`forward` to (B, T) columns by name, always with ``value_BT``."""
        parts = predicted_BT.unbind(-1) if predicted_BT.dim() > 2 else (predicted_BT,)
        return dict(zip(self.outputs.columns, parts, strict=True))

    def compute_loss(
        self, predictions: dict[str, Tensor], part: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute this micro-batch's part of the minibatch's mean loss, and metrics for `add_metrics`.

        Args:
            predictions: the columns of :meth:`name_columns`, with gradient.
            part: holds ``old_value_BT``, ``return_BT``, ``is_value_target_BT`` and ``value_weight_BT``, which
                sums to 1 over the targets of the whole minibatch on all ranks.
        """
        mask_BT = part["is_value_target_BT"]
        value_BT = predictions["value_BT"]
        result: ValueLoss = bind(self.loss, {**part, **predictions})
        loss = masked_sum(part["value_weight_BT"] * result.loss_BT, mask_BT)
        count = mask_BT.sum().float()
        with torch.no_grad():
            metrics = {
                "critic_loss": torch.stack([masked_sum(result.loss_BT, mask_BT), count]),
                "critic_value": torch.stack([masked_sum(value_BT, mask_BT), count]),
                "critic_clip_share": torch.stack([masked_sum(result.is_clipped_BT.float(), mask_BT), count]),
            }
        return loss, metrics


def reweight_by_critic(network: Any, critic: Critic | None) -> Any:
    """Return the network for evaluations: the policy's, reweighted by Q if ``critic.beta`` is set."""
    if critic is None or not critic.beta:
        return network
    assert critic.outputs.select_tokens is not None and critic.trunk is not None
    return Reweighted(
        network, trunk=critic.trunk, head=critic.head, select_q=critic.outputs.select_tokens, beta=critic.beta
    )


def compute_explained_variance(tensors: dict[str, Tensor], kind: str = "") -> float:
    """Compute the explained variance of the critic's predictions over the rows of all ranks.

    The predictions are those that the targets train: Q of tokens if the critic has it, else values of states.

    Args:
        tensors: the rows of this rank.
        kind: ``cost_`` selects the values of costs.
    """
    column = next((n for n in ("q_BT", "implicit_q_BT") if n in tensors), f"old_{kind}value_BT")
    targets = f"{kind}return_BT"
    names = (column, targets, "is_value_target_BT")
    gathered, _ = gather_rows({name: tensors[name] for name in names}, tensors["trajectory_B"])
    return float(
        explained_variance(
            value_BT=gathered[column],
            return_BT=gathered[targets],
            is_value_target_BT=gathered["is_value_target_BT"],
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
    """Build a critic with a separate network: a copy of the policy's trunk, or ``model``.

    If the policy has adapters, the copy shares the frozen base weights, and has and trains only its own adapters.

    Args:
        policy: the policy that the critic evaluates.
        loss: see `Critic`.
        optim: optimizer and schedule.
        model: folder or hub id of a network with the same token ids, of any size.
        grad_clip: largest gradient norm.
        warmup_iterations: see `Critic`.
        target_rate: see `Critic`.
        head: see `Critic`.
        beta: see `Critic`.

    Raises:
        ValueError: ``model`` cannot be loaded or knows fewer tokens than the policy.
    """
    if model is None:
        trunk: Any = _copy_trunk(policy)
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


def from_reward_model(
    policy: Policy,
    *,
    path: str,
    loss: Callable[..., ValueLoss],
    optim: OptimSettings,
    grad_clip: float = 1.0,
    warmup_iterations: int = 0,
) -> Critic:
    """Build a critic that starts as a reward model: InstructGPT, arXiv 2203.02155.

    ``V(s_t) = (w h_(t-1) + b - mean) / std`` before the first update: the reward that ``reward=model`` would give if
    the episode ended before token t.  Network and head are copies and are trained; mean and std are those of the
    model's record.

    Example: score 1.5, mean 0.5, std 2: V = 0.5.

    Args:
        policy: the policy that the critic evaluates.
        path: folder of a run that trained a reward model with one score, such as ``algo=bradley_terry``.
        loss: see `Critic`.
        optim: optimizer and schedule.
        grad_clip: largest gradient norm.
        warmup_iterations: see `Critic`.

    Raises:
        ValueError: there is no such model, it has several heads or no scores, or it has another tokenizer.
    """
    model = load_model(path, hash_tokenizer(policy.tokenizer))
    if model.about.kind != "score" or model.about.heads:
        has = "several heads" if model.about.heads else f"logits (algo={model.about.algo})"
        raise ValueError(
            f"path={path} has {has}, which are no values of states; name a model with one score, such as of "
            "algo=bradley_terry, or set critic=separate"
        )
    trunk: Any = model.policy.network.base_model
    trunk = trunk.to(policy.network.dtype).requires_grad_(True)
    trunk.train(False)
    critic = Critic(
        trunk.config.get_text_config().hidden_size, 0, trunk=trunk, loss=loss, optim=optim, grad_clip=grad_clip,
        warmup_iterations=warmup_iterations,
    )  # fmt: skip
    with torch.no_grad():
        critic.head.weight.copy_(model.head.linear.weight / model.about.std)
        critic.head.bias.copy_((model.head.linear.bias - model.about.mean) / model.about.std)
    return critic


def _copy_trunk(policy: Policy) -> Any:
    trunk = policy.network.base_model
    if policy.adapters is None:
        return copy.deepcopy(trunk).requires_grad_(True)
    base = {id(parameter): parameter for parameter in trunk.parameters() if not parameter.requires_grad}
    return copy.deepcopy(trunk, base)  # deepcopy reuses what the memo holds


@functools.wraps(separate, assigned=("__annotations__",))  # start-up checks options against the signature
def separate_if_needed(*args: Any, **options: Any) -> Critic:
    """Build a critic as `separate` does; not called if the advantage needs no values."""
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
    """Build a head on the policy's trunk; the value loss, weighted by ``coef``, trains both."""
    return Critic(
        policy.network.config.hidden_size, 0, trunk=None, loss=loss, optim=optim, coef=coef,
        grad_clip=grad_clip, warmup_iterations=warmup_iterations,
    )  # fmt: skip
