"""A rollout structure of one's own: groups in which every episode failed are played once more."""

from __future__ import annotations

from collections.abc import Sequence

from lit_agentrl.rollout.scheduler import EpisodeSpec
from lit_agentrl.rollout.structures.base import Progress, Structure


class SecondTry(Structure):
    """A group that no episode solved gets as many episodes again, of further members: their draws are fresh."""

    def after_wave(self, progress: Progress) -> Sequence[EpisodeSpec]:
        solved = {episode.group for episode in progress.episodes if episode.success}
        return [
            EpisodeSpec(
                e.iteration, e.group, e.member + progress.members, e.task, e.instance_seed, progress.waves
            )
            for e in progress.episodes
            if progress.waves == 1 and e.group not in solved
        ]
