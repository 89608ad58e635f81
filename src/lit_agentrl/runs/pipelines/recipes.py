"""Recipes of a pipeline: stages of words with places in them, and what these come to in each round.

A stage is a command and its words.  What stands in braces is filled in: ``{policy}``, ``{env}`` and ``{judge}`` by
words that the user gave (``{policy}`` from the first trained policy on by its weights), ``{weights}`` by the folder of
these weights, ``{NAME}`` by the folder of the last stage of that name, ``{all.NAME}`` by those of all rounds so far,
and ``{round}``, ``{first}``, ``{prompts}``, ``{members}`` and ``{seed}`` by numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from lit_agentrl.checks import require, require_whole
from lit_agentrl.config.composition import compose_job, hydra_ready
from lit_agentrl.config.errors import UserError, did_you_mean, nearest
from lit_agentrl.config.overrides import parse, written
from lit_agentrl.paths import CONFIG_DIR, PACKAGE_DIR

CONFIG = CONFIG_DIR / "pipeline.yaml"
FOLDER = PACKAGE_DIR / "recipes"
# the option of each command that names what it makes
PLACE_OF = {"train": "hydra.run.dir", "collect": "out", "label": "out"}
_LISTS = ("policy", "env", "judge")  # places that a word alone may be, which are several words
_NUMBERS = ("round", "first", "prompts", "members", "seed")
_PLACE = re.compile(r"\{([^{}]*)\}")
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Recipe:
    """What a file says.

    Attributes:
        says: its first line.
        rounds: unless the user says how many.
        policy: stages whose weights the stages after them play, train and refer to.
        stages: the command and the words of each, by name, in order.
    """

    says: str
    rounds: int
    policy: tuple[str, ...]
    stages: Mapping[str, tuple[str, ...]]

    def asks(self, place: str) -> bool:
        """Whether any stage has this place."""
        return any(word == f"{{{place}}}" for words in self.stages.values() for word in words)


@dataclass(frozen=True)
class Stage:
    """One command of a pipeline.

    Attributes:
        round: from 1 on.
        name: of the stage.
        command: of ``lit-agentrl``.
        words: all its options.
        folder: what it makes.
    """

    round: int
    name: str
    command: str
    words: tuple[str, ...]
    folder: Path

    @property
    def place(self) -> str:
        """Within the folder of the pipeline."""
        return f"round_{self.round}/{self.name}"

    @property
    def said(self) -> tuple[str, ...]:
        """All of the command."""
        return (self.command, *self.words)


@dataclass(frozen=True)
class Given:
    """What the user says, apart from the recipe and the folder.

    Attributes:
        numbers: ``prompts``, ``members`` and ``seed``.
        env: words of the game.
        policy: words of the model that begins, of its engine and its prompts.
        judge: words of ``reward=judge``.
        own: words of single stages, by name.
    """

    numbers: Mapping[str, int]
    env: tuple[str, ...]
    policy: tuple[str, ...] = ()
    judge: tuple[str, ...] = ()
    own: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def recipes() -> list[str]:
    """The names of those that are shipped."""
    return sorted(file.stem for file in FOLDER.glob("*.yaml"))


def read(name: str) -> Recipe:
    """A recipe by its name, or from a file that ends in ``.yaml``.

    Raises:
        UserError: there is none, or a file that is none; names what is wrong in it.
    """
    own = name.endswith((".yaml", ".yml"))
    file = Path(name) if own else FOLDER / f"{name}.yaml"
    if not own and name not in recipes():
        hint = did_you_mean(nearest(name, recipes())) or f"valid: {', '.join(recipes())}, or a file.yaml"
        raise UserError(f"there is no recipe {name}; {hint}")
    said: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    try:
        return _checked(said, file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"recipe={name}: {error}") from error


def _checked(said: Any, text: str) -> Recipe:
    known = {"rounds", "policy", "stages"}
    if not isinstance(said, dict) or set(said) != known:
        raise ValueError(f"it must have the keys {', '.join(sorted(known))}, and no others")
    require_whole("rounds", said["rounds"], 1, 99)
    stages = said["stages"]
    if not isinstance(stages, dict) or not stages:
        raise ValueError("stages must hold NAME: [COMMAND, words …], at least one")
    for name, words in stages.items():
        if not _NAME.fullmatch(str(name)) or name in (*_LISTS, *_NUMBERS, "weights", "all", *_own_keys()):
            raise ValueError(f"stages.{name}: choose another name, of small letters, digits and _")
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
            raise ValueError(f"stages.{name} must be a list of texts, the command first")
        require(words[0] in PLACE_OF, f"stages.{name}[0]", words[0], ", ".join(PLACE_OF))
    policy = said["policy"]
    if not isinstance(policy, list) or any(stages.get(name, [""])[0] != "train" for name in policy):
        raise ValueError("policy must be a list of stages that train a policy")
    first = text.partition("\n")[0]
    return Recipe(
        says=first.removeprefix("#").strip() if first.startswith("#") else "",
        rounds=said["rounds"],
        policy=tuple(policy),
        stages={name: tuple(words) for name, words in stages.items()},
    )


def _own_keys() -> list[str]:
    return [str(key) for key in OmegaConf.load(CONFIG)]


def planned(recipe: Recipe, given: Given, *, rounds: int, out: Path) -> list[Stage]:
    """Every command of every round, with its words.

    Raises:
        UserError: a place that nothing fills, or not yet there; names the stage and the word.
    """
    made: dict[str, list[Path]] = {}
    found: list[Stage] = []
    policy, weights = given.policy, _start_weights(given.policy)
    for number in range(1, rounds + 1):
        numbers = {
            **given.numbers,
            "round": number,
            "first": (number - 1) * given.numbers["prompts"],
            "seed": 100 * given.numbers["seed"] + number - 1,
        }
        for name, (command, *words) in recipe.stages.items():
            folder = out / f"round_{number}" / name
            lists = {"policy": policy, "env": given.env, "judge": given.judge}

            def fill(place: str, weights: str | None = weights, numbers: Mapping[str, int] = numbers) -> str:
                return _filled(place, numbers, made, weights)

            filled = [each for word in words for each in _words(word, f"stages.{name}", lists, fill)]
            own = given.own.get(name, ())
            place = written({PLACE_OF[command]: str(folder)})
            found.append(Stage(number, name, command, (*_replaced(filled, own), *place), folder))
            made.setdefault(name, []).append(folder)
            if name in recipe.policy:
                weights = str(folder / "hf")
                rest = [word for word in given.policy if not word.startswith(("model=", "model.name="))]
                policy = (*written({"model": "hf", "model.name": weights}), *rest)
    return found


def _start_weights(policy: Sequence[str]) -> str | None:
    """The folder of the model that begins; None where its words do not say."""
    words = [word for word in policy if word.startswith(("model=", "model."))]
    with hydra_ready():
        model = compose_job("train", words).model
    target = str(model["_target_"])
    if target.endswith("load_nano"):
        return str(PACKAGE_DIR / "models" / str(model.get("name", "nano")))
    return None if OmegaConf.is_missing(model, "name") or "name" not in model else str(model.name)


def _words(
    word: str, where: str, lists: Mapping[str, Sequence[str]], fill: Callable[[str], str]
) -> Iterator[str]:
    """A word of a stage with its places filled, which may be several words, or none."""
    alone = _PLACE.fullmatch(word)
    if alone and alone[1] in lists:
        yield from lists[alone[1]]
        return
    try:
        key, _, value = word.partition("=")
        places = _PLACE.findall(value)
        if places and value == f"{{{places[0]}}}":
            yield f"{key}={fill(places[0])}"
        else:
            yield f"{key}={_PLACE.sub(lambda each: fill(each[1]), value)}" if places else word
    except KeyError as error:
        raise UserError(
            f"{where}: {word} has the place {{{error.args[0]}}}, which nothing fills there"
        ) from error


def _filled(
    place: str, numbers: Mapping[str, int], made: Mapping[str, list[Path]], weights: str | None
) -> str:
    if place in numbers:
        return str(numbers[place])
    if place == "weights" and weights is not None:
        value: Any = weights
    elif place in made:
        value = str(made[place][-1])
    elif place.startswith("all.") and (name := place.removeprefix("all.")) in made:
        value = [str(folder) for folder in made[name]]
    else:
        raise KeyError(place)
    (word,) = written({"_": value})
    return word.removeprefix("_=")


def _replaced(words: Sequence[str], own: Sequence[str]) -> list[str]:
    """Words of a stage with those of the user, each in place of the one of the same key."""
    keys = [each.key_or_group for each in parse(own)]
    kept = [w for w, each in zip(words, parse(words), strict=True) if each.key_or_group not in keys]
    return [*kept, *own]
