"""The interface of reward parts, which compute new rewards from current ones.

A part receives the episodes of the iteration that its own process played, always whole groups.  ``apply`` must depend
only on the episodes and on what was learnt in earlier iterations, and not on the order of the episodes: it is called
again after each wave of rollouts.  A part updates its state in ``learn``, once per iteration, and returns it from
``state_dict``, so that a resumed run equals an uninterrupted one.

A part whose rewards depend on episodes of other groups sets ``sees = "all"`` and gathers their numbers with
`RewardPart.gather_numbers`; processes exchange only these numbers.  Rewards then do not depend on the number of
processes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from lit_agentrl.checks import require_number
from lit_agentrl.distributed import gather_rows, gather_texts
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.world import World
from lit_agentrl.episode import Episode
from lit_agentrl.facts import COSTS, PLAYED, READS_COSTS
from lit_agentrl.requirements import Fact, Offer, Requirement

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Rewards = list[list[float]]  # one list per episode, one number per turn
Points = Rewards  # the former name, for parts that users have written
# per episode and turn: index of a token in the reply -> reward paid at this token, not at the last one
Places = list[list[dict[int, float]]]
Probe = Callable[[World, str], float]  # measures a game and its observation before each turn


class Answerer(Protocol):
    """A model other than the policy that answers independent questions."""

    def ask(self, questions: Sequence[tuple[str, int]]) -> list[str]:
        """Answer questions, each sampled with its key; empty if its server failed."""

    def meter(self) -> dict[str, float]:
        """Return its total usage by name: requests, tokens, cost."""

    def close(self) -> None:
        """Release the resources of its engine."""


class Stage(IntEnum):
    """The order in which parts act; within a stage, the order of the config."""

    TASK = 0  # replaces the environment's reward
    SHAPING = 1  # adds to the reward
    SCALE = 2  # normalises the sum
    CAP = 3  # bounds it
    WATCH = 4  # changes nothing


@dataclass(frozen=True, kw_only=True)
class RewardContext:
    """Resources of the run that a part may need.

    Attributes:
        device: device of the networks of this process.
        tokenizer: tokenizer of the policy.
        seed: seed of the run.
        open_answerer: makes an `Answerer` from a constructor of an engine, a constructor of a model (None for an API)
            and sampling options (`engines.base.SamplingParams`).
        policy: network of the policy, with its current weights; None outside of training.
        encode_reply: returns the tokens of a reply that plays an action, after the reply header; None outside of
            training.
    """

    device: torch.device
    tokenizer: PreTrainedTokenizerBase
    seed: int
    open_answerer: Callable[..., Answerer]
    policy: Any = None
    encode_reply: Callable[[str], list[int]] | None = None


class RewardPart(ABC):
    """One entry of ``reward``.

    Attributes:
        stage: when it acts.
        sees: ``own``: rewards of an episode depend on its own group only; ``all``: also on other groups, gathered by
            `gather_rows`.  A part that learns must see all, because otherwise processes would learn different things.
        name: its key in the config, set by the pipeline; used in the names of its metrics.
    """

    stage: ClassVar[Stage]
    sees: ClassVar[Literal["own", "all"]] = "own"
    name: str = "part"

    def setup(self, context: RewardContext) -> None:  # noqa: B027 (optional)
        """Create resources that need the run, such as networks.

        The pipeline calls it once, before rollouts and before a checkpoint is loaded.
        """

    def gather_rows(self, rows: Tensor) -> Tensor:
        """Gather the rows of all processes in rank order; collective.

        Every process must call it, with the same columns, even without rows.

        Raises:
            RuntimeError: the part does not set ``sees = "all"``, so other processes may not make the call.
        """
        self._require_all()
        return gather_rows({"rows": rows})[0]["rows"]

    def gather_numbers(self, values: Sequence[float]) -> list[float]:
        """Gather the numbers of all processes in rank order; see `gather_rows`."""
        numbers: list[float] = self.gather_rows(torch.tensor(values, dtype=torch.float64)).tolist()
        return numbers

    def gather_texts(self, texts: Sequence[str]) -> list[str]:
        """Gather the texts of all processes in rank order; see `gather_rows`."""
        self._require_all()
        return gather_texts(texts)

    def _require_all(self) -> None:
        if self.sees != "all":
            raise RuntimeError(
                f"{type(self).__name__} gathers data of other processes, so it must set sees = 'all'"
            )

    def close(self) -> None:  # noqa: B027 (optional)
        """Release resources, such as an engine; they are opened again on demand."""

    def left_out(self, episodes: Sequence[Episode]) -> Sequence[Episode]:
        """Return the episodes that the last `apply` could not score.

        They are not trained on.
        """
        return ()

    @property
    def requires(self) -> Collection[Fact | Requirement]:
        """Facts that other parts of the run must provide."""
        played = Requirement(PLAYED, reason="it shapes the rewards of played episodes", remedy="reward=none")
        if type(self).costs is RewardPart.costs:
            return [played]
        return [
            played,
            Requirement(READS_COSTS, reason="it sets the costs of episodes", remedy="reward=none"),
        ]

    @property
    def provides(self) -> Collection[Fact | Offer]:
        """Facts that hold for the run because of this part."""
        return [] if type(self).costs is RewardPart.costs else [COSTS]

    @property
    def probe(self) -> Probe | None:
        """Measurement before each turn, stored in ``Turn.probes`` under the part's name."""
        return None

    @abstractmethod
    def apply(self, rewards: Rewards, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        """Compute new rewards from the current ones.

        Args:
            rewards: current reward of each turn of each episode.
            episodes: the episodes of this process that can be trained on; every turn has a reply.  A part with
                ``sees = "own"`` is not called without episodes.
            iteration: counts from 0.
        """

    def places(self, episodes: Sequence[Episode]) -> Places | None:
        """Return the rewards of the last `apply` that are paid inside replies.

        None: all rewards are paid at the last tokens of replies.  Parts that act later change only the reward of the
        last token.
        """
        return None

    def costs(self, episodes: Sequence[Episode]) -> Rewards | None:
        """Return the training costs of turns, which replace those of the game; None: no costs."""
        return None

    def learn(self, episodes: Sequence[Episode], *, iteration: int) -> None:  # noqa: B027 (optional)
        """Update the state of the part from the episodes with their final rewards."""

    def curves(self, episodes: Sequence[Episode], *, iteration: int) -> dict[str, float]:
        """Return metrics, logged as ``reward/<name>_<key>``; called before :meth:`learn`."""
        return {}

    def check_game(self, task: Task, env: World, observation: str) -> None:  # noqa: B027 (optional)
        """Check a game of the run before any rollout.

        Raises:
            ValueError: the part cannot work with it.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the part as tensors and plain values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of :meth:`state_dict`."""
        if state:
            raise NotImplementedError(
                f"{type(self).__name__} has a state_dict, so it must implement load_state_dict"
            )


@dataclass(kw_only=True)
class Shaping(RewardPart):
    """A part that adds ``weight * score`` to the reward of each turn.

    Args:
        weight: reward per unit of score; may be negative.
    """

    stage: ClassVar[Stage] = Stage.SHAPING
    weight: float

    def __post_init__(self) -> None:
        require_number("weight", self.weight, "a number other than 0; leave the part out", bool)

    @abstractmethod
    def score(self, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        """Return one number for each turn of each episode."""

    def apply(self, rewards: Rewards, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        """Return ``reward + weight * score`` of each turn.

        Raises:
            ValueError: the scores are not one finite number per turn.
        """
        scores = self.score(episodes, iteration=iteration)
        require_rewards(self.name, scores, episodes)
        return [
            [reward + self.weight * score for reward, score in zip(reward_row, score_row, strict=True)]
            for reward_row, score_row in zip(rewards, scores, strict=True)
        ]


def require_rewards(name: str, rewards: Any, episodes: Sequence[Episode]) -> None:
    """Refuse an invalid result of a part.

    Raises:
        ValueError: the result is not one finite number for every turn of every episode; the message names the first
            error.
    """
    rule = f"reward.{name} must give one finite number for every turn of every episode"
    if not _has_length(rewards) or len(rewards) != len(episodes):
        size = len(rewards) if _has_length(rewards) else type(rewards).__name__
        raise ValueError(f"{rule}: a list of {len(episodes)} lists, not {size}")
    for episode, row in zip(episodes, rewards, strict=True):
        where = f"game {episode.task_name} instance seed {episode.instance_seed}"
        if not _has_length(row) or len(row) != len(episode.turns):
            size = len(row) if _has_length(row) else type(row).__name__
            raise ValueError(f"{rule}: {where} has {len(episode.turns)} turns, and was given {size}")
        for turn, value in enumerate(row, start=1):
            if not _is_finite(value):
                raise ValueError(
                    f"{rule}: {where}, turn {turn} was given {value}; give 0 to what cannot be scored"
                )


def require_places(name: str, places: Places, episodes: Sequence[Episode]) -> None:
    """Refuse places that are not in a reply.

    Raises:
        ValueError: an index is no token of its reply, or its reward is not finite; the message names the first error.
    """
    sums = [[math.fsum(reward_by_index.values()) for reward_by_index in row] for row in places]
    require_rewards(name, sums, episodes)
    for episode, row in zip(episodes, places, strict=True):
        for turn, reward_by_index in zip(episode.turns, row, strict=True):
            for index in reward_by_index:
                if not 0 <= index < len(turn.reply_tokens):
                    raise ValueError(
                        f"reward.{name} pays token {index} of a reply of {len(turn.reply_tokens)} tokens; "
                        "count from 0"
                    )


def _has_length(value: Any) -> bool:
    return isinstance(value, Sized) and not isinstance(value, str)


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except (TypeError, ValueError, RuntimeError):  # not a number, or several numbers
        return False


def at_end(episodes: Sequence[Episode], values: Sequence[float]) -> Rewards:
    """Place each value at the last turn of its episode; 0 elsewhere."""
    return [[0.0] * (len(e.turns) - 1) + [float(v)] for e, v in zip(episodes, values, strict=True)]


def replace_by_outcome(
    episodes: Sequence[Episode], values: Sequence[float], *, keep_penalties: bool
) -> Rewards:
    """Replace the environment's rewards by one value at the last turn of each episode.

    ``keep_penalties`` adds the protocol penalties of invalid replies.
    """
    rewards = at_end(episodes, values)
    for row, episode in zip(rewards, episodes, strict=True):
        for k, turn in enumerate(episode.turns):
            row[k] += turn.reward_parts.get("invalid", 0.0) if keep_penalties else 0.0
    return rewards
