"""Games that TextWorld generates: rooms, doors, containers, keys and food."""

from __future__ import annotations

import functools
import re
import sys
import types
import warnings
from collections import defaultdict
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from lit_agentrl.checks import require, require_one_of, require_whole
from lit_agentrl.envs.adapters.base import PrivateGenerators, Replayed, require_settings
from lit_agentrl.envs.base import Outcome
from lit_agentrl.envs.splits import MAX_ATTEMPTS, keyed_rng, split_of, stable_hash

VERSION = "1.7.0"  # another version draws other games
GOALS = ("brief", "detailed")
# family -> setting -> (default, allowed values)
FAMILIES: dict[str, dict[str, tuple[Any, tuple[Any, ...] | range]]] = {
    "quest": {"rooms": (4, range(1, 31)), "objects": (6, range(1, 51)), "quest_length": (4, range(1, 31))},
    "coin_collector": {"level": (5, (*range(1, 151), *range(201, 234)))},
    "treasure_hunter": {"level": (5, range(1, 31))},
    "simple": {"rewards": ("dense", ("dense", "balanced", "sparse"))},
    "cooking": {
        "recipe": (1, range(1, 6)),
        "take": (1, range(6)),
        "go": (1, (1, 6, 9, 12)),
        "open": (True, (True, False)),
        "cook": (True, (True, False)),
        "cut": (False, (True, False)),  # drop is left out: TextWorld finds no policy for a limited inventory
    },
}
_NUMBER, _TRIES = 107, 20  # purpose key of game numbers; most games generated for one task
_SPLITS = {"train": "train", "val": "valid", "test": "test"}  # of the foods of the cooking games
_SHOWN = frozenset(  # properties of things
    ("open", "closed", "locked", "raw", "burned", "fried", "grilled", "roasted", "chopped", "diced", "sliced")
)


