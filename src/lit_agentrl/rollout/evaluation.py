"""How evaluations are played."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lit_agentrl.batch import StepBatch
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.episode import Outcome
from lit_agentrl.report.iteration import of_all_ranks, stop_if_failing
from lit_agentrl.rollout.branching import Branching
from lit_agentrl.rollout.scheduler import EpisodeSpec, Wave
from lit_agentrl.rollout.structures.base import members_of
from lit_agentrl.rollout.workers.base import Played, used_by_all

Play = Callable[[Wave, int], Played]


@dataclass
class Evaluation:
    """On which split, how sampled, how often each instance.

    Attributes:
        max_failed_share: of the episodes whose game may fail before the run stops.
        branching: how the members of an instance go on from each other; None: they are independent.
        told: what the structure of a run makes of the episodes, see `Structure.evaluated`.
        outcomes: of all ranks' episodes of the last evaluation.
        iteration: behind the weights that it measured.
    """

    split: str
    params: SamplingParams
    members: int = 1
    max_failed_share: float = 0.1
    told: Callable[[list[EpisodeSpec]], list[EpisodeSpec]] = list
    branching: Branching | None = None
    outcomes: list[Outcome] = field(default_factory=list, init=False)
    iteration: int | None = field(default=None, init=False)

    def collect(self, batch: StepBatch, play: Play, version: int, *, is_first: bool = True) -> None:
        """Fill a batch that has only prompts: this rank's episodes, and the outcomes of all ranks.

        Args:
            batch: of an evaluation, which has one for each game.
            play: plays a wave with the weights of a version.
            version: of the weights.
            is_first: of the evaluation; outcomes of an earlier one are dropped.

        Raises:
            ValueError: too many games failed.
        """
        specs = self.told(members_of(batch, self.members))
        wave = Wave(self.split, batch.iteration, self.params, tuple(specs), branching=self.branching)
        played = play(wave, version)
        batch.episodes, batch.used = played.episodes, used_by_all([played])
        stop_if_failing(batch.episodes, self.max_failed_share)
        batch.outcomes = of_all_ranks(batch.episodes)
        self.take(batch, is_first=is_first)

    def take(self, batch: StepBatch, *, is_first: bool = True) -> None:
        """Take over the outcomes of a batch; ``is_first`` as of `collect`."""
        self.outcomes = [*([] if is_first else self.outcomes), *batch.outcomes]
        self.iteration = batch.iteration
