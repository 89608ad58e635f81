"""A T-maze: the first observation says which way is right at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lit_agentrl.checks import require_whole
from lit_agentrl.envs.base import Outcome, TextEnv
from lit_agentrl.envs.splits import draw_for_split, keyed_rng

_ROUTE = 93  # purpose key
_SIGNS = ("Left", "Right")
_VIEWS = ("wall", "box", "hole", "target", "goal", "player")  # words that the embedded policy knows
_AHEAD = "Up"

Route = tuple[str, ...]  # the sign, then the view at each further step


class TMaze(TextEnv):
    """A T-maze (Bakker, 2001): the first observation says which way is right at the end.

    ``Up`` goes one step ahead along the corridor, and has no effect at its end.  ``Left`` and ``Right`` end the game at
    the end of the corridor, and have no effect before.  The direction that the sign names earns 1.  Views on the way
    have no meaning.  A player that forgets the sign succeeds in half of the games.

    Args:
        length: Steps from the sign to the end, at least 1.
        split: ``train``, ``val`` or ``test``.

    Raises:
        ValueError: The length is below 1.
    """

    def __init__(self, *, length: int = 6, split: str = "train") -> None:
        super().__init__(split=split)
        require_whole("length", length, 1)
        self._length = length
        self._route: Route = (_SIGNS[0],)
        self._position = 0

    @property
    def rules(self) -> str:
        """Goal, actions and rewards."""
        return (
            f"You walk along a corridor. Its first observation names the way to go at its end, {self._length} steps "
            "ahead. What you see between has no meaning.\n"
            f"Actions: {_AHEAD} goes one step; at the end, {' or '.join(_SIGNS)} chooses.\n"
            "Rewards: 1 for the way that was named at first."
        )

    def action_names(self) -> list[str]:
        """Return the names of all actions."""
        return [_AHEAD, *_SIGNS]

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """Return the steps to the end and the right choice there; None after the game."""
        require_whole("horizon", horizon, 1)
        if not self._is_running:
            return None
        return [*[_AHEAD] * (self._length - self._position), self._route[0]][:horizon]

    def _draw_instance(self, seed: int) -> str:
        self._route = draw_for_split(
            lambda attempt: _propose(seed, attempt, self._length), " ".join, split=self.split
        )
        self._position = 0
        return " ".join(self._route)

    def _observe(self) -> str:
        if self._position == self._length:
            return f"{' or '.join(_SIGNS)} ?"
        return f"go {self._route[0]}" if self._position == 0 else self._route[self._position]

    def _play(self, action: str) -> Outcome:
        if self._position < self._length:
            self._position += action == _AHEAD
            return Outcome({"choice": 0.0})
        if action == _AHEAD:
            return Outcome({"choice": 0.0})
        is_right = action == self._route[0]
        return Outcome({"choice": float(is_right)}, terminated=True, success=is_right)

    def _get_state(self) -> dict[str, Any]:
        return {"route": list(self._route), "position": self._position}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self._route, self._position = tuple(state["route"]), int(state["position"])


def _propose(seed: int, attempt: int, length: int) -> Iterable[Route]:
    rng = keyed_rng(seed, attempt, _ROUTE)
    views = [_VIEWS[rng.integers(len(_VIEWS))] for _ in range(length - 1)]
    return [(_SIGNS[rng.integers(2)], *views)]
