"""Single-player games of TextArena, limited to those that are the same in every process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from lit_agentrl.checks import require, require_whole
from lit_agentrl.envs.adapters.base import PrivateGenerators, Replayed, make_missing_error
from lit_agentrl.envs.adapters.textarena_games import GAMES
from lit_agentrl.envs.base import Outcome

_LONGEST = 1000  # characters of an action that a game reads; longer ones are invalid
_DRAWS = 2**31


class TextArena(Replayed):
    """One game per episode; actions are texts in square brackets, which may be omitted.

    The system message begins with the game's first messages.  Everything random after the reset is drawn from the
    episode's own noise: the games use Python's global generator, which is replaced meanwhile and then restored.

    Args:
        id: one of `GAMES`, such as ``FrozenLake-v0-random``.
        partial: whether an unsolved game earns the share that was done; False: only 1 for a solved one.
        split: ``train``, ``val`` or ``test``, decided by the whole content of the game, hidden or not.

    Raises:
        ValueError: the library is missing, or the game is not in `GAMES`.
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
        self._introduction = self._shown = ""

    @property
    def system_text(self) -> str:
        return self._introduction or f"You are playing {self._id.partition('-')[0]}."

    def random_action(self, rng: np.random.Generator) -> str | None:
        return GAMES[self._id].chance(self._game, rng) if self._is_running else None

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """Return the next actions that win, chosen with knowledge of hidden parts.

        None: no actions win, or best play of the game is unknown.
        """
        require_whole("horizon", horizon, 1)
        best = GAMES[self._id].best
        return (best(self._game)[:horizon] or None) if self._is_running and best is not None else None

    def _open(self) -> None:
        with PrivateGenerators(0).install():
            try:
                import textarena
            except ImportError as error:
                raise make_missing_error("textarena", "textarena", error) from error
            self._game = textarena.make(f"{self._id}-raw")

    def _begin(self, number: int) -> None:
        self._open()  # some games keep state of the previous episode
        with PrivateGenerators(number).install():
            self._game.reset(num_players=1, seed=number)
        messages = self._read_messages()
        self._introduction = "\n".join(text for kind, text in messages if kind == "PROMPT")
        self._shown = "\n".join(text for kind, text in messages if kind != "PROMPT") or "The game begins."

    def _get_content(self) -> str:
        game = self._game
        state = {
            name: value for name, value in vars(game.state).items() if name not in ("observations", "logs")
        }
        attributes = {name: value for name, value in vars(game).items() if name != "state"}
        return json.dumps([self._id, _to_plain(state), _to_plain(attributes)])

    def _observe(self) -> str:
        return self._shown

    def _act(self, action: str) -> Outcome:
        text = action.strip() if len(action) <= _LONGEST else "nothing that is short enough"
        with PrivateGenerators(int(self._noise.integers(_DRAWS))).install():
            is_over, _ = self._game.step(text if "[" in text else f"[{text}]")
        messages = [text for kind, text in self._read_messages() if kind != "PLAYER_ACTION"]
        if not is_over:
            self._shown = "\n".join(messages) or "Go on."
            return Outcome()
        reward = float((self._game.state.rewards or {}).get(0, 0.0))
        info = self._game.state.game_info[0]
        self._shown = "\n".join([*messages, str(info.get("reason") or "")]).strip()
        is_solved = reward >= 1 and not info["invalid_move"]
        reward = reward if self._partial else float(is_solved)
        return Outcome({"game": reward}, terminated=True, success=is_solved)

    def _read_messages(self) -> list[tuple[str, str]]:
        """Return the messages to the player since the last call."""
        _, messages = self._game.get_observation()
        return [(kind.name, str(text).strip()) for _, text, kind in messages]


def _to_plain(value: Any) -> Any:
    """Return the content of a value, equal in every process.

    Opaque objects give their type only.
    """
    if isinstance(value, Mapping):
        return sorted([repr(key), _to_plain(item)] for key, item in value.items())
    if isinstance(value, list | tuple | np.ndarray):
        return [_to_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(repr(item) for item in value)
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, str | int | float | bool | None) else type(value).__name__
