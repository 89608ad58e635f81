"""Why chance and oracle of a game are not known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_PLAYS = {"chance": "random_action", "oracle": "optimal_actions"}  # what a game gives for each


def describe_unknown(games: Sequence[Mapping[str, Any]]) -> str:
    """Describe why levels of games are unknown; each reason stands once.

    Args:
        games: entries of ``summary.json``; ``levels_episodes`` says that levels were measured.

    Returns:
        A text without a full stop; empty if all are known.
    """
    reasons: dict[str, list[str]] = {}
    for game in games:
        missing = [name for name in _PLAYS if game[name] is None]
        if not missing:
            continue
        levels = " and ".join(missing)
        # if one of the two is known, both were measured
        if len(missing) == 2 and not game.get("levels_episodes"):
            reason = f"{levels} not measured: lit-agentrl levels"
        else:
            reason = (
                f"{levels} unknown: the game gives no {' and no '.join(_PLAYS[name] for name in missing)}"
            )
        names = reasons.setdefault(reason, [])
        if game["name"] not in names:
            names.append(game["name"])
    if len(reasons) == 1:
        return next(iter(reasons))
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
