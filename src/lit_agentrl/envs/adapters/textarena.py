"""Games of TextArena for one player: those of them that can be trusted to be the same in every process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from lit_agentrl.checks import require, require_whole
from lit_agentrl.envs.adapters.base import OwnGenerators, Replayed, missing
from lit_agentrl.envs.adapters.textarena_games import GAMES
from lit_agentrl.envs.base import Outcome

_LONGEST = 1000  # characters of an action that a game reads: numbers of thousands of digits are none
_DRAWS = 2**31


class TextArena(Replayed):
    """One game an episode; an action is text in square brackets, which are added where they are missing.

    What the game says at its beginning opens the system message.  What is random after the reset is drawn from the
    member's own noise; the games' own way is Python's global generator, which is lent to them and put back.

    Args:
        id: one of `GAMES`, such as ``FrozenLake-v0-random``.
        partial: pay the share of the game that was done where it is not solved; False: only 1 for a solved one.
        split: ``train``, ``val`` or ``test``, by all that the game holds, hidden or not.

    Raises:
        ValueError: the library is missing, or a game that is not in `GAMES`.
    """

    def __init__(
        self, *, id: str = "FrozenLake-v0-random", partial: bool = True, split: str = "train"
    ) -> None:
        super().__init__(split=split)
        require(id in GAMES, "id", id, "one of the games that docs/adapters.md lists")
        require(isinstance(partial, bool), "partial", partial, "true or false")
        self._id, self._partial = id, partial
        self.instances = GAMES[id].instances
        self._game: Any
        self._open()
        self._told = self._shown = ""

    @property
    def system_text(self) -> str:
        return self._told or f"You are playing {self._id.partition('-')[0]}."

    def random_action(self, rng: np.random.Generator) -> str | None:
        return GAMES[self._id].chance(self._game, rng) if self._is_running else None

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """The first actions of a way to win that knows what is hidden; None: there is none, or it is not known."""
        require_whole("horizon", horizon, 1)
        best = GAMES[self._id].best
        return (best(self._game)[:horizon] or None) if self._is_running and best is not None else None

    def _open(self) -> None:
        with OwnGenerators(0).lent():
            try:
                import textarena
            except ImportError as error:
                raise missing("textarena", "textarena", error) from error
            self._game = textarena.make(f"{self._id}-raw")

    def _begin(self, number: int) -> None:
        self._open()  # some leave things of the last game behind
        with OwnGenerators(number).lent():
            self._game.reset(num_players=1, seed=number)
        said = self._said()
        self._told = "\n".join(text for kind, text in said if kind == "PROMPT")
        self._shown = "\n".join(text for kind, text in said if kind != "PROMPT") or "The game begins."

    def _get_content(self) -> str:
        game = self._game
        state = {
            name: value for name, value in vars(game.state).items() if name not in ("observations", "logs")
        }
        own = {name: value for name, value in vars(game).items() if name != "state"}
        return json.dumps([self._id, _plain(state), _plain(own)])

    def _observe(self) -> str:
        return self._shown

    def _act(self, action: str) -> Outcome:
        written = action.strip() if len(action) <= _LONGEST else "nothing that is short enough"
        with OwnGenerators(int(self._noise.integers(_DRAWS))).lent():
            is_over, _ = self._game.step(written if "[" in written else f"[{written}]")
        said = [text for kind, text in self._said() if kind != "PLAYER_ACTION"]
        if not is_over:
            self._shown = "\n".join(said) or "Go on."
            return Outcome()
        points = float((self._game.state.rewards or {}).get(0, 0.0))
        info = self._game.state.game_info[0]
        self._shown = "\n".join([*said, str(info.get("reason") or "")]).strip()
        is_solved = points >= 1 and not info["invalid_move"]
        points = points if self._partial else float(is_solved)
        return Outcome({"game": points}, terminated=True, success=is_solved)

    def _said(self) -> list[tuple[str, str]]:
        """What the player was told since the last time."""
        _, messages = self._game.get_observation()
        return [(kind.name, str(text).strip()) for _, text, kind in messages]


def _plain(value: Any) -> Any:
    """What a value holds, the same in every process; what has no content of its own is left out."""
    if isinstance(value, Mapping):
        return sorted([repr(key), _plain(each)] for key, each in value.items())
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(each) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(repr(each) for each in value)
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, str | int | float | bool | None) else type(value).__name__
