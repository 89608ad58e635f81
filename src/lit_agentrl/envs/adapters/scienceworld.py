"""ScienceWorld: thirty tasks of school science in a house of ten rooms."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lit_agentrl.checks import require, require_whole
from lit_agentrl.envs.adapters.base import Replayed, join_lines, make_missing_error, require_list_of
from lit_agentrl.envs.adapters.java import JavaGame, JavaRuntime, find_java, share_runtime
from lit_agentrl.envs.base import Outcome
from lit_agentrl.envs.splits import keyed_rng, stable_hash

T = TypeVar("T")
_VARIATION = 62  # purpose key
TASKS = (
    *("boil", "melt", "freeze", "change-the-state-of-matter-of", "use-thermometer"),
    *("measure-melting-point-known-substance", "measure-melting-point-unknown-substance"),
    *("power-component", "power-component-renewable-vs-nonrenewable-energy"),
    *("test-conductivity", "test-conductivity-of-unknown-substances"),
    *("find-living-thing", "find-non-living-thing", "find-plant", "find-animal", "grow-plant", "grow-fruit"),
    *("chemistry-mix", "chemistry-mix-paint-secondary-color", "chemistry-mix-paint-tertiary-color"),
    *("lifespan-longest-lived", "lifespan-shortest-lived", "lifespan-longest-lived-then-shortest-lived"),
    *("identify-life-stages-1", "identify-life-stages-2", "inclined-plane-determine-angle"),
    *("inclined-plane-friction-named-surfaces", "inclined-plane-friction-unnamed-surfaces"),
    *("mendelian-genetics-known-plant", "mendelian-genetics-unknown-plant"),
)
_FOLDS = {"train": "Train", "val": "Dev", "test": "Test"}
SIMPLIFICATIONS = (
    "teleportAction", "openContainers", "openDoors", "selfWateringFlowerPots", "noElectricalAction", "easy",
)  # fmt: skip
_ELECTRICAL = ("power-component", "conductivity")  # parts of the names of tasks that need electrical actions
# what easy stands for; noElectricalAction is added for tasks without electrical actions
_EASY = (
    "teleportAction",
    "openDoors",
    "selfWateringFlowerPots",
)
_UNKNOWN = ("No known action matches", "Unknown action")
_LONGEST = 300  # characters of an action that is read
SHOWN = ("look", "inventory", "actions")


class ScienceWorld(Replayed):
    """One task per episode, such as boiling water; an action is a text.

    The reward is the change of the score, which is clipped to 0 to 1; success is a score of 1.  A mistake that cannot
    be undone, such as focusing on the wrong thing, ends the episode with a score of 0.  Best play is the
    library's solution; it is known only while all actions so far followed it.

    Args:
        tasks: names from `TASKS`, drawn equally often; None: all.
        simplifications: names from `SIMPLIFICATIONS`; ``easy`` stands for several.
        shows: what follows each message: ``look`` (the room), ``inventory``, ``actions`` (the library
            lists hundreds, and does not understand some).
        partial: whether an unsolved task earns its score; False: only 1 for a solved one.
        memory_mb: most memory of the Java process, MB.
        split: ``train``, ``val`` or ``test``: the library's variations for training, development and test.

    Raises:
        ValueError: the library or Java is missing, or a value is out of range.
    """

    foreign = ("_game",)

    def __init__(
        self,
        *,
        tasks: Sequence[str] | None = None,
        simplifications: Sequence[str] = (),
        shows: Sequence[str] = (),
        partial: bool = True,
        memory_mb: int = 1024,
        split: str = "train",
    ) -> None:
        super().__init__(split=split)
        require_list_of("tasks", TASKS if tasks is None else tasks, TASKS)
        self._tasks = list(TASKS if tasks is None else tasks)
        require(bool(self._tasks), "tasks", "[]", "at least one task; null stands for all")
        require_list_of("simplifications", simplifications, SIMPLIFICATIONS)
        electrical = [task for task in self._tasks if _is_electrical(task)]
        if "noElectricalAction" in simplifications and electrical:
            raise ValueError(
                f"simplifications=noElectricalAction makes {electrical[0]} impossible; leave one of them out"
            )
        require_list_of("shows", shows, SHOWN)
        require(isinstance(partial, bool), "partial", partial, "true or false")
        require_whole("memory_mb", memory_mb, 256)
        self._simplifications, self._shows, self._partial = tuple(simplifications), tuple(shows), partial
        self._memory_mb, self._jar = memory_mb, _find_jar()
        find_java()
        self._game: JavaGame
        self._open()
        self._task, self._number = self._tasks[0], 0
        self._changes: list[str] = []  # the actions that were understood
        self._score = 0.0
        self._message = ""
        self._valid: list[str] | None = None  # the library's list of actions, once it was asked for
        self._solution: list[str] | None = None

    @classmethod
    def identity(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options that change the game, with the names of the tasks."""
        own_options = {name: value for name, value in options.items() if name != "memory_mb"}
        lists = {name: list(options[name]) for name in ("simplifications", "shows")}
        return {**own_options, **lists, "tasks": list(options["tasks"] or TASKS)}

    @property
    def system_text(self) -> str:
        return (
            "You are in a house with a laboratory and solve a task of science. Each reply is one action, such as:\n"
            "look around; look at OBJ; look in OBJ; read OBJ; inventory; task; wait; wait1 (one step of time)\n"
            "open OBJ; close OBJ; go to PLACE; pick up OBJ; put down OBJ; move OBJ to OBJ; pour OBJ in OBJ\n"
            "dunk OBJ in OBJ; mix OBJ; activate OBJ; deactivate OBJ; use OBJ on OBJ; connect OBJ to OBJ\n"
            "disconnect OBJ; eat OBJ; flush OBJ; focus on OBJ (only what the task asks for)\n"
            "Rewards: the change of your score, which is 1 when the task is done."
        )

    def random_action(self, rng: np.random.Generator) -> str | None:
        """Return an action of the library's list, which names some that it does not understand."""
        actions = self._list_actions() if self._is_running else []
        return actions[int(rng.integers(len(actions)))] if actions else None

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """Return the rest of the library's own solution.

        None: the episode has left the solution, or the library has none.
        """
        require_whole("horizon", horizon, 1)
        if not self._is_running:
            return None
        if self._solution is None:
            self._solution = self._find_solution()
        count = len(self._changes)
        if self._changes != self._solution[:count]:
            return None
        return self._solution[count : count + horizon] or None

    def close(self) -> None:
        self._open()

    def _open(self) -> None:
        self._game = JavaGame(share_runtime(self._jar, memory_mb=self._memory_mb), _World)

    def _draw_instance(self, seed: int) -> str:
        rng = keyed_rng(seed, 0, _VARIATION)
        self._task = self._tasks[int(rng.integers(len(self._tasks)))]
        variations = self._list_variations(self._task)
        self._begin(variations[int(rng.integers(len(variations)))])
        return self._get_content()

    def _list_variations(self, task: str) -> tuple[int, ...]:
        """Return the library's variations of a task in this split."""
        runtime = share_runtime(self._jar, memory_mb=self._memory_mb)
        return _list_variations(runtime, task, _FOLDS[self.split])

    def _begin(self, number: int) -> None:
        self._number, self._changes, self._score = number, [], 0.0
        self._valid = self._solution = None
        task, simplifications = self._task, self._spell_simplifications()
        description, look = self._game.begin(lambda world: world.load(task, number, simplifications))
        self._message = f"{description}\n{look}"

    def _spell_simplifications(self) -> str:
        parts = [part for part in self._simplifications if part != "easy"]
        if "easy" in self._simplifications:
            parts += [*_EASY, *(() if _is_electrical(self._task) else ("noElectricalAction",))]
        return ",".join(dict.fromkeys(parts))

    def _get_content(self) -> str:
        return json.dumps([self._task, self._number, self._spell_simplifications(), self._changes])

    def _list_actions(self) -> list[str]:
        if self._valid is None:
            key = self._make_key()
            answer = self._game.look(lambda _, world: world.list_actions(key))
            self._valid = sorted({str(entry["action"]) for entry in json.loads(answer)["validActions"]})
        return self._valid

    def _make_key(self) -> int:
        """Return the seed of everything random in the next action."""
        return stable_hash(self._get_content()) % 2**31

    def _observe(self) -> str:
        parts = [self._message]
        if self._is_running:
            for name in ("look", "inventory"):
                if name in self._shows and (text := self._show(name)) not in self._message:
                    parts.append(text)
            if "actions" in self._shows:
                parts.append(f"Possible actions: {', '.join(self._list_actions())}")
        return join_lines(parts)

    def _show(self, name: str) -> str:
        key = self._make_key()
        return str(self._game.look(lambda _, world: world.show(name, key)))

    def _act(self, action: str) -> Outcome:
        text = " ".join(action.encode(errors="replace").decode().split())  # Java takes no lone surrogate
        if not text or len(text) > _LONGEST:
            self._message = f"{_UNKNOWN[0]} that input."
            return Outcome({"score": 0.0}, action_is_valid=False)
        key = self._make_key()
        self._message, score, is_over = self._game.ask(lambda world: world.step(text, key))
        if self._message.startswith(_UNKNOWN):
            # the library lists some actions that it does not understand: they are valid and change nothing
            return Outcome({"score": 0.0}, action_is_valid=text in self._list_actions())
        self._changes.append(text)
        self._valid = None
        before, self._score = self._score, min(max(score, 0.0), 1.0)
        is_solved = score >= 1
        reward = self._score - before if self._partial else float(is_solved)
        return Outcome({"score": reward}, terminated=is_over or is_solved or score < 0, success=is_solved)

    def _find_solution(self) -> list[str]:
        runtime = share_runtime(self._jar, memory_mb=self._memory_mb)
        return list(_solve(runtime, self._task, self._number, self._spell_simplifications()))


