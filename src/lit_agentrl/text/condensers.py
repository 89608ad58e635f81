"""Condensers of ``context=single``: functions that summarise the past turns as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lit_agentrl.checks import require_whole
from lit_agentrl.episode import Turn


@dataclass(frozen=True)
class LastActions:
    """Lists the actions played so far in order, such as ``actions so far: Up``.

    The task and the reward of the last turn are not repeated: the message that follows states them.

    Args:
        count: List only the last ``count`` actions; null lists all.  With 0 the text is empty, so that the policy
            reads only the current message.

    Raises:
        ValueError: If the count is negative.
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