class TextWorld(Replayed):
    """A generated game of TextWorld, played by its logic.

    TextWorld generates rooms, things and quests, knows which commands are possible and what they change, counts the
    score, and says when a game is won or lost.  Its own texts are printed by a compiled game in the interpreter jericho
    (GPL); neither is used here: observations say in our words what the last command did, the room, and what is carried.

    The reward is the share of the highest score; success means won.  Random play draws possible commands; best play
    follows TextWorld's policy commands.  A task is the number that a game is generated from.

    Args:
        family: ``quest`` (what ``tw-make custom`` makes), or a challenge of TextWorld: ``coin_collector``,
            ``treasure_hunter``, ``simple`` or ``cooking``.
        settings: Difficulty settings of the family, see `FAMILIES`; settings left out have their defaults.
        goal: ``brief``: what is to be reached; ``detailed``: the way there in words, where the family has it.
        admissible: Whether the observation lists the commands that are possible.
        longest: Most commands of the policy; a game that needs more is not played.
        partial: Whether each part of the score is paid; False: 1 for a game that is won, else 0.
        split: ``train``, ``val`` or ``test``, by the hash of the game's number; ``cooking`` has its own foods in each
            split, and ``simple`` in ``test``.

    Raises:
        ValueError: TextWorld is not installed, or an option is out of range.
    """

    _game: Any

    def __init__(
        self,
        *,
        family: str = "quest",
        settings: Mapping[str, Any] | None = None,
        goal: str = "brief",
        admissible: bool = True,
        longest: int = 10,
        partial: bool = True,
        split: str = "train",
    ) -> None:
        super().__init__(split=split)
        require_one_of("family", family, tuple(FAMILIES))
        require_one_of("goal", goal, GOALS)
        require(
            goal == "brief" or family != "cooking", "goal", goal, "brief: cooking games have no other goal"
        )
        require_whole("longest", longest, 1, 1000)
        for name, value in (("admissible", admissible), ("partial", partial)):
            require(isinstance(value, bool), name, value, "true or false")
        load_library()
        chosen = _read_settings(family, {} if settings is None else settings)
        self._family, self._settings = family, tuple(sorted(chosen.items()))
        self._goal, self._lists_commands, self._partial = goal, admissible, partial
        self.max_solution = longest
        self._open()

    @property
    def rules(self) -> str:
        verbs = (
            "go north, open X, close X, unlock X with Y, lock X with Y, take X, take X from Y, drop X, put X on Y, "
            "insert X into Y, examine X, eat X"
        )
        verbs += ", cook X with Y, slice X with Y, chop X with Y, dice X with Y, prepare meal" * (
            self._family == "cooking"
        )
        paid = "the share of the goal that is reached, 1 in all" if self._partial else "1 for the goal"
        return (
            "Walk through rooms and reach a goal. You see the room that you are in, its exits, the things in it, and "
            "what you carry. What is in a closed container is hidden.\n"
            f"Actions: a command, such as {verbs}.\nRewards: {paid}."
        )

    def random_action(self, rng: np.random.Generator) -> str:
        """Return one of the possible commands."""
        names = list(self._game.commands) or ["look"]
        return str(names[int(rng.integers(len(names)))])

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """Return the policy commands of TextWorld; None where it has none, or after the end."""
        require_whole("horizon", horizon, 1)
        return self._game.list_policy()[:horizon] or None

    def _begin(self, number: int) -> None:
        game = _make_game(self._family, self._settings, self._goal, self.split, number)
        self._game = None if game is None else _Playthrough(game)

    def _draw_instance(self, seed: int) -> str:
        # Generating a game takes up to a second, so its number decides the split, not its content.
        tries = 0
        for attempt in range(MAX_ATTEMPTS):
            number = int(keyed_rng(seed, attempt, _NUMBER).integers(2**31))
            if split_of(str(number)) != self.split:
                continue
            self._begin(number)
            if self._game is not None and 0 < len(self._game.list_policy()) <= self.max_solution:
                return self._get_content()
            tries += 1
            if tries == _TRIES:
                break
        raise ValueError(
            f"none of {_TRIES} games of family={self._family} with settings={dict(self._settings)} can be won in "
            f"longest={self.max_solution} commands; raise env.game.longest and env.max_turns, or choose easier settings"
        )

    def _observe(self) -> str:
        parts = [self._game.last] * bool(self._game.last)
        parts.append(self._game.describe())
        if self._game.is_won or self._game.is_lost:
            parts.append("You won." if self._game.is_won else "You lost.")
        elif self._lists_commands:
            parts.append(f"Commands: {', '.join(self._game.commands)}")
        return "\n".join(parts)

    def _act(self, action: str) -> Outcome:
        before = self._game.score
        if not self._game.play(" ".join(action.split()).casefold()):
            return Outcome(action_is_valid=False)
        is_won = bool(self._game.is_won)
        reward = (self._game.score - before) / self._game.max_score if self._partial else float(is_won)
        return Outcome({"score": reward}, terminated=is_won or self._game.is_lost, success=is_won)

    def _get_content(self) -> str:
        return str(self._game.get_content())


