"""The door of rollout structures: which episodes are played for a prompt, and which after those have been seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from lit_agentrl.batch import StepBatch, TrajectoryBatch
from lit_agentrl.engines.base import Engine
from lit_agentrl.envs.base import Task
from lit_agentrl.episode import Episode
from lit_agentrl.requirements import Fact, Requirement
from lit_agentrl.rollout.branching import Branching
from lit_agentrl.rollout.questions import Asked, Question
from lit_agentrl.rollout.scheduler import EpisodeSpec

WAVES = 10  # of an iteration, where an option of that says null
MAX_WAVES = 128  # of an iteration: group ids, which count waves, are whole numbers of 64 bits
Values = Callable[
    [Episode], Sequence[float]
]  # what the critic expects from the state before each reply on, in points


@dataclass(frozen=True)
class Trial:
    """A step away from what was played: further episodes are of the weights after it, then it is taken back.

    Attributes:
        lr: its size.
        epsilon: probabilities count as at most ``1 - epsilon``.
    """

    lr: float
    epsilon: float


def _nobody(questions: Sequence[Question]) -> Asked:
    raise ValueError("algo.structure asks questions, and nobody here answers; ask while learning alone")


@dataclass(frozen=True)
class Training:
    """The training that a structure plays for.

    Attributes:
        values: the critic's values of the states of an episode, with the weights of now.
        reference: the network of the reference; None without one.
    """

    values: Values
    reference: Any = None


@dataclass(frozen=True)
class SoFar:
    """What an iteration has played.

    Attributes:
        iteration: its number.
        waves: how many have been played.
        members: episodes of a group that were asked for.
        seed: of the run.
        episodes: this rank's, in the order played; greedy and failed ones too.
        sampled: those of them that are not greedy.
        want_more: whether the filter asks for more groups; the same on all ranks.
        draw: fresh prompts for the wave of a number, those of this rank.
        ask: has the policy answer questions beside any game; only in :meth:`Structure.learn`, and on all ranks alike,
            also where one has none.
    """

    iteration: int
    waves: int
    members: int
    seed: int
    episodes: Sequence[Episode]
    sampled: Sequence[Episode]
    want_more: bool
    draw: Callable[[int], StepBatch]
    ask: Callable[[Sequence[Question]], Asked] = _nobody


class Structure(Protocol):
    """One way of playing groups.  A class that inherits these defaults plays independent episodes, once.

    Attributes:
        requires: facts that other parts of the run must provide, such as `facts.FORK`; checked at start.
        provides: facts that other parts may require, such as `facts.BRANCHES`.
        curves: what :meth:`learn` measures, by name.
        wants_repeats: whether it acts only on an instance that is played again.
    """

    requires: frozenset[Fact | Requirement] = frozenset()
    provides: frozenset[Fact] = frozenset()
    curves: Sequence[str] = ()
    wants_repeats: bool = False

    def check_game(self, task: Task) -> None:
        """Find a game that this structure cannot play, before anything is played.

        Raises:
            ValueError: why it cannot, and the remedy.
        """
        return None

    def prompts(self, wanted: int, factor: float) -> int:
        """How many are drawn in a wave.

        Args:
            wanted: as many groups are to be trained on.
            factor: prompts for each of them, as row selection drops a part of its episodes; 1 without.
        """
        return wanted

    def plan(self, prompts: StepBatch, members: int) -> list[EpisodeSpec]:
        """The episodes of a wave of prompts; a spec names each once."""
        return members_of(prompts, members)

    def evaluated(self, specs: list[EpisodeSpec]) -> list[EpisodeSpec]:
        """The episodes of an evaluation, from those of one that knows no structure."""
        return specs

    def setup(self, training: Training) -> Any:
        """Take what is needed of the training, before anything is played.

        Returns:
            a network that the engine plays with beside the policy's; None for no other.

        Raises:
            ValueError: it cannot play for this training, with the remedy.
        """
        return None

    def branching(self, members: int) -> Branching | None:
        """How the episodes of a group of so many members go on from each other; None: all begin at the opening.

        Raises:
            ValueError: it cannot be done with so many.
        """
        return None

    def wrap_engine(self, make: Callable[..., Engine]) -> Callable[..., Engine]:
        """Return what makes the engine of the run: ``make``, or an engine around those that it makes."""
        return make

    def after_wave(self, so_far: SoFar) -> Sequence[EpisodeSpec]:
        """What is played next in this iteration, with ``so_far.waves`` as its wave; nothing ends it.

        It is asked on every rank after every wave, and a wave is played as long as one of them has episodes.
        """
        return ()

    def trial(self, so_far: SoFar) -> Trial | None:
        """With what step the next wave is played, the same on all ranks; None: with the weights as they are."""
        return None

    def train_on(self, so_far: SoFar) -> Sequence[Episode]:
        """The episodes that are scored, selected and trained on; asked after every wave, and changes no state.

        Those of an earlier iteration keep their points.
        """
        return so_far.sampled

    def left_out(self, iteration: int, rows: TrajectoryBatch) -> Tensor | None:
        """Sampled tokens, (B, T), that advantages see and the loss of this iteration does not; None: none are."""
        return None

    def learn(self, so_far: SoFar) -> Mapping[str, tuple[float, float]]:
        """Take what is to be kept from an iteration that is complete; collective.

        Returns:
            of this rank, for each of ``curves`` a sum and a weight: ``structure/NAME`` is the mean over ranks.
        """
        return {}

    def notes(self) -> Mapping[str, str]:
        """What it has learnt as texts for people, by the name of a folder; written where they change."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What has to outlast a restart, equal on all ranks; kept in checkpoints."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""
        return None


def members_of(prompts: StepBatch, members: int) -> list[EpisodeSpec]:
    """``members`` sampled episodes of each prompt, group by group."""
    return [
        EpisodeSpec(prompts.iteration, group, member, task, seed, prompts.wave)
        for group, task, seed in zip(prompts.group_P, prompts.task_P, prompts.seed_P, strict=True)
        for member in range(members)
    ]


def by_group(episodes: Sequence[Episode]) -> dict[int, list[Episode]]:
    """Those that did not fail, by group."""
    groups: dict[int, list[Episode]] = {}
    for episode in episodes:
        if not episode.failed:
            groups.setdefault(episode.group, []).append(episode)
    return groups
