"""How evaluations are played."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lit_agentrl.batch import StepBatch
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.report.iteration import of_all_ranks, stop_if_failing
from lit_agentrl.rollout.scheduler import Wave
from lit_agentrl.rollout.structures.base import members_of
from lit_agentrl.rollout.workers.base import Played


@dataclass(frozen=True)
class Evaluation:
    """On which split, how sampled, how often each instance."""

    split: str
    params: SamplingParams
    members: int = 1

    def collect(self, batch: StepBatch, play: Callable[[Wave], Played], *, max_failed_share: float) -> None:
        """Fill a batch that has only prompts: this rank's episodes, and the outcomes of all ranks.

        Raises:
            ValueError: too many games failed.
        """
        specs = tuple(members_of(batch, self.members))
        batch.episodes = play(Wave(self.split, batch.iteration, self.params, specs)).episodes
        stop_if_failing(batch.episodes, max_failed_share)
        batch.outcomes = of_all_ranks(batch.episodes)
