"""Hints: the beginning of what solves an instance."""

from __future__ import annotations

import json

from lit_agentrl.actions import Format
from lit_agentrl.envs.world import World


def solution(env: World, observation: str, *, horizon: int) -> str | None:
    """The best play of the state that an environment is in, as JSON; None where the game knows none."""
    actions = env.optimal_actions(horizon=horizon)
    return None if not actions else json.dumps([str(action) for action in actions])


def beginning(found: str, share: float, *, kind: Format) -> str:
    """The first ``share`` of a solution: of its actions, or of the characters of a text; at least one of them.

    ``round(share n)`` of ``n``, as the released code of GHPO (arXiv 2507.10628) cuts its solutions.

    Args:
        found: what `solution` gave.
        share: in (0, 1].
        kind: of the game's actions.

    >>> beginning('["Up", "Left", "Down", "Down"]', 0.5, kind="names")
    'Up || Left'
    >>> beginning('["forty-two"]', 0.25, kind="text")
    'fo'
    """
    actions: list[str] = json.loads(found)
    if kind == "text":
        text = "\n".join(actions)
        return text[: max(1, round(share * len(text)))]
    shown = actions[: max(1, round(share * len(actions)))]
    return (" || " if kind == "names" else "\n").join(shown)
