"""Groups with an additional greedy episode, whose return is the baseline of the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lit_agentrl.batch import StepBatch
from lit_agentrl.facts import BASELINE, PLAYED
from lit_agentrl.rollout.scheduler import EpisodeSpec
from lit_agentrl.rollout.structures.base import Progress, Structure, make_specs
from lit_agentrl.rollout.structures.refill import Refill


class Greedy(Structure):
    """Groups with a greedy baseline episode per prompt: ReMax, arXiv 2310.10505, equation 10.

    The greedy episode has the same noise of the game as the group's first episode.  It counts in tokens and time, but
    it is neither trained on nor included in the means of ``rollout/*``; groups are refilled as by `Refill`.

    Args:
        max_waves: See `Refill`.
    """

    def __init__(self, max_waves: int | None = None) -> None:
        self._refill = Refill(max_waves)
        self.requires = self._refill.requires | {PLAYED}
        self.provides = self._refill.provides | {BASELINE}

    def prompts(self, wanted: int, factor: float) -> int:
        return self._refill.prompts(wanted, factor)

    def plan(self, prompts: StepBatch, members: int) -> list[EpisodeSpec]:
        greedy = [replace(spec, greedy=True) for spec in make_specs(prompts, 1)]
        return make_specs(prompts, members) + greedy

    def after_wave(self, progress: Progress) -> Sequence[EpisodeSpec]:
        further = self._refill.after_wave(progress)
        return [*further, *(replace(spec, greedy=True) for spec in further if spec.member == 0)]