@lru_cache(maxsize=1024)
def _solve(runtime: JavaRuntime, task: str, number: int, simplifications: str) -> tuple[str, ...]:
    """Return the library's solution; computing it takes seconds."""
    return JavaGame(runtime, _World).look(lambda _, world: tuple(world.solve(task, number, simplifications)))


@lru_cache(maxsize=128)
def _list_variations(runtime: JavaRuntime, task: str, fold: str) -> tuple[int, ...]:
    """Return the numbers of the library's variations."""
    text = JavaGame(runtime, _World).look(lambda _, world: world.list_variations(task, fold))
    return tuple(int(number) for number in re.findall(r"\d+", text))


class _World:
    """The library's object, with this game's copy of the state that all games share.

    The shared state is the random generator, the next number of a new object, and the simplifications.

    Args:
        classes: the classes of the Java process.
    """

    def __init__(self, classes: Any) -> None:
        self._game = classes.scienceworld.runtime.pythonapi.PythonInterface()
        self._random = getattr(getattr(classes.scala.util, "Random$"), "MODULE$")
        self._numbers = classes.util.UniqueIdentifier
        self._simplifier = classes.main.scala.scienceworld.runtime.SimplifierProcessor
        self._count, self._simplifications = 0, ""

    def load(self, task: str, number: int, simplifications: str) -> tuple[str, str]:
        """Start a variation, and return the description of the task and of the room."""
        self._simplifications = simplifications
        if problem := self._game.load(task, number, simplifications, False):
            raise ValueError(f"{task}, variation {number}: {problem}")
        self._count = self._numbers.count()
        return str(self._game.getTaskDescription()), str(self._game.freeActionLook())

    def step(self, text: str, key: int) -> tuple[str, float, bool]:
        """Play an action, and return the message, the score and whether the task has ended."""

        def play() -> tuple[str, float, bool]:
            message = str(self._game.step(text))
            # rounded as in the library's Python class
            return message, round(100 * self._game.getScore()) / 100, bool(self._game.getCompleted())

        result = self._restore(key, play)
        self._count = self._numbers.count()
        return result

    def show(self, name: str, key: int) -> str:
        """Return the room or the inventory, without an action."""
        show = self._game.freeActionLook if name == "look" else self._game.freeActionInventory
        return str(self._restore(key, show))

    def list_actions(self, key: int) -> str:
        """Return the actions that are possible now, as JSON."""
        return str(self._restore(key, self._game.getValidActionObjectCombinationsJSON))

    def list_variations(self, task: str, fold: str) -> str:
        """Return the variations of a task in a fold, as a text."""
        getattr(self._game, "taskStr_$eq")(task)
        return str(getattr(self._game, f"getVariations{fold}")().toString())

    def solve(self, task: str, number: int, simplifications: str) -> list[str]:
        """Return the library's solution."""
        self._game.load(task, number, simplifications, True)
        return [str(action) for action in self._game.getGoldActionSequence()]

    def _restore(self, key: int, call: Callable[[], T]) -> T:
        """Set the shared state to this game's copy, then call the function."""
        self._random.setSeed(key)
        getattr(self._numbers, "count_$eq")(self._count)
        self._simplifier.parseSimplificationStr(self._simplifications)
        return call()


def _is_electrical(task: str) -> bool:
    return any(part in task for part in _ELECTRICAL)


def _find_jar() -> Path:
    try:
        from scienceworld.constants import JAR_PATH
    except ImportError as error:
        raise make_missing_error("scienceworld", "scienceworld", error) from error
    return Path(JAR_PATH)
