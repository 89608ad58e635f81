"""Read the recipe of a pipeline, and expand it into the commands of each round.

A stage is a command and its words (overrides), which may contain placeholders in braces.  Placeholders are replaced as
follows:

- ``{policy}``, ``{env}`` and ``{judge}``: by overrides that the user gave; once a policy is trained, ``{policy}`` names
  its weights.
- ``{weights}``: by the folder of the current policy's weights.
- ``{NAME}``: by the folder of the latest stage of that name; ``{all.NAME}``: by those of all rounds so far.
- ``{round}``, ``{first}``, ``{prompts}``, ``{members}`` and ``{seed}``: by numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from lit_agentrl.checks import require, require_whole
from lit_agentrl.config.composition import compose_job, initialize_hydra
from lit_agentrl.config.errors import UserError, refuse_first, refuse_unknown
from lit_agentrl.config.overrides import format_overrides, parse
from lit_agentrl.paths import CONFIG_DIR, PACKAGE_DIR

CONFIG = CONFIG_DIR / "pipeline.yaml"
FOLDER = PACKAGE_DIR / "recipes"
# the option of each command that names the folder to create
FOLDER_OPTIONS = {"train": "hydra.run.dir", "collect": "out", "label": "out"}
_LISTS = ("policy", "env", "judge")  # placeholders that stand for several words, and must be a whole word
_NUMBERS = ("round", "first", "prompts", "members", "seed")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Recipe:
    """The content of a recipe file.

    Attributes:
        description: the comment in its first line.
        rounds: the default number of rounds.
        policy: the stages that train the policy, whose weights later stages use.
        stages: the command and the words of each stage by name, in order.
    """

    description: str
    rounds: int
    policy: tuple[str, ...]
    stages: Mapping[str, tuple[str, ...]]

    def has_placeholder(self, placeholder: str) -> bool:
        """Return whether any stage has this placeholder as a word."""
        return any(word == f"{{{placeholder}}}" for words in self.stages.values() for word in words)


@dataclass(frozen=True)
class Stage:
    """One command of a pipeline.

    Attributes:
        round: the round, counted from 1.
        name: the name of the stage.
        command: the subcommand of ``lit-agentrl``.
        words: all overrides of the command.
        folder: the folder that it creates.
    """

    round: int
    name: str
    command: str
    words: tuple[str, ...]
    folder: Path

    @property
    def place(self) -> str:
        """The path of the stage's folder within the folder of the pipeline."""
        return f"round_{self.round}/{self.name}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """The subcommand followed by its words."""
        return (self.command, *self.words)


@dataclass(frozen=True)
class PipelineOptions:
    """The user's options for a pipeline, apart from the recipe and the folder.

    Attributes:
        numbers: the options ``prompts``, ``members`` (group size) and ``seed``.
        env: the overrides of the game.
        policy: the overrides of the initial model, its engine and its prompts.
        judge: the overrides of ``reward=judge``.
        by_stage: overrides of single stages, by the name of the stage.
    """

    numbers: Mapping[str, int]
    env: tuple[str, ...]
    policy: tuple[str, ...] = ()
    judge: tuple[str, ...] = ()
    by_stage: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def list_recipes() -> list[str]:
    """Return the names of the shipped recipes."""
    return sorted(file.stem for file in FOLDER.glob("*.yaml"))


def read(name: str) -> Recipe:
    """Read a shipped recipe by name, or a file that ends in ``.yaml`` or ``.yml``.

    Raises:
        UserError: there is no such recipe, or the file is invalid; the message says what is wrong.
    """
    is_file = name.endswith((".yaml", ".yml"))
    file = Path(name) if is_file else FOLDER / f"{name}.yaml"
    if not is_file and name not in list_recipes():
        valid = f"valid: {', '.join(list_recipes())}, or a file.yaml"
        refuse_unknown(f"there is no recipe {name}", name, list_recipes(), valid)
    content: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    try:
        return _parse_recipe(content, file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"recipe={name}: {error}") from error


def _parse_recipe(content: Any, text: str) -> Recipe:
    refuse_first(_find_problems(content))
    first_line = text.partition("\n")[0]
    return Recipe(
        description=first_line.removeprefix("#").strip() if first_line.startswith("#") else "",
        rounds=content["rounds"],
        policy=tuple(content["policy"]),
        stages={name: tuple(words) for name, words in content["stages"].items()},
    )


def _find_problems(content: Any) -> Iterator[str]:
    """Yield each problem of a recipe; later checks rely on earlier ones.

    Raises:
        ValueError: a number or a command is invalid.
    """
    known_keys = {"rounds", "policy", "stages"}
    if not isinstance(content, dict) or set(content) != known_keys:
        yield f"it must have the keys {', '.join(sorted(known_keys))}, and no others"
    require_whole("rounds", content["rounds"], 1, 99)
    stages = content["stages"]
    if not isinstance(stages, dict) or not stages:
        yield "stages must hold NAME: [COMMAND, words …], at least one"
    reserved = (*_LISTS, *_NUMBERS, "weights", "all", *_list_option_keys())
    for name, words in stages.items():
        if not _NAME.fullmatch(str(name)) or name in reserved:
            yield f"stages.{name}: choose another name, of lower-case letters, digits and _"
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
            yield f"stages.{name} must be a list of texts, the command first"
        require(words[0] in FOLDER_OPTIONS, f"stages.{name}[0]", words[0], ", ".join(FOLDER_OPTIONS))
    policy = content["policy"]
    if not isinstance(policy, list) or any(stages.get(name, [""])[0] != "train" for name in policy):
        yield "policy must be a list of stages that train a policy"


def _list_option_keys() -> list[str]:
    return [str(key) for key in OmegaConf.load(CONFIG)]


def plan_stages(recipe: Recipe, options: PipelineOptions, *, rounds: int, out: Path) -> list[Stage]:
    """Return the stages of all rounds, with all placeholders replaced.

    Raises:
        UserError: a placeholder has no value at its stage; the message names the stage and the word.
    """
    folders: dict[str, list[Path]] = {}
    stages: list[Stage] = []
    policy, weights = options.policy, _find_start_weights(options.policy)
    for round_number in range(1, rounds + 1):
        numbers = {
            **options.numbers,
            "round": round_number,
            "first": (round_number - 1) * options.numbers["prompts"],
            "seed": 100 * options.numbers["seed"] + round_number - 1,
        }
        for name, (command, *words) in recipe.stages.items():
            folder = out / f"round_{round_number}" / name
            lists = {"policy": policy, "env": options.env, "judge": options.judge}

            def fill(
                placeholder: str, weights: str | None = weights, numbers: Mapping[str, int] = numbers
            ) -> str:
                return _fill_placeholder(placeholder, numbers, folders, weights)

            filled = [
                filled_word
                for word in words
                for filled_word in _fill_word(word, f"stages.{name}", lists, fill)
            ]
            user_words = options.by_stage.get(name, ())
            folder_option = format_overrides({FOLDER_OPTIONS[command]: str(folder)})
            arguments = (*_replace_words(filled, user_words), *folder_option)
            stages.append(Stage(round_number, name, command, arguments, folder))
            folders.setdefault(name, []).append(folder)
            if name in recipe.policy:
                weights = str(folder / "hf")
                rest = [word for word in options.policy if not word.startswith(("model=", "model.name="))]
                policy = (*format_overrides({"model": "hf", "model.name": weights}), *rest)
    return stages


def _find_start_weights(policy: Sequence[str]) -> str | None:
    """Return the folder or name of the initial model's weights, if its overrides give one."""
    words = [word for word in policy if word.startswith(("model=", "model."))]
    with initialize_hydra():
        model = compose_job("train", words).model
    target = str(model["_target_"])
    if target.endswith("load_nano"):
        return str(PACKAGE_DIR / "models" / str(model.get("name", "nano")))
    return None if OmegaConf.is_missing(model, "name") or "name" not in model else str(model.name)