class _Playthrough:
    """One game that is being played.

    Attributes:
        commands: possible commands with their actions, in alphabetical order.
        last: what the last command did, in words; at first the goal.
    """

    def __init__(self, game: Any) -> None:
        library = load_library()
        self._game, self._names = game, {key: info.name or "" for key, info in game.infos.items()}
        self.progress = library.GameProgression(game, track_quests=True)
        self._writer = library.Inform7Game(game)
        self.max_score = game.max_score
        texts = [(key, self._names[key], info.desc) for key, info in sorted(game.infos.items())]
        self._text_hash = stable_hash(f"{texts} {game.objective}")
        self.last = f"Goal: {' '.join(game.objective.split())}"
        self.commands = self._list_commands()

    @property
    def score(self) -> int:
        return int(self.progress.score)

    @property
    def is_won(self) -> bool:
        return bool(self.progress.completed)

    @property
    def is_lost(self) -> bool:
        return not self.is_won and bool(self.progress.failed)

    def play(self, command: str) -> bool:
        """Play a command in small letters; return whether it is possible."""
        found = next((name for name in self.commands if name.casefold() == command), None)
        if found is None:
            return False
        self.progress.update(self.commands[found])
        verb, _, thing = found.partition(" ")
        if verb == "examine":
            self.last = self._write_description(thing)
        else:
            self.last = "" if verb in ("look", "inventory") else f"You {found}."
        self.commands = self._list_commands()
        return True

    def list_policy(self) -> list[str]:
        """Return the commands that win the game; empty where there are none."""
        return list(self._writer.gen_commands_from_actions(self.progress.winning_policy or ()))

    def get_content(self) -> str:
        """Return what the future depends on: texts, facts, and which quests are done."""
        quests = [
            (each.completed, each.failed, each.unfinishable) for each in self.progress.quest_progressions
        ]
        return f"{self._text_hash:x} {sorted(map(str, self.progress.state.facts))} {quests} {self.score}"

    def describe(self) -> str:
        """Return lines of the room, its exits and things, and what is carried."""
        inside, marks = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
        directions, passages = dict[str, str](), dict[tuple[str, str], str]()
        for fact in sorted(self.progress.state.facts, key=str):
            names = [each.name for each in fact.arguments]
            if fact.name in ("at", "in", "on"):
                inside[names[1]].append(names[0])
            elif fact.name in _SHOWN:
                marks[names[0]].append(fact.name)
            elif fact.name.endswith("_of"):
                directions[f"{names[1]} {fact.name.removesuffix('_of')}"] = names[0]
            elif fact.name == "link":
                passages[names[0], names[2]] = names[1]
        room = next(place for place, things in inside.items() if "P" in things)

        def write(thing: str) -> str:
            text = self._names[thing] + f" ({', '.join(marks[thing])})" * bool(marks[thing])
            is_closed = {"closed", "locked"} & set(marks[thing])
            held = [] if is_closed else sorted(write(each) for each in inside[thing])
            return f"{text} with {' and '.join(held)}" if held else text

        exits = [
            direction.split()[1]
            + (f" by {write(passages[room, other])}" if (room, other) in passages else "")
            for direction, other in sorted(directions.items())
            if direction.split()[0] == room
        ]
        lines = {
            "Room": [self._names[room]],
            "Exits": exits,
            "Things": sorted(write(thing) for thing in inside[room] if thing != "P"),
            "Carried": sorted(write(thing) for thing in inside["I"]),
        }
        return "\n".join(f"{title}: {', '.join(texts) or 'none'}" for title, texts in lines.items())

    def _list_commands(self) -> dict[str, Any]:
        actions = self.progress.valid_actions
        names = self._writer.gen_commands_from_actions(actions)
        # the actions come from a set: of several with one command, keep the one whose text sorts first
        pairs = sorted(
            zip(names, actions, strict=True), key=lambda pair: (pair[0], str(pair[1])), reverse=True
        )
        return dict(sorted(dict(pairs).items()))

    def _write_description(self, name: str) -> str:
        texts = [
            info.desc for key, info in self._game.infos.items() if self._names[key] == name and info.desc
        ]
        text = texts[0] if texts else f"It is {name}."
        text = re.sub(r"\[if.*?\[end if\]", "", text.replace("[noun]", name), flags=re.DOTALL)
        return "\n".join(
            line for line in (re.sub(r"\[.*?\]", "", line).strip() for line in text.splitlines()) if line
        )


