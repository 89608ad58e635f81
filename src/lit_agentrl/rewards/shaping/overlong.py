"""DAPO's soft penalty for overlong replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lit_agentrl.checks import require, require_one_of, require_whole
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.base import Rewards, Shaping, at_end


@dataclass(kw_only=True)
class Overlong(Shaping):
    """Soft overlong penalty: DAPO, arXiv 2503.14476, equation 13.

    With T sampled tokens it is ``0`` for T <= L - C, ``(L - C - T) / C`` for T <= L, and ``-1`` beyond.

    Args:
        max_tokens: L.
        buffer: C, the number of tokens before L over which the penalty grows.
        per: ``turn`` measures each reply; ``episode`` measures all replies together, at the last turn.
    """

    weight: float = 1.0
    max_tokens: int = 40
    buffer: int = 8
    per: Literal["turn", "episode"] = "turn"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole("max_tokens", self.max_tokens, 1)
        require_whole("buffer", self.buffer, 1)
        require(self.buffer <= self.max_tokens, "buffer", self.buffer, f"<= max_tokens={self.max_tokens}")
        require_one_of("per", self.per, ("turn", "episode"))

    def score(self, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        """Return the penalty of each turn, or of the episode at its last turn."""
        if self.per == "turn":
            return [[self._compute_score(len(turn.reply_tokens)) for turn in e.turns] for e in episodes]
        return at_end(episodes, [self._compute_score(e.num_action_tokens) for e in episodes])

    def _compute_score(self, tokens: int) -> float:
        return max(-1.0, min(0.0, (self.max_tokens - self.buffer - tokens) / self.buffer))
