"""A rollout structure of one's own: groups in which every episode failed are played once more."""

from __future__ import annotations

from collections.abc import Sequence

from lit_agentrl.rollout.scheduler import EpisodeSpec
from lit_agentrl.rollout.structures.base import SoFar, Structure


class SecondTry(Structure):
    """A group that no episode solved gets as many episodes again, of further members: their draws are fresh."""

    def after_wave(self, so_far: SoFar) -> Sequence[EpisodeSpec]:
        solved = {episode.group for episode in so_far.episodes if episode.success}
        return [
            EpisodeSpec(
                e.iteration, e.group, e.member + so_far.members, e.task, e.instance_seed, so_far.waves
            )
            for e in so_far.episodes
            if so_far.waves == 1 and e.group not in solved
        ]
