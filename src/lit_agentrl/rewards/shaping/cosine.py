"""Cosine length reward: prefer short successes and long failures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lit_agentrl.checks import require_number, require_whole
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.base import Rewards, Shaping, at_end


@dataclass(kw_only=True)
class Cosine(Shaping):
    """Cosine reward of length at the last turn: Yeo et al., arXiv 2502.03373.

    ``long + (short - long) (1 + cos(pi T / L)) / 2``, where T is the number of sampled tokens of the episode and L is
    ``max_tokens``; for T >= L the score is ``exceeded``.

    Args:
        max_tokens: L.
        solved_short, solved_long: score of a success with T = 0 and T = L.
        failed_short, failed_long: score of a failure with T = 0 and T = L.
        exceeded: score of an episode with T >= L.
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

    def score(self, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        """Return the score at the last turn of each episode."""
        return at_end(episodes, [self._compute_score(e.num_action_tokens, e.success) for e in episodes])

    def _compute_score(self, tokens: int, success: bool) -> float:
        if tokens >= self.max_tokens:
            return self.exceeded
        pair = (self.solved_short, self.solved_long) if success else (self.failed_short, self.failed_long)
        return pair[1] + (pair[0] - pair[1]) * (1 + math.cos(math.pi * tokens / self.max_tokens)) / 2
