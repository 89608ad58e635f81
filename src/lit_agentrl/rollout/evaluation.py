"""Settings and outcomes of evaluations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lit_agentrl.batch import StepBatch
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.episode import Outcome
from lit_agentrl.report.iteration import gather_outcomes, stop_if_failing
from lit_agentrl.rollout.branching import Branching
from lit_agentrl.rollout.scheduler import EpisodeSpec, Wave
from lit_agentrl.rollout.structures.base import make_specs
from lit_agentrl.rollout.workers.base import Play, sum_usage


@dataclass
class Evaluation:
    """An evaluation: its split, sampling parameters and episodes per prompt.

    Attributes:
        split: Name of the split whose prompts are played.
        params: Sampling parameters.
        members: Episodes per prompt.
        max_failed_share: Share of the episodes whose game may fail before the run stops.
        branching: How episodes of a group continue from each other; None if they are independent.
        plan: The run structure's transformation of the episode specs, see `StructureHook.plan_evaluation`.
        outcomes: Outcomes of the last evaluation, of all ranks.
        iteration: Iteration of the weights that were evaluated.
    """

    split: str
    params: SamplingParams
    members: int = 1
    max_failed_share: float = 0.1
    plan: Callable[[list[EpisodeSpec]], list[EpisodeSpec]] = list
    branching: Branching | None = None
    outcomes: list[Outcome] = field(default_factory=list, init=False)
    iteration: int | None = field(default=None, init=False)

    def collect(self, batch: StepBatch, play: Play, version: int, *, is_first: bool = True) -> None:
        """Fill a batch of prompts with this rank's episodes and the outcomes of all ranks.

        Args:
            batch: Prompts of one game; an evaluation has one batch for each game.
            play: Plays a wave with the weights of a version.
            version: Version of the weights.
            is_first: Whether this is the first batch of the evaluation, which drops the outcomes of the previous
                evaluation.

        Raises:
            ValueError: Too many games failed.
        """
        specs = self.plan(make_specs(batch, self.members))
        wave = Wave(self.split, batch.iteration, self.params, tuple(specs), branching=self.branching)
        played = play(wave, version)
        batch.episodes, batch.used = played.episodes, sum_usage([played])
        stop_if_failing(batch.episodes, self.max_failed_share)
        batch.outcomes = gather_outcomes(batch.episodes)
        self.store_outcomes(batch, is_first=is_first)

    def store_outcomes(self, batch: StepBatch, *, is_first: bool = True) -> None:
        """Store the outcomes of a batch; for ``is_first`` see `collect`."""
        self.outcomes = [*([] if is_first else self.outcomes), *batch.outcomes]
        self.iteration = batch.iteration