def _fill_word(
    word: str, where: str, lists: Mapping[str, Sequence[str]], fill: Callable[[str], str]
) -> Iterator[str]:
    """Yield a word of a stage with its placeholders replaced: one word, several, or none."""
    match = _PLACEHOLDER.fullmatch(word)
    if match and match[1] in lists:
        yield from lists[match[1]]
        return
    try:
        key, _, value = word.partition("=")
        placeholders = _PLACEHOLDER.findall(value)
        if placeholders and value == f"{{{placeholders[0]}}}":
            yield f"{key}={fill(placeholders[0])}"
        else:
            yield f"{key}={_PLACEHOLDER.sub(lambda found: fill(found[1]), value)}" if placeholders else word
    except KeyError as error:
        raise UserError(
            f"{where}: {word} has the placeholder {{{error.args[0]}}}, which has no value there"
        ) from error


def _fill_placeholder(
    placeholder: str, numbers: Mapping[str, int], folders: Mapping[str, list[Path]], weights: str | None
) -> str:
    if placeholder in numbers:
        return str(numbers[placeholder])
    if placeholder == "weights" and weights is not None:
        value: Any = weights
    elif placeholder in folders:
        value = str(folders[placeholder][-1])
    elif placeholder.startswith("all.") and (name := placeholder.removeprefix("all.")) in folders:
        value = [str(folder) for folder in folders[name]]
    else:
        raise KeyError(placeholder)
    (word,) = format_overrides({"_": value})
    return word.removeprefix("_=")


def _replace_words(words: Sequence[str], user_words: Sequence[str]) -> list[str]:
    """Return the words of a stage, replaced by the user's words of the same key."""
    keys = [override.key_or_group for override in parse(user_words)]
    remaining = [
        w for w, override in zip(words, parse(words), strict=True) if override.key_or_group not in keys
    ]
    return [*remaining, *user_words]
