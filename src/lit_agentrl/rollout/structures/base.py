"""The interface of rollout structures: which episodes are played for a prompt, in which waves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lit_agentrl.batch import StepBatch
from lit_agentrl.episode import Episode
from lit_agentrl.requirements import Fact, Requirement
from lit_agentrl.rollout.branching import Branching
from lit_agentrl.rollout.questions import Answers, Question
from lit_agentrl.rollout.scheduler import EpisodeSpec
from lit_agentrl.rollout.structures.hook import NO_HOOK, StructureHook

DEFAULT_WAVES = 10  # maximum waves of an iteration if an option for it is null
MAX_WAVES = 128  # of an iteration: group ids, which include the wave, must fit into 64-bit integers


def _refuse_questions(questions: Sequence[Question]) -> Answers:
    raise ValueError(
        "algo.structure asks questions outside of its learn(), where nobody answers; ask them in learn()"
    )


@dataclass(frozen=True)
class Progress:
    """The episodes that an iteration has played so far.

    Attributes:
        iteration: Number of the iteration.
        waves: Number of waves played.
        members: Group size that was requested.
        seed: Seed of the run.
        episodes: Episodes of this rank, in the order played, including greedy and failed ones.
        sampled: Those of ``episodes`` that are not greedy.
        want_more: Whether the filter asks for more groups; the same on all ranks.
        draw: Returns fresh prompts of this rank for a wave number.
        ask: Answers independent questions with the policy; only in :meth:`Structure.learn`, and called on all ranks,
            also on those without questions.
    """

    iteration: int
    waves: int
    members: int
    seed: int
    episodes: Sequence[Episode]
    sampled: Sequence[Episode]
    want_more: bool
    draw: Callable[[int], StepBatch]
    ask: Callable[[Sequence[Question]], Answers] = _refuse_questions


class Structure(Protocol):
    """A way of playing groups; the defaults play independent episodes in one wave.

    Attributes:
        requires: Facts that other parts of the run must provide, such as `facts.FORK`; checked at start.
        provides: Facts that other parts may require, such as `facts.BRANCHES`.
        curves: Names of the measurements of :meth:`learn`.
    """

    requires: frozenset[Fact | Requirement] = frozenset()
    provides: frozenset[Fact] = frozenset()
    curves: Sequence[str] = ()

    @property
    def hook(self) -> StructureHook:
        """The rarely needed members; a structure that has them inherits from `StructureHook`."""
        return NO_HOOK

    def prompts(self, wanted: int, factor: float) -> int:
        """Return the number of prompts to draw in a wave.

        Args:
            wanted: Number of groups to train on.
            factor: Prompts to draw per wanted group; above 1 if row selection drops episodes.
        """
        return wanted

    def plan(self, prompts: StepBatch, members: int) -> list[EpisodeSpec]:
        """Return the episodes of a wave of prompts; each spec appears once."""
        return make_specs(prompts, members)

    def branching(self, members: int) -> Branching | None:
        """Return the branching rule for groups of this size; None starts all at the opening.

        Raises:
            ValueError: The structure does not fit this group size.
        """
        return None

    def after_wave(self, progress: Progress) -> Sequence[EpisodeSpec]:
        """Return the episodes of wave ``progress.waves``; an empty sequence ends the iteration.

        It is called on every rank after every wave, and a wave is played as long as one rank has episodes.
        """
        return ()

    def train_on(self, progress: Progress) -> Sequence[Episode]:
        """Return the episodes to score, select and train on; must not change state.

        It is called after every wave.  Episodes of an earlier iteration keep their rewards.
        """
        return progress.sampled

    def learn(self, progress: Progress) -> Mapping[str, tuple[float, float]]:
        """Learn from an iteration that is complete; collective.

        Returns:
            A sum and a weight of this rank for each of ``curves``: ``structure/NAME`` is the mean over ranks.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints, equal on all ranks."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of :meth:`state_dict`."""
        return None


def make_specs(prompts: StepBatch, members: int) -> list[EpisodeSpec]:
    """Return ``members`` sampled episode specs for each prompt, group by group."""
    return [
        EpisodeSpec(prompts.iteration, group, member, task, seed, prompts.wave)
        for group, task, seed in zip(prompts.group_P, prompts.task_P, prompts.seed_P, strict=True)
        for member in range(members)
    ]


def group_episodes(episodes: Sequence[Episode]) -> dict[int, list[Episode]]:
    """Group the episodes that did not fail."""
    groups: dict[int, list[Episode]] = {}
    for episode in episodes:
        if not episode.failed:
            groups.setdefault(episode.group, []).append(episode)
    return groups


# former names, which structures of users import
members_of, by_group, SoFar = make_specs, group_episodes, Progress
