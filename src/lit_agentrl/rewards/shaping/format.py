"""Reward for the format of replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lit_agentrl.checks import require_number, require_one_of
from lit_agentrl.episode import Episode, Turn
from lit_agentrl.rewards.base import Rewards, Shaping

_RULES = ("valid", "structure", "think")


@dataclass(kw_only=True)
class Format(Shaping):
    """Reward of ``ok`` for each reply that follows the rule, else ``bad``.

    The dialect sets what the rules read: ``Turn.is_valid``, ``is_well_formed`` and ``has_think``.  The game's own
    penalty for invalid replies (``env.invalid_penalty``) is not changed.

    Args:
        rule: ``valid``: the reply could be played; ``structure``: its tags are in order, whatever they contain;
            ``think``: the tags are in order, with a think block before the answer.
        ok, bad: scores.
    """

    weight: float = 0.1
    rule: Literal["valid", "structure", "think"] = "valid"
    ok: float = 1.0
    bad: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of("rule", self.rule, _RULES)
        require_number("ok", self.ok, "a number")
        require_number("bad", self.bad, "a number other than ok", lambda value: value != self.ok)

    def score(self, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        """Return the score of each turn."""
        return [[self.ok if self._is_ok(turn) else self.bad for turn in e.turns] for e in episodes]

    def _is_ok(self, turn: Turn) -> bool:
        if self.rule == "valid":
            return turn.is_valid
        if self.rule == "think" and not turn.has_think:
            return False
        return turn.is_well_formed
