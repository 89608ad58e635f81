"""Games of TextWorldExpress: cooking, tidying, searching, maps, arithmetic, sorting and following instructions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lit_agentrl.checks import require, require_one_of, require_whole
from lit_agentrl.envs.adapters.base import (
    Replayed,
    join_lines,
    make_missing_error,
    require_list_of,
    require_settings,
)
from lit_agentrl.envs.adapters.java import JavaGame, find_java, share_runtime
from lit_agentrl.envs.base import Outcome
from lit_agentrl.envs.splits import keyed_rng

_VARIATION = 62  # purpose key
_SWITCH = (0, 1)
_HOUSE = {"includeDoors": _SWITCH, "limitInventorySize": _SWITCH}
# the games, with the least and the greatest value of each setting
GAMES: dict[str, dict[str, tuple[int, int]]] = {
    "cookingworld": {
        "numLocations": (1, 11), "numIngredients": (1, 5), "numDistractorItems": (0, 10), **_HOUSE,
    },
    "twc": {"numLocations": (1, 3), "numItemsToPutAway": (1, 4), **_HOUSE},
    "coin": {"numLocations": (1, 11), "numDistractorItems": (0, 10), **_HOUSE},
    "mapreader": {
        "numLocations": (2, 48), "maxDistanceApart": (1, 8), "maxDistractorItemsPerLocation": (0, 3), **_HOUSE,
    },
    "arithmetic": {},
    "sorting": {},
    "simonsays": {"gameLength": (1, 1000), "numDistractors": (0, 5), "memorization": _SWITCH, "verbose": _SWITCH},
    "peckingorder": {},
}  # fmt: skip
_AGENTS = {
    "cookingworld": "CookingWorld", "twc": "TWC", "coin": "Coin", "mapreader": "MapReader",
    "arithmetic": "Arithmetic", "sorting": "Sorting", "simonsays": "SimonSays", "peckingorder": "PeckingOrder",
}  # fmt: skip
# split -> fold of the library, and its first variation
_FOLDS = {"train": ("train", 0), "val": ("dev", 10_000), "test": ("test", 20_000)}
VARIATIONS = 1000  # of each fold
_SHARING = ("sorting",)  # games of one process share the objects to sort
_WALKS = 50  # tries of the library's agent, which searches at random
# actions that change nothing; neither do those that begin with ``examine``
_LOOKS = ("look around", "inventory", "task")
SHOWN = ("look", "inventory", "actions")


class TextWorldExpress(Replayed):
    """One game per episode; an action is one of the texts that are possible.

    The reward is the change of the score, which is clipped to 0 to 1; success is a score of 1.  Best play is the path
    of the library's agent, which knows what is hidden, without its detours; it is known only while an episode follows
    the path.

    Args:
        id: one of `GAMES`.
        settings: settings of the game by name, such as ``{numLocations: 5, includeDoors: 0}``.
        shows: what follows each message: ``look`` (the room), ``inventory``, ``actions`` (those that are possible).
        partial: whether an unsolved game earns its score; False: only 1 for a solved one.
        memory_mb: most memory of the Java process, MB.
        split: ``train``, ``val`` or ``test``: the library's folds train, dev and test, which share neither variations
            nor, in most games, objects.

    Raises:
        ValueError: the library or Java is missing, or a value is out of range.
    """

    foreign = ("_game",)

    def __init__(
        self,
        *,
        id: str = "coin",
        settings: Mapping[str, int] | None = None,
        shows: Sequence[str] = ("actions",),
        partial: bool = True,
        memory_mb: int = 256,
        split: str = "train",
    ) -> None:
        super().__init__(split=split)
        require_one_of("id", id, tuple(GAMES))
        require_settings({} if settings is None else settings)
        self._id, self._settings = id, dict(settings or {})
        for name, value in self._settings.items():
            known = ", ".join(GAMES[id]) or "none"
            require(
                name in GAMES[id], f"settings.{name}", value, f"left out: the settings of {id} are {known}"
            )
            require_whole(f"settings.{name}", value, *GAMES[id][name])
        if self._settings.get("verbose") and not self._settings.get("memorization"):
            raise ValueError("settings.verbose=1 has no effect without settings.memorization=1; set both")
        require_list_of("shows", shows, SHOWN)
        require(isinstance(partial, bool), "partial", partial, "true or false")
        require_whole("memory_mb", memory_mb, 64)
        self._shows, self._partial, self._memory_mb = tuple(shows), partial, memory_mb
        self._jar = _find_jar()
        find_java()
        self._game: JavaGame
        self._open()
        self._number = _FOLDS[split][1]
        self._answer: dict[str, Any] = {}
        self._changes: list[list[str]] = []
        self._path: list[tuple[str, str]] | None = None  # best play, as contents and actions

    @classmethod
    def identity(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options that change the game."""
        own_options = {name: value for name, value in options.items() if name != "memory_mb"}
        return {**own_options, "settings": dict(options["settings"] or {}), "shows": list(options["shows"])}

    @property
    def system_text(self) -> str:
        return (
            "You are playing a text game. Each reply is one action, one of those that are possible where you are.\n"
            "Rewards: the change of your score, which is 1 when the task is done."
        )

    def random_action(self, rng: np.random.Generator) -> str | None:
        """Return an action that is possible now."""
        actions = self._list_actions()
        return actions[int(rng.integers(len(actions)))] if self._is_running and actions else None

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """Return the rest of the library's own solution.

        None: the episode has left the solution, or the library's agent finds none.
        """
        require_whole("horizon", horizon, 1)
        if not self._is_running:
            return None
        if self._path is None:
            self._path = self._find_path()
        content = self._get_content()
        rest = [action for _, action in self._path]
        for index, (known, _) in enumerate(self._path):
            if known == content:
                return rest[index : index + horizon]
        return None

    def close(self) -> None:
        self._open()

    def _open(self) -> None:
        self._game = self._make_game()

    def _make_game(self) -> JavaGame:
        runtime = share_runtime(self._jar, memory_mb=self._memory_mb)
        text = ",".join(f"{name}={value}" for name, value in self._settings.items())
        id = self._id

        def make(classes: Any) -> Any:
            game = classes.textworldexpress.runtime.PythonInterface()
            if problem := game.load(id, text):
                raise ValueError(f"settings={text} is refused by {id}: {problem.strip()}")
            return game

        return JavaGame(runtime, make, shares_state=id in _SHARING)

    def _draw_instance(self, seed: int) -> str:
        self._begin(_FOLDS[self.split][1] + int(keyed_rng(seed, 0, _VARIATION).integers(VARIATIONS)))
        return self._get_content()

    def _begin(self, number: int) -> None:
        self._number, self._changes, self._path = number, [], None
        self._answer, description = self._start(self._game)
        self._message = f"{description}\n{self._answer['observation']}"

    def _start(self, game: JavaGame) -> tuple[dict[str, Any], str]:
        number, fold = self._number, _FOLDS[self.split][0]
        text, description = game.begin(
            lambda game: (game.generateNewGameJSON(number, fold, False), game.getTaskDescription())
        )
        return _read(text), str(description)

    def _get_content(self) -> str:
        return self._describe(self._answer, self._changes)

    def _describe(self, answer: Mapping[str, Any], changes: Sequence[Sequence[str]]) -> str:
        """Return the variation, the place, and the actions that changed more than the place."""
        settings = sorted(self._settings.items())
        return json.dumps([self._id, settings, self._number, _get_place(answer), list(changes)])

    def _list_changes(self, answer: Mapping[str, Any], action: str) -> list[list[str]]:
        """Return what an action adds to the content: its place and itself, or nothing."""
        if self._id != "simonsays" and (action in _LOOKS or action.startswith(("move ", "examine "))):
            return []
        return [[_get_place(answer), action]]

    def _list_actions(self) -> list[str]:
        return sorted(set(self._answer.get("validActions", ())))

    def _observe(self) -> str:
        parts = [self._message]
        if "look" in self._shows and self._answer["look"] and self._answer["look"] not in self._message:
            parts.append(self._answer["look"])
        if "inventory" in self._shows and self._answer["inventory"]:
            parts.append(self._answer["inventory"])
        if "actions" in self._shows and self._is_running:
            parts.append(f"Possible actions: {', '.join(self._list_actions())}")
        return join_lines(parts)

    def _act(self, action: str) -> Outcome:
        names = {name.casefold(): name for name in self._list_actions()}
        name = names.get(" ".join(action.split()).casefold())
        if name is None:
            self._message = "Unknown action: I'm not sure what you mean."  # as the library has it
            return Outcome({"score": 0.0}, action_is_valid=False)
        before, changes = self._answer, self._list_changes(self._answer, name)
        self._answer = answer = _step(self._game, name)
        self._changes += changes
        self._message = answer["observation"]
        is_solved = bool(answer["tasksuccess"]) or answer["score"] >= 1
        reward = answer["score"] - before["score"] if self._partial else float(is_solved)
        return Outcome(
            {"score": reward}, terminated=is_solved or bool(answer["taskfailure"]), success=is_solved
        )

    def _find_path(self) -> list[tuple[str, str]]:
        """Return the solution of the library's agent without detours, as contents and actions."""
        game = self._make_game()
        actions = game.look(self._run_agent)
        answer, changes = self._start(game)[0], list[list[str]]()
        path: list[tuple[str, str]] = []
        position: dict[str, int] = {}
        for action in actions:
            content = self._describe(answer, changes)
            if content in position:  # the agent has come back, so the actions in between were a detour
                del path[position[content] :]
                position = {known: index for index, (known, _) in enumerate(path)}
            if action not in answer["validActions"]:
                continue
            position[content] = len(path)
            path.append((content, action))
            changes += self._list_changes(answer, action)
            answer = _step(game, action)
            if answer["score"] >= 1:
                return path
        return []

    def _run_agent(self, classes: Any, game: Any) -> list[str]:
        """Return the actions of the library's agent; the variation's number seeds its random walks."""
        fold = _FOLDS[self.split][0]
        kind = "SimonSaysMemory" if self._settings.get("memorization") else _AGENTS[self._id]
        agent = getattr(classes.textworldexpress.goldagent, f"{kind}GoldAgent")
        generator = classes.scala.util.Random(self._number)
        for _ in range(_WALKS):
            result = agent(game.gameGenerator().mkGame(self._number, fold)).mkGoldPath(generator)
            if result.productElement(0):
                return [str(action) for action in result.productElement(1)]
        return []


def _find_jar() -> Path:
    try:
        from textworld_express.constants import JAR_PATH
    except ImportError as error:
        raise make_missing_error("textworld-express", "textworld_express", error) from error
    return Path(JAR_PATH)


def _step(game: JavaGame, action: str) -> dict[str, Any]:
    return _read(game.ask(lambda game: game.stepJSON(action)))


def _read(text: str) -> dict[str, Any]:
    """Return an answer of the library, with its score clipped to 0 to 1."""
    answer: dict[str, Any] = json.loads(text)
    return {**answer, "score": min(max(float(answer["score"]), 0.0), 1.0)}


def _get_place(answer: Mapping[str, Any]) -> str:
    """Return the first sentence about the room, which names it."""
    return str(answer["look"]).partition(".")[0]
