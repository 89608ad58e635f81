"""Independent episodes, with further groups if those played are not enough."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lit_agentrl.checks import require_whole
from lit_agentrl.facts import ASKS_FOR_GROUPS, MORE_GROUPS
from lit_agentrl.requirements import Requirement
from lit_agentrl.rollout.scheduler import EpisodeSpec
from lit_agentrl.rollout.structures.base import DEFAULT_WAVES, MAX_WAVES, Progress, Structure


class Refill(Structure):
    """Groups of independent episodes, with more prompts in place of what is not trained on.

    If row selection drops a part of each group, it plays more prompts from the start (CPPO's dynamic completion
    allocation, arXiv 2503.22342).  If a filter asks for more groups, it draws further waves of prompts (DAPO's dynamic
    sampling, arXiv 2503.14476, section 3.2).  Otherwise it plays independent episodes only.

    Args:
        max_waves: Maximum waves of an iteration, including the first; None for 10.

    Raises:
        ValueError: ``max_waves`` is not a whole number from 1 to 128.
    """

    provides = frozenset({MORE_GROUPS})

    def __init__(self, max_waves: int | None = None) -> None:
        limit = DEFAULT_WAVES if max_waves is None else max_waves
        require_whole("max_waves", limit, 1, MAX_WAVES, f", or null for {DEFAULT_WAVES}")
        self.max_waves = limit
        if max_waves is not None:
            self.requires |= {Requirement(ASKS_FOR_GROUPS, by=f"algo.structure.max_waves={max_waves}")}

    def prompts(self, wanted: int, factor: float) -> int:
        return math.ceil(wanted * factor - 1e-9)  # the margin absorbs floating-point errors of the product

    def after_wave(self, progress: Progress) -> Sequence[EpisodeSpec]:
        if not progress.want_more or progress.waves >= self.max_waves:
            return ()
        return self.plan(progress.draw(progress.waves), progress.members)
