"""What a reward part is: it turns the points of an iteration's turns into new ones.

A part is given the iteration's episodes that its own process played, always whole groups.  ``apply`` must be a
function of the episodes and of what was learnt in earlier iterations, and must not depend on the order of the
episodes: it is called again after each wave of rollouts.  What a part learns it takes over in ``learn``, once an
iteration, and gives out in ``state_dict``, so that a resumed run is the uninterrupted one.

A part whose points depend on episodes of other groups says ``sees = "all"`` and asks `everyone` for their numbers;
with several processes only those travel.  Then several processes score as one does.
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

Points = list[list[float]]  # one list an episode, one number a turn
Probe = Callable[[World, str], float]  # of a game and its observation, measured before each turn


class Answerer(Protocol):
    """A model beside the policy that answers questions, each by itself."""

    def ask(self, questions: Sequence[tuple[str, int]]) -> list[str]:
        """The answers to texts, each drawn with its key; empty where there is none, as where its server failed."""

    def meter(self) -> dict[str, float]:
        """What it was asked for since it was made, by name: requests, tokens, money."""

    def close(self) -> None:
        """Give back what its engine holds."""


class Stage(IntEnum):
    """When a part acts; within a stage, parts act in the order in which they are listed."""

    TASK = 0  # replaces the environment's reward
    SHAPING = 1  # adds to it
    SCALE = 2  # normalises the sum
    CAP = 3
    WATCH = 4  # changes nothing


@dataclass(frozen=True, kw_only=True)
class RewardContext:
    """What a part may need of the run.

    Attributes:
        device: of this process's networks.
        tokenizer: of the policy.
        seed: of the run.
        open_answerer: makes an `Answerer` of an engine's maker, a model's maker (None: it is behind an API) and
            options of sampling (`engines.base.SamplingParams`).
    """

    device: torch.device
    tokenizer: PreTrainedTokenizerBase
    seed: int
    open_answerer: Callable[..., Answerer]


class RewardPart(ABC):
    """One entry of ``reward``.

    Attributes:
        stage: when it acts.
        sees: ``own``: points of an episode depend on its own group alone; ``all``: also on others, of which it
            asks `everyone`.  A part that learns sees all, else processes would learn different things.
        name: its key in the config, set by the pipeline; names its curves.
    """

    stage: ClassVar[Stage]
    sees: ClassVar[Literal["own", "all"]] = "own"
    name: str = "part"

    def setup(self, context: RewardContext) -> None:  # noqa: B027 (optional)
        """Make what needs the run, such as networks; called once, before anything is played or loaded."""

    def everyone(self, rows: Tensor) -> Tensor:
        """The rows of all processes, in rank order; each process must ask alike, whether or not it has any.

        Raises:
            RuntimeError: the part does not say that it sees all, so not every process may be asking.
        """
        self._require_all()
        return gather_rows({"rows": rows})[0]["rows"]

    def everyones_numbers(self, values: Sequence[float]) -> list[float]:
        """As `everyone`, of numbers."""
        numbers: list[float] = self.everyone(torch.tensor(values, dtype=torch.float64)).tolist()
        return numbers

    def everyones_texts(self, texts: Sequence[str]) -> list[str]:
        """As `everyone`, of texts."""
        self._require_all()
        return gather_texts(texts)

    def _require_all(self) -> None:
        if self.sees != "all":
            raise RuntimeError(
                f"{type(self).__name__} asks what other processes know; it must say sees = 'all'"
            )

    def close(self) -> None:  # noqa: B027 (optional)
        """Give back what the part has opened, such as an engine; what is asked of it later opens it again."""

    def left_out(self, episodes: Sequence[Episode]) -> Sequence[Episode]:
        """Of the episodes that `apply` was just given, those that it could not score: they are not trained on."""
        return ()

    @property
    def requires(self) -> Collection[Fact | Requirement]:
        """Facts that other parts of the run must provide."""
        played = Requirement(PLAYED, reason="it shapes what is played", remedy="reward=none")
        if type(self).costs is RewardPart.costs:
            return [played]
        return [played, Requirement(READS_COSTS, reason="it tells what episodes cost", remedy="reward=none")]

    @property
    def provides(self) -> Collection[Fact | Offer]:
        """Facts that hold for the run because of this part."""
        return [] if type(self).costs is RewardPart.costs else [COSTS]

    @property
    def probe(self) -> Probe | None:
        """What to measure in the state before each turn, kept in ``Turn.probes`` under the part's name."""
        return None

    @abstractmethod
    def apply(self, points: Points, episodes: Sequence[Episode], *, iteration: int) -> Points:
        """New points from the current ones.

        Args:
            points: so far, of each turn of each episode.
            episodes: those of this process that can be trained on; every turn has a reply.  Without any, a
                part that sees only its own is not called.
            iteration: counts from 0.
        """

    def costs(self, episodes: Sequence[Episode]) -> Points | None:
        """What each turn costs, for training, in place of what the game tells; None: the part says nothing of costs."""
        return None

    def learn(self, episodes: Sequence[Episode], *, iteration: int) -> None:  # noqa: B027 (optional)
        """Take over what this iteration taught; the episodes have their final points."""

    def curves(self, episodes: Sequence[Episode], *, iteration: int) -> dict[str, float]:
        """Further curves, logged as ``reward/<name>_<key>``; asked for before :meth:`learn`."""
        return {}

    def check_game(self, task: Task, env: World, observation: str) -> None:  # noqa: B027 (optional)
        """Look at a game of the run before anything is played.

        Raises:
            ValueError: the part cannot work with it.
        """

    def state_dict(self) -> dict[str, Any]:
        """What was learnt, in tensors and plain values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""
        if state:
            raise NotImplementedError(f"{type(self).__name__} gives out a state and must take it back")


@dataclass(kw_only=True)
class Shaping(RewardPart):
    """A part that adds ``weight * score`` to each turn's points.

    Args:
        weight: points per unit of score; negative turns the score around.
    """

    stage: ClassVar[Stage] = Stage.SHAPING
    weight: float

    def __post_init__(self) -> None:
        require_number("weight", self.weight, "a number other than 0; leave the part out", bool)

    @abstractmethod
    def score(self, episodes: Sequence[Episode], *, iteration: int) -> Points:
        """One number for each turn of each episode."""

    def apply(self, points: Points, episodes: Sequence[Episode], *, iteration: int) -> Points:
        """``points + weight * score``.

        Raises:
            ValueError: the scores are not one finite number a turn.
        """
        scores = self.score(episodes, iteration=iteration)
        require_points(self.name, scores, episodes)
        return [
            [p + self.weight * s for p, s in zip(row, given, strict=True)]
            for row, given in zip(points, scores, strict=True)
        ]


def require_points(name: str, given: Any, episodes: Sequence[Episode]) -> None:
    """Checks what a part gave back.

    Raises:
        ValueError: it is not one finite number for every turn of every episode; names the first that differs.
    """
    must = f"reward.{name} must give one finite number for every turn of every episode"
    if not _has_length(given) or len(given) != len(episodes):
        number = len(given) if _has_length(given) else type(given).__name__
        raise ValueError(f"{must}: a list of {len(episodes)} lists, not {number}")
    for episode, row in zip(episodes, given, strict=True):
        where = f"game {episode.task_name} instance seed {episode.instance_seed}"
        if not _has_length(row) or len(row) != len(episode.turns):
            number = len(row) if _has_length(row) else type(row).__name__
            raise ValueError(f"{must}: {where} has {len(episode.turns)} turns, and was given {number}")
        for turn, value in enumerate(row, start=1):
            if not _is_finite(value):
                raise ValueError(
                    f"{must}: {where}, turn {turn} was given {value}; score what cannot be scored 0"
                )


def _has_length(given: Any) -> bool:
    return isinstance(given, Sized) and not isinstance(given, str)


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except (TypeError, ValueError, RuntimeError):  # no number, or several
        return False


def at_end(episodes: Sequence[Episode], values: Sequence[float]) -> Points:
    """Each value at its episode's last turn, 0 elsewhere."""
    return [[0.0] * (len(e.turns) - 1) + [float(v)] for e, v in zip(episodes, values, strict=True)]


def outcome(episodes: Sequence[Episode], values: Sequence[float], *, keep_penalties: bool) -> Points:
    """Each value at its episode's last turn in place of the environment's points.

    ``keep_penalties`` leaves the protocol penalties that the sampler charged beside it.
    """
    points = at_end(episodes, values)
    for row, episode in zip(points, episodes, strict=True):
        for k, turn in enumerate(episode.turns):
            row[k] += turn.reward_parts.get("invalid", 0.0) if keep_penalties else 0.0
    return points