def _read_settings(family: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a family with its defaults.

    Raises:
        ValueError: A setting is unknown or out of range.
    """
    known = FAMILIES[family]
    require_settings(settings)
    for name, value in settings.items():
        require(name in known, "settings", name, f"settings of {family}: {', '.join(known)}")
        allowed = known[name][1]
        is_allowed = type(value) is type(known[name][0]) and value in allowed
        options = (
            f"{allowed[0]} to {allowed[-1]}" if isinstance(allowed, range) else ", ".join(map(str, allowed))
        )
        require(is_allowed, f"settings.{name}", value, options)
    read = {name: default for name, (default, _) in known.items()} | dict(settings)
    if family == "cooking":
        require(read["take"] <= read["recipe"], "settings.take", read["take"], "at most settings.recipe")
    return read


@functools.cache
def load_library() -> SimpleNamespace:
    """Import TextWorld without its interpreter, and return the parts that are used.

    Raises:
        ValueError: It is not installed, or in another version.
    """
    stand_in = types.ModuleType("jericho")
    # TextWorld needs these classes when it is imported; jericho itself would load GPL code into this process.
    for name in ("UnsupportedGameWarning", "TruncatedInputActionWarning"):
        setattr(stand_in, name, type(name, (UserWarning,), {}))
    before = sys.modules.get("jericho")
    with PrivateGenerators(0).install():  # TextWorld draws from the global generators at import
        sys.modules["jericho"] = before or stand_in
        try:
            import textworld.challenges
            from textworld.generator import GameMaker, QuestGenerationError, make_game
            from textworld.generator.data import LOGIC_DATA_PATH, TEXT_GRAMMARS_PATH, KnowledgeBase
            from textworld.generator.game import GameOptions, GameProgression
            from textworld.generator.inform7 import Inform7Game
        except ImportError as error:
            raise _make_missing_error(" ".join(str(error).split())) from error
        finally:
            if before is None:
                sys.modules.pop("jericho", None)
    if textworld.__version__ != VERSION:
        raise _make_missing_error(f"this is {textworld.__version__}")
    KnowledgeBase.load = staticmethod(functools.cache(KnowledgeBase.load))  # parsing takes most of the time
    GameMaker.set_walkthrough = _set_walkthrough
    return SimpleNamespace(
        CHALLENGES=textworld.challenges.CHALLENGES,
        GameOptions=GameOptions,
        GameProgression=GameProgression,
        Inform7Game=Inform7Game,
        QuestGenerationError=QuestGenerationError,
        make_game=make_game,
        generator=textworld.g_rng,
        load_knowledge=lambda: KnowledgeBase.load(
            logic_path=LOGIC_DATA_PATH, grammar_path=TEXT_GRAMMARS_PATH
        ),
    )


def _make_missing_error(reason: str) -> ValueError:
    return ValueError(
        f"this game needs textworld {VERSION} ({reason}); pip install 'lit-agentrl[textworld]', then "
        f"pip install --no-deps textworld=={VERSION}"
    )


def _set_walkthrough(maker: Any, commands: list[str]) -> None:
    """Set the commands that trigger each event of the quests.

    TextWorld's own method compiles the game and plays it in jericho; this replacement plays the game's logic.
    """
    run = _Playthrough(maker.build())
    events = [event for quest in maker.quests for event in quest.win_events]
    progress = [each for quest in run.progress.quest_progressions for each in quest.win_events]
    played, steps_by_event = list[tuple[Any, str]](), dict[int, list[tuple[Any, str]]]()
    for command in commands:
        if command not in run.commands:  # such as opening an open door; TextWorld skips it, too
            continue
        played.append((run.commands[command], command))
        run.play(command.casefold())
        for number, each in enumerate(progress):
            if each.triggered and number not in steps_by_event:
                steps_by_event[number] = list(played)
    for number, steps in steps_by_event.items():
        events[number].actions = [action for action, _ in steps]
        events[number].commands = [name for _, name in steps]


@functools.lru_cache(maxsize=256)
def _make_game(
    family: str, settings: tuple[tuple[str, Any], ...], goal: str, split: str, number: int
) -> Any | None:
    """Generate the game of a number; None where TextWorld finds no quest for it."""
    library, arguments = load_library(), dict(settings)
    options = library.GameOptions()
    options.seeds = number
    options.grammar.only_last_action = goal == "brief"
    with PrivateGenerators(number).install(), warnings.catch_warnings():
        # TextWorld warns about names that need an adjective; a process without the library cannot read the warning
        warnings.simplefilter("ignore", UserWarning)
        library.generator.set_seed(number % 65635)
        try:
            if family == "quest":
                options.kb = library.load_knowledge()
                options.nb_rooms, options.nb_objects = arguments["rooms"], arguments["objects"]
                options.quest_length = arguments["quest_length"]
                return library.make_game(options)
            if family == "simple":
                arguments |= {"goal": goal, "test": split == "test"}
            elif family == "cooking":
                arguments |= {"drop": False, "recipe_seed": 0, "split": _SPLITS[split]}
            return library.CHALLENGES[f"tw-{family}"][1](arguments, options)
        except library.QuestGenerationError:
            return None
