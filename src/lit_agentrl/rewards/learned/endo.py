"""Endogenous rewards: rewards from the logits of a frozen language model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from lit_agentrl.checks import name_errors, require, require_number, require_whole
from lit_agentrl.episode import Episode
from lit_agentrl.models.frozen import find_network, load_frozen
from lit_agentrl.models.logprobs import compute_action_logits, ensure_float32
from lit_agentrl.models.lora import hash_parameters
from lit_agentrl.rewards.base import RewardContext, Rewards
from lit_agentrl.rewards.learned.episode_cache import EpisodeCache
from lit_agentrl.rewards.learned.replacing import Replacing
from lit_agentrl.rewards.learned.scoring import list_rows, read_in_batches
from lit_agentrl.rewards.learned.success_comparison import SuccessComparison
from lit_agentrl.text.token_bytes import hash_tokenizer


def compute_endogenous_rewards(taken_A: Tensor, value_A: Tensor) -> Tensor:
    r"""Compute the reward of each sampled token of one episode, (A,), in nats.

    https://arxiv.org/abs/2506.23235.  Logits are interpreted as soft Q: ``V(s) = alpha log sum_a exp(Q(s, a) / alpha)``
    and ``r_t = Q(s_t, a_t) - V(s_{t+1}) = alpha log pi(a_t | s_t) + V(s_t) - V(s_{t+1})``.  ``s_{t+1}`` is the state of
    the next sampled token, whatever observations lie between; V is 0 after the last.

    Args:
        taken_A: ``Q(s_t, a_t)``, the logit of each sampled token, in order.
        value_A: ``V(s_t)`` of the state in which each token was sampled.
    """
    return taken_A - torch.cat([value_A[1:], value_A.new_zeros(min(1, len(value_A)))])


@dataclass(kw_only=True)
class Endogenous(Replacing):
    """A model with the policy's tokenizer gives an endogenous reward to each turn.

    A turn gets ``weight`` times the sum of `compute_endogenous_rewards` over its sampled tokens.  The sum over an
    episode is ``alpha log pi(episode) + V(s_0)``, so it rewards what the model finds likely: of two episodes of a
    prompt, the shorter one usually earns more.  V(s_0) is defined up to a constant of the model; ``centre`` therefore
    subtracts the mean of these sums over all episodes of the iteration from the last turn of each.

    Args:
        path: folder of a run that has ended, or of a model in Hugging Face's format.
        weight, replaces, keep_penalties: see `Replacing`.
        temperature: alpha.
        centre: whether the mean over all episodes is subtracted.
        tokens_per_batch: number of tokens that are computed together.

    Raises:
        ValueError: an option is invalid, or the folder has no model; :meth:`setup` refuses a model that does not fit
            the policy.
    """

    sees: ClassVar[Literal["own", "all"]] = "all"  # the mean is taken over all episodes
    path: str
    temperature: float = 1.0
    centre: bool = True
    tokens_per_batch: int = 2048
    _comparison: SuccessComparison = field(default_factory=SuccessComparison, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        find_network(self.path)
        require(isinstance(self.centre, bool), "centre", self.centre, "true or false")
        require_number("temperature", self.temperature, "finite and > 0", lambda value: 0 < value < math.inf)
        require_whole("tokens_per_batch", self.tokens_per_batch, 1)
        self._values = EpisodeCache(self._compute_values)

    def setup(self, context: RewardContext) -> None:
        """Load the model onto the device of the run's networks.

        Raises:
            ValueError: the model cannot be loaded, or uses another tokenizer than the policy.
        """
        with name_errors(f"reward.{self.name}"):
            network = load_frozen(
                self.path, context.tokenizer,
                fingerprint=hash_tokenizer, vocabulary=len(context.tokenizer),
            )  # fmt: skip
        self._fingerprint = hash_parameters(network)
        self._network, self._device = network.to(context.device), context.device

    # ------------------------------------------------------------------ rewards
    def apply(self, rewards: Rewards, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        """Add the model's rewards to the game's, or replace them."""
        return self.combine_rewards(rewards, episodes, self.values(episodes))

    def values(self, episodes: Sequence[Episode]) -> Rewards:
        """Return the value of each turn, without the weight."""
        values = self._values.get(episodes)
        if not self.centre:
            return values
        sums = self.gather_numbers([math.fsum(row) for row in values])
        mean = math.fsum(sums) / max(len(sums), 1)
        return [[*row[:-1], row[-1] - mean] for row in values]

    @torch.no_grad()
    def _compute_values(self, episodes: Sequence[Episode]) -> Rewards:
        rows = [list_sampled_rows(episode) for episode in episodes]
        flat = read_in_batches(
            list(chain.from_iterable(rows)), self.tokens_per_batch, self._compute_logits_and_values
        )
        row_bounds = [0, *accumulate(len(episode_rows) for episode_rows in rows)]
        values = []
        for episode, first, last in zip(episodes, row_bounds, row_bounds[1:], strict=False):
            reward_A = compute_endogenous_rewards(*torch.cat(flat[first:last]).unbind(1))
            turns = torch.split(reward_A, [len(turn.reply_tokens) for turn in episode.turns])
            values.append([float(turn.sum()) for turn in turns])
        return values

    def _compute_logits_and_values(self, tokens_BT: Tensor, is_action_BT: Tensor) -> Tensor:
        """Compute the logit of each sampled token and the value of its state, (A, 2)."""
        tokens_BT, is_action_BT = tokens_BT.to(self._device), is_action_BT.to(self._device)
        logits_AV = compute_action_logits(self._network, tokens_BT=tokens_BT, is_action_BT=is_action_BT)
        logits_AV = ensure_float32(logits_AV)
        value_A = self.temperature * torch.logsumexp(logits_AV / self.temperature, dim=-1)
        taken_A = logits_AV.gather(1, tokens_BT[is_action_BT][:, None]).squeeze(1)
        return torch.stack([taken_A, value_A], dim=1).double().cpu()

    # ------------------------------------------------------------------ metrics and state
    def curves(self, episodes: Sequence[Episode], *, iteration: int) -> dict[str, float]:
        """Compare the sums of episodes with success; see `SuccessComparison.measure`."""
        value = self.gather_numbers([math.fsum(row) for row in self.values(episodes)])
        success = self.gather_numbers([float(episode.success) for episode in episodes])
        return self._comparison.measure(value, success)

    def state_dict(self) -> dict[str, Any]:
        """Return the fingerprint of the model and the first median of successes."""
        return {"fingerprint": self._fingerprint, "first": self._comparison.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of :meth:`state_dict`.

        Raises:
            ValueError: the checkpoint was trained with another model.
        """
        if state["fingerprint"] != self._fingerprint:
            raise ValueError(
                f"reward.{self.name}.path={self.path} holds weights {self._fingerprint[:12]}, and this run was trained "
                f"on {state['fingerprint'][:12]}; put the model back"
            )
        self._comparison.load_state_dict(state["first"])


def list_sampled_rows(episode: Episode) -> list[tuple[list[int], list[int]]]:
    """Return the token ids and the positions of sampled tokens of each row."""
    rows = []
    turns = iter(episode.turns)
    for tokens, ends in list_rows(episode):
        replies = [range(end + 1 - len(next(turns).reply_tokens), end + 1) for end in ends]
        rows.append((tokens, [position for reply in replies for position in reply]))
    return rows
