"""Condensers of ``context=single``: functions from the past turns to the text that stands for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lit_agentrl.checks import require_whole
from lit_agentrl.episode import Turn


@dataclass(frozen=True)
class LastActions:
    """``actions so far: Up || Right``, in the order in which they were played.

    The problem and the reward of the last turn are not repeated: the message that follows states them.

    Args:
        count: names the last ``count`` actions only; null names all; 0 gives no text, so that the policy
            reads the present message alone.

    Raises:
        ValueError: a negative count.
    """

    count: int | None = None

    def __post_init__(self) -> None:
        if self.count is not None:
            require_whole("count", self.count, 0, alternative=", or null for all")

    def __call__(self, past: Sequence[Turn]) -> str:
        if self.count == 0:
            return ""
        actions = [action for turn in past for action in turn.actions]
        shown = actions if self.count is None else actions[-self.count :]
        label = "last actions" if len(shown) < len(actions) else "actions so far"
        return f"{label}: {' || '.join(shown) or 'none'}"
