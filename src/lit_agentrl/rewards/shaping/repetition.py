"""Penalty for repetition within replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lit_agentrl.checks import require_whole
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.base import Rewards, Shaping


@dataclass(kw_only=True)
class Repetition(Shaping):
    """``-(1 - distinct n-grams / all n-grams)`` of a reply's tokens: arXiv 2502.03373.

    It is 0 for a reply shorter than n.

    Args:
        n: tokens per n-gram.
    """

    weight: float = 0.1
    n: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole("n", self.n, 1)

    def score(self, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        """Return the penalty of each turn."""
        return [[self._compute_score(turn.reply_tokens.tolist()) for turn in e.turns] for e in episodes]

    def _compute_score(self, tokens: Sequence[int]) -> float:
        grams = [tuple(tokens[i : i + self.n]) for i in range(len(tokens) - self.n + 1)]
        return len(set(grams)) / len(grams) - 1.0 if grams else 0.0
