"""Cosine length reward: short successes and long failures are better than their opposites."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lit_agentrl.checks import require_number, require_whole
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.base import Points, Shaping, at_end


@dataclass(kw_only=True)
class Cosine(Shaping):
    """Yeo et al., arXiv 2502.03373: ``long + (short - long) (1 + cos(pi T / L)) / 2`` at the last turn.

    T are the episode's sampled tokens, L is ``max_tokens``; from L on the score is ``exceeded``.

    Args:
        max_tokens: L.
        solved_short, solved_long: of a success with T = 0 and T = L.
        failed_short, failed_long: of a failure.
        exceeded: of an episode with T >= L.
    """

    weight: float = 1.0
    max_tokens: int = 200
    solved_short: float = 1.0
    solved_long: float = 0.5
    failed_short: float = -1.0
    failed_long: float = -0.5
    exceeded: float = -1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole("max_tokens", self.max_tokens, 1)
        for name in ("solved_short", "solved_long", "failed_short", "failed_long", "exceeded"):
            require_number(name, getattr(self, name), "a number")

    def score(self, episodes: Sequence[Episode], *, iteration: int) -> Points:
        """At the last turn."""
        return at_end(episodes, [self._of(e.num_action_tokens, e.success) for e in episodes])

    def _of(self, tokens: int, success: bool) -> float:
        if tokens >= self.max_tokens:
            return self.exceeded
        pair = (self.solved_short, self.solved_long) if success else (self.failed_short, self.failed_long)
        return pair[1] + (pair[0] - pair[1]) * (1 + math.cos(math.pi * tokens / self.max_tokens)) / 2
