"""Information gain of turns: what they add to the log-probability of the right answer."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from lit_agentrl.checks import require, require_number, require_whole
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.world import World
from lit_agentrl.episode import Episode
from lit_agentrl.facts import WHOLE_WEIGHTS
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.requirements import Fact, Requirement
from lit_agentrl.rewards.base import RewardContext, RewardPart, Rewards, Stage
from lit_agentrl.rewards.learned.episode_cache import EpisodeCache
from lit_agentrl.rewards.learned.scoring import read_in_batches


def compute_gains(logp_K: Sequence[float]) -> list[float]:
    """Compute the gain of each turn from the log-probability of the answer before it.

    ``gain_k = L_(k+1) - L_k`` with ``L_k = log pi(answer | history before reply k)``, in nats.  The gain is 0 for the
    last turn, which has no history after it, and for a turn next to an ``L`` that is NaN.  Without NaN the gains sum to
    ``L_last - L_first``.

    >>> compute_gains([-3.0, -1.0, -1.5])
    [2.0, -0.5, 0.0]
    """
    gains = [after - before for before, after in zip(logp_K, logp_K[1:], strict=False)]
    return [0.0 if math.isnan(gain) else gain for gain in gains] + [0.0] * bool(logp_K)


@dataclass(kw_only=True)
class InformationGain(RewardPart):
    """Each turn's change in the log-probability of the right answer: IGPO.

    ``reward_k = weight (log pi(answer | h_(k+1)) - log pi(answer | h_k))``, of information gain-based policy
    optimization.  ``h_k`` are the tokens that the policy read before reply k, and ``log pi(answer | h)`` sums over the
    tokens of a reply that plays the answer after an empty thought, in nats, at temperature 1.  pi has the weights
    before the update of the iteration, without gradient.  The last turn has 0: the game rewards the answer itself.

    Departs: the paper was not at hand.  From memory, it takes ``pi ** (1 / tokens)`` in place of ``log pi``, and
    normalises these rewards separately from those of the outcome.  ``per_token=true`` divides ``log pi`` by the number
    of tokens.

    The answer is known if actions are texts and the best play at the opening is one action, as in ``env=dataset``.

    Args:
        weight: reward per nat, finite and >= 0; 0 leaves rewards as they are, and only metrics are logged.
        per_token: whether to divide log-probabilities by the number of tokens of the reply.
        tokens_per_batch: maximum number of tokens in a batch; a longer row is a batch of its own.

    Raises:
        ValueError: an option is invalid; :meth:`check_game` refuses a game without an answer.
    """

    stage: ClassVar[Stage] = Stage.SHAPING
    sees: ClassVar[Literal["own", "all"]] = "all"  # metrics average over the episodes of all processes
    weight: float = 0.0
    per_token: bool = False
    tokens_per_batch: int = 2048
    _tasks: dict[str, Task] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        require_number("weight", self.weight, "finite and >= 0", lambda weight: 0 <= weight < math.inf)
        require(isinstance(self.per_token, bool), "per_token", self.per_token, "true or false")
        require_whole("tokens_per_batch", self.tokens_per_batch, 1)
        self._logps = EpisodeCache(self._compute_logps)
        self._find_answer = lru_cache(maxsize=4096)(self._ask_game)

    @property
    def requires(self) -> Collection[Fact | Requirement]:
        """Episodes that are played, by a policy whose weights are whole in this process."""
        return [*super().requires, Requirement(WHOLE_WEIGHTS, reason="it computes with the policy")]

    def check_game(self, task: Task, env: World, observation: str) -> None:
        """Refuse a game whose answer is unknown."""
        if env.action_format() != "text" or len(env.optimal_actions(horizon=task.action_budget) or ()) != 1:
            raise ValueError(
                f"game {task.name} has no single answer in words; choose one that has, such as env=dataset, or "
                f"leave reward={self.name} out"
            )
        self._tasks[task.name] = task

    def setup(self, context: RewardContext) -> None:
        """Take the policy of the run.

        Raises:
            ValueError: the run trains no policy, as when recorded episodes are labelled.
        """
        if context.policy is None or context.encode_reply is None:
            raise ValueError(
                f"reward.{self.name} asks the policy in training, and there is none; leave it out"
            )
        self._policy, self._encode, self._device = context.policy, context.encode_reply, context.device

    def apply(self, rewards: Rewards, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        """Return ``reward + weight * gain`` of each turn."""
        return [
            [reward + self.weight * gain for reward, gain in zip(row, compute_gains(logps), strict=True)]
            for row, logps in zip(rewards, self._logps.get(episodes), strict=True)
        ]

    def curves(self, episodes: Sequence[Episode], *, iteration: int) -> dict[str, float]:
        """Return means over episodes, in nats, and a share.

        ``gain``: mean over all turns but the last; ``first`` and ``last``: log-probability before the first and the
        last reply; ``unread_share``: share of the turns whose log-probability is unknown.
        """
        logps = self._logps.get(episodes)
        gains = self.gather_numbers([gain for row in logps for gain in compute_gains(row)[:-1]])
        first, last = (self.gather_numbers([row[k] for row in logps]) for k in (0, -1))
        unread = self.gather_numbers([float(math.isnan(logp)) for row in logps for logp in row])
        numbers = {"gain": gains, "first": first, "last": last, "unread_share": unread}
        known = {
            name: [value for value in values if not math.isnan(value)] for name, values in numbers.items()
        }
        return {name: math.fsum(values) / len(values) for name, values in known.items() if values}

    @torch.no_grad()
    def _compute_logps(self, episodes: Sequence[Episode]) -> list[list[float]]:
        """Return the log-probability of the answer before each reply of each episode."""
        rows = [row for episode in episodes for row in self._list_rows(episode)]
        sums = iter(read_in_batches([row for row in rows if row[1]], self.tokens_per_batch, self._read))
        logps = []
        for _, positions in rows:
            logp = float(next(sums).sum()) if positions else math.nan
            logps.append(logp / len(positions) if self.per_token and positions else logp)
        remaining = iter(logps)
        return [[next(remaining) for _ in episode.turns] for episode in episodes]

    def _list_rows(self, episode: Episode) -> list[tuple[list[int], list[int]]]:
        """Return, for each turn, the tokens of history and answer, and the answer's positions.

        The positions are empty if the answer is unknown, or if the row is longer than the policy can read.
        """
        answer = self._find_answer(episode.task_name, episode.instance_seed)
        config = self._policy.config.get_text_config()
        longest = getattr(config, "max_position_embeddings", None) or math.inf
        rows: list[tuple[list[int], list[int]]] = []
        history: list[int] = []
        for turn in episode.turns:
            history = [*([] if turn.starts_row else history), *turn.prefix_tokens.tolist()]
            tokens = [*history, *answer]
            fits = len(tokens) <= longest
            rows.append((tokens, list(range(len(history), len(tokens))) if fits else []))
            history = [*history, *turn.reply_tokens.tolist()]
        return rows

    def _ask_game(self, task_name: str, seed: int) -> list[int]:
        """Return the tokens of an instance's answer; empty if the answer is unknown."""
        task = self._tasks[task_name]
        with closing(task.make("train")) as env:
            env.reset(seed=seed)
            answers = env.optimal_actions(horizon=task.action_budget)
        return self._encode(answers[0]) if answers else []

    def _read(self, tokens_BT: Tensor, is_read_BT: Tensor) -> Tensor:
        tokens_BT, is_read_BT = tokens_BT.to(self._device), is_read_BT.to(self._device)
        scores: Any = score_tokens(self._policy, tokens_BT=tokens_BT, is_action_BT=is_read_BT)
        logp_A: Tensor = scores.logp_BT[is_read_BT].double().cpu()
        return logp_A
