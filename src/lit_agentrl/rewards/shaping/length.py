"""Stepwise penalty for long episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lit_agentrl.checks import require_whole
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.base import Rewards, Shaping, at_end


@dataclass(kw_only=True)
class Length(Shaping):
    """Penalty at the last turn that grows in steps with the number of tokens.

    ``-floor(max(0, T - free_tokens) / step_tokens)``, where T is the number of sampled tokens of the episode.

    Args:
        free_tokens: tokens without penalty.
        step_tokens: each full step of this many further tokens costs ``weight``.
    """

    weight: float = 0.5
    free_tokens: int = 512
    step_tokens: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole("free_tokens", self.free_tokens, 0)
        require_whole("step_tokens", self.step_tokens, 1)

    def score(self, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        """Return the score at the last turn of each episode."""
        over = [max(0, e.num_action_tokens - self.free_tokens) for e in episodes]
        return at_end(episodes, [-(tokens // self.step_tokens) for tokens in over])
