"""Games of gymnasium with numbered actions, as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from lit_agentrl.checks import require, require_whole
from lit_agentrl.envs.adapters.base import Replayed
from lit_agentrl.envs.adapters.toy_text import GAME_TEXTS, GameText
from lit_agentrl.envs.base import Outcome

_DIGITS = 4


class Gymnasium(Replayed):
    """A game that gymnasium knows by an id, with named actions.

    Taxi, Blackjack, CliffWalking and FrozenLake are described in words and have best play.  Any other game with
    numbered actions shows its observation as numbers; success is then a last reward of ``success_reward`` or more.

    Everything random after the reset is drawn from the episode's own noise, in place of the game's generator.

    Args:
        id: id of a game that is registered, such as ``Taxi-v4``; an id that names a module to import is refused.
        options: arguments of the game, such as ``{is_rainy: true}``.
        actions: names in the order of gymnasium's numbers; None: the known ones, else the numbers.
        success_reward: a game is solved if its last reward is at least this; None: as known for the game, else if it is
            above 0.
        split: ``train``, ``val`` or ``test``.

    Raises:
        ValueError: gymnasium does not know the id, or the actions of the game are not numbered.
    """

    foreign = ("_game", "_text")

    def __init__(
        self,
        *,
        id: str = "Taxi-v4",
        options: Mapping[str, Any] | None = None,
        actions: Sequence[str] | None = None,
        success_reward: float | None = None,
        split: str = "train",
    ) -> None:
        super().__init__(split=split)
        require(isinstance(id, str) and ":" not in id, "id", id, "the id of a game, without a module")
        self._id, self._options = id, dict(options or {})
        self._success_reward = success_reward
        self._open()
        count = int(self._game.action_space.n)
        names = self._text.actions if actions is None else tuple(str(name) for name in actions)
        require(len(names) == count, "actions", list(names), f"{count} names, one for each action of {id}")
        self._names = list(names)
        self.max_solution, self.instances = self._text.max_solution, self._text.instances
        self._seen: Any = None

    @property
    def rules(self) -> str:
        return self._text.rules

    @property
    def system_text(self) -> str:
        return f"You are playing {self._text.title}.\n{self.rules}"

    def action_names(self) -> list[str]:
        return list(self._names)

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """Return the best play of a toy-text game; None for others."""
        require_whole("horizon", horizon, 1)
        plan = self._text.plan_best(horizon) if self._is_running else None
        return None if plan is None else [self._names[action] for action in plan]

    def _open(self) -> None:
        try:
            game: Any = gymnasium.make(self._id, disable_env_checker=True, **self._options).unwrapped
        except (gymnasium.error.Error, TypeError) as error:
            message = " ".join(str(error).split())
            raise ValueError(
                f"id={self._id} with options={json.dumps(self._options, default=str)} cannot be made ({message}); "
                "choose a game that gymnasium.make knows"
            ) from error
        space = game.action_space
        is_numbered = isinstance(space, gymnasium.spaces.Discrete) and space.start == 0
        require(is_numbered, "id", self._id, "a game whose actions are numbered from 0 (Discrete)")
        name = self._id.rpartition("-v")[0]
        if name.startswith("FrozenLake") and self._options.get("map_name", "") is None:
            raise ValueError("options.map_name=None draws a map by chance; name one, or play env=frozen_lake")
        self._game, self._text = game, GAME_TEXTS.get(name, Numbers)(game)
        if isinstance(self._text, Numbers):
            self._text.title, self._text.actions = name, tuple(str(action) for action in range(space.n))

    def _begin(self, number: int) -> None:
        self._seen, _ = self._game.reset(seed=number)

    def _get_content(self) -> str:
        return f"{self._id} {self._text.get_content(self._seen)}"

    def _observe(self) -> str:
        return self._text.describe(self._seen)

    def _act(self, action: str) -> Outcome:
        self._game.np_random = self._noise
        self._seen, reward, is_over, _, _ = self._game.step(self._names.index(action))
        least, reward = self._success_reward, float(reward)
        is_solved = self._text.is_solved(reward) if least is None else reward >= least
        return Outcome({"game": reward}, terminated=bool(is_over), success=bool(is_over) and is_solved)

    def close(self) -> None:
        self._game.close()


class Numbers(GameText):
    """Text of a game without a description: its observation as numbers."""

    title = ""
    actions: tuple[str, ...] = ()

    @property
    def rules(self) -> str:
        space = " ".join(str(self.game.observation_space).split())
        return f"The game shows numbers: {space}.\nActions: {', '.join(self.actions)}."

    def describe(self, observation: Any) -> str:
        return json.dumps(_to_rounded_json(observation))

    def get_content(self, observation: Any) -> str:
        """Return the observation and all plain attributes of the game, even hidden ones."""
        simple = (int, float, str, list, tuple, np.ndarray, np.generic)
        hidden = {name: value for name, value in vars(self.game).items() if isinstance(value, simple)}
        return json.dumps([_to_json(observation), _to_json(hidden)], default=str)


def _to_rounded_json(value: Any) -> Any:
    """Convert numbers to JSON, rounded."""
    if isinstance(value, Mapping):
        return {str(key): _to_rounded_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_rounded_json(item) for item in value]
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    if isinstance(value, list):
        return _to_rounded_json(value)
    return round(value, _DIGITS) if isinstance(value, float) else value


def _to_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
