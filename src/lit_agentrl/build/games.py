"""Build the games of a run, and test them and their prompts on random play."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from types import MappingProxyType

from hydra.utils import instantiate
from omegaconf import DictConfig, ListConfig, OmegaConf

from lit_agentrl import screen
from lit_agentrl.build.limits import check_limits
from lit_agentrl.build.matching import match_game
from lit_agentrl.checks import add_key, blame, format_value, name_errors, require
from lit_agentrl.config.composition import compose_job
from lit_agentrl.config.errors import UserError, explain
from lit_agentrl.config.overrides import parse
from lit_agentrl.config.signatures import check_targets
from lit_agentrl.data.prompts import EvalSpec
from lit_agentrl.envs.base import Mixture, Task, TooFewActions
from lit_agentrl.envs.levels import Levels, find_levels
from lit_agentrl.envs.tasks.dataset import Dataset
from lit_agentrl.envs.violations import list_missing
from lit_agentrl.envs.world import World
from lit_agentrl.episode import Episode
from lit_agentrl.report.iteration import describe_failure
from lit_agentrl.requirements import Part
from lit_agentrl.rewards.pipeline import RewardPipeline
from lit_agentrl.rollout.rehearsal import rehearse
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.known_words import is_spelt
from lit_agentrl.text.lost_characters import count_lost, format_lost
from lit_agentrl.text.prompts import Prompt


def check_thinking(chat: ChatRenderer, prompt: Prompt, name: str) -> None:
    """Refuse a format without thinking if the policy's chat template opens a think block.

    Raises:
        ValueError: the template opens a think block and ``prompt.think`` is false.
    """
    if chat.forced_think and not prompt.think:
        raise ValueError(
            f"prompt.think=false: the chat template of {name} always opens a think block; set "
            "prompt.think=true, or another template, such as model.chat_template=append_only_chatml"
        )


def check_prompts(
    rules: Rules,
    *,
    rewards: RewardPipeline | None = None,
    num_trained: int = 0,
    parts: Sequence[Part] = (),
    is_local: bool = True,
    max_reply_tokens: int | None = None,
    max_positions: int | None = None,
    exceeded: Mapping[int, str] = MappingProxyType({}),
) -> list[str]:
    """Refuse games that fail or lack required facts, and prompts that do not fit.

    A prompt does not fit if the tokenizer does not know a token of it, or if it leaves no room for a reply.

    Args:
        rules: the games, the wording and the limits.
        rewards: reward parts, which are tested on the training games; None: none are tested.
        num_trained: number of training games, which come first.
        parts: the other parts of the run, which may require something of a game.
        is_local: whether the model is in this process, so that its tokenizer is known; if it spells the words of a
            game letter by letter, a line says so.
        max_reply_tokens: tokens of a reply of the policy; None: not checked.
        max_positions: positions that the model has; None if not known.
        exceeded: index of a game -> a line about the limit that `try_games` found too low for best play.

    Returns:
        The warnings that were printed, without "warning: ".

    Raises:
        ValueError: a game or a prompt is refused; the message names the game or the part, and the remedy.
    """
    chat = rules.chat
    unknown = chat.tokenizer.unk_token_id
    if unknown in chat.end_of_turn_ids:  # byte-level tokenizers end turns with their unknown token
        unknown = None
    has_noted_role = False
    warned: list[str] = []
    for index, task in enumerate(rules.tasks):
        episodes = list(rehearse(rules, index, is_trained=index < num_trained))
        if all(episode.failed for episode in episodes):
            raise ValueError(
                f"env: every episode that was tried failed; the first, {describe_failure(episodes[0])}; {task.remedy}"
            )
        first = next(episode.turns[0] for episode in episodes if episode.turns)
        tokens = first.prefix_tokens
        warned += check_limits(
            task, episodes, rules, max_reply_tokens=max_reply_tokens if is_local else None,
            max_positions=max_positions, exceeded=[exceeded[index]] if index in exceeded else [],
        )  # fmt: skip
        if index < num_trained:
            match_game(task, episodes, parts)
        if unknown is not None and unknown in tokens:
            raise ValueError(
                f"the tokenizer does not know {list(tokens).count(unknown)} tokens of the prompt of {task.name}; "
                "use prompt=compact, a game written in its vocabulary, or another model"
            )
        for line in _describe_unfit_words(task, episodes, chat, is_local=is_local):
            screen.note(line)
            warned.append(line)
        if (
            chat.folds_system
            and any(m["role"] == "system" for m in episodes[0].opening)
            and not has_noted_role
        ):
            has_noted_role = True
            screen.note("the chat template has no system role: the system text begins the first user message")
        later_turns = [turn for episode in episodes for turn in episode.turns[1:]]
        if unknown is not None and any(unknown in turn.prefix_tokens for turn in later_turns):
            raise ValueError(
                f"the tokenizer does not know a token that {task.name} shows after the first turn; write "
                "its observations and the results of context.condense in its vocabulary, or use another model"
            )
        if rewards is not None and index < num_trained:
            rewards.try_out(episodes)
    return warned


def _describe_unfit_words(
    task: Task, episodes: Sequence[Episode], chat: ChatRenderer, *, is_local: bool
) -> Iterator[str]:
    """Yield a line each about words that are spelt, and characters that are dropped."""
    observations = [turn.observation for episode in episodes for turn in episode.turns]
    if is_local and is_spelt(chat.tokenizer, observations):
        yield (
            f"the model's tokenizer spells the words of {task.name} letter by letter: it has not learnt them, and "
            "will hardly learn to play; use a pretrained one: model=smollm2, or model=hf model.name=FOLDER"
        )
    if lost := count_lost(chat.tokenizer, (text for episode in episodes for text in episode.prompt_texts)):
        yield f"prompts of {task.name} hold {format_lost(lost)}; remove them from its texts, or use another model"


def has_world(cfg: DictConfig) -> bool:
    """Return whether the config has a world to play."""
    return bool(cfg.env)


TaskLoader = Callable[[str], DictConfig]  # name of a file under conf/env -> its config


@dataclass
class Games:
    """The games of a run: first the training games, then those that are only evaluated.

    Attributes:
        tasks: the games.
        weights: share of the prompts of each training game.
        val, test: what is evaluated on these splits.
        exceeded: index of a game -> a line about an action limit that is too low for its best play; `check_prompts`
            refuses the game.
    """

    tasks: list[Task]
    weights: list[float]
    val: list[EvalSpec]
    test: list[EvalSpec]
    exceeded: dict[int, str] = field(default_factory=dict)

    def get_levels(self, split: str) -> dict[str, Levels]:
        """Return the known chance and oracle levels of the games evaluated on this split."""
        specs = self.val if split == "val" else self.test
        return {self.tasks[spec.task].name: find_levels(self.tasks[spec.task], split) for spec in specs}


def describe_repeated_rows(games: Games) -> str:
    """Describe evaluations that draw more episodes than a data set has rows; may be empty.

    Rows are drawn with replacement, and the intervals of success take draws for independent tasks.
    """
    texts = []
    for split, specs in (("val", games.val), ("test", games.test)):
        for spec in specs:
            task = games.tasks[spec.task]
            if getattr(task.game, "func", None) is not Dataset or spec.trained_in is not None:
                continue
            with closing(task.make(split)) as env:
                if spec.prompts > (count := env.instances or spec.prompts):
                    rows = f"{count} row{'s' * (count != 1)}"
                    texts.append(f"{split} draws {spec.prompts} episodes of {task.name} from {rows}")
    if not texts:
        return ""
    return (
        f"{', '.join(texts)}: the intervals of success are narrower than they should be; give more rows, or measure "
        "each row once by evaluate.py episodes=all"
    )


def build_games(cfg: DictConfig, load_task: TaskLoader) -> Games:
    """Build the training games of ``env`` and the evaluated ones of ``val.envs`` and ``test.envs``.

    The lists are empty if no ``env`` is named, as in a run that is judged by held-out data.

    Raises:
        ValueError: an unknown name, a name given twice, or an invalid limit; the message names the option.
    """
    if not has_world(cfg):
        for split in ("val", "test"):
            if (names := cfg[split].envs) is not None:
                named = format_value(names)
                raise ValueError(
                    f"{split}.envs={named}: no env is named, so held-out data judge and nothing is played; add "
                    f"env=WORLD, or leave {split}.envs out"
                )
        return Games([], [], [], [])
    env = instantiate(cfg.env)
    if isinstance(env, Mixture):
        tasks = [load_game(load_task, name, "env.weights") for name in env.weights]
        weights = list(env.weights.values())
    elif isinstance(env, Task):
        tasks, weights = [env], [1.0]
    else:
        raise ValueError(
            f"env._target_={cfg.env.get('_target_')} makes a {type(env).__name__}; it must make a Task"
        )
    specs = {}
    for split in ("val", "test"):
        names = read_game_names(
            f"{split}.envs", cfg[split].envs, [task.name for task in tasks[: len(weights)]]
        )
        indices = []
        for name in names:
            known = [task.name for task in tasks]
            if name not in known:
                tasks.append(load_game(load_task, name, f"{split}.envs"))
                known.append(name)
            indices.append(known.index(name))
        specs[split] = [EvalSpec(task=index, prompts=cfg[split].episodes) for index in indices]
    return Games(tasks, weights, specs["val"], specs["test"])


def build_game(job: Sequence[str], search_overrides: Sequence[str] = ()) -> Task:
    """Build the single game that the options of a run name, with its limits.

    Args:
        job: overrides such as ``env=sokoban`` and ``env.game.size=7``.
        search_overrides: the override that `composition.format_search_path` returns.

    Raises:
        ValueError: an unknown option, an invalid value, or several games.
    """
    for override in parse(job):
        if override.key_or_group.partition(".")[0] != "env":
            raise UserError(
                f"{override.input_line} has no effect: only the game is read here; write env=NAME env.KEY=VALUE"
            )
    cfg = compose_job("train", job, search_overrides)
    check_targets(OmegaConf.masked_copy(cfg, ["env"]))
    task = instantiate(cfg.env)
    if not isinstance(task, Task):
        raise UserError(f"{' '.join(job)}: a mixture has no levels of its own; name its games")
    with name_errors("env"):
        task.make("train").close()
    return task


def read_game_names(option: str, value: Sequence[str] | str | None, default: Sequence[str]) -> Sequence[str]:
    """Return the names of games that an option lists; a single name needs no brackets.

    Raises:
        ValueError: no name, or a name given twice.
    """
    names = default if value is None else [value] if isinstance(value, str) else value
    is_listed = isinstance(names, Sequence | ListConfig) and all(isinstance(name, str) for name in names)
    require(is_listed, option, value, "the name of a game, or a list of them")
    if len(set(names)) != len(names) or not names:
        reason = "names a game twice" if names else "names no game; null stands for the games trained on"
        raise ValueError(f"{option}=[{','.join(map(str, names))}] {reason}")
    return names


def load_game(load_task: TaskLoader, name: str, option: str) -> Task:
    """Load a single game by its name, which ``option`` gives.

    Raises:
        ValueError: there is no such game, it is a mixture, or its YAML is invalid.
    """
    try:
        section = load_task(name)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from error
    try:
        check_targets(OmegaConf.create({"env": section}))
        task = instantiate(section)
    except Exception as error:  # a user's YAML may fail in any way
        raise ValueError(f"{option}: game {name}: {explain(error)}") from error
    if not isinstance(task, Task):
        raise ValueError(f"{option}: {name} is not a single game; name games of conf/env")
    return task


def _is_repeatable(env: World) -> bool:
    """Return whether two resets with one seed show the same observation.

    Return True if a reset fails, which `rehearse` reports.
    """
    try:
        return env.reset(seed=0)[0] == env.reset(seed=0)[0]
    except Exception:  # a user's world may raise anything
        return True


def try_games(games: Games, rewards: RewardPipeline) -> None:
    """Make each game, so that invalid options fail early, and let reward parts check it.

    The reward parts see the first task of each training game.  A game that is hosted in another thread or process is
    made here only if reward parts need it; `rehearse` makes it at its host.

    A game whose best play needs more actions than its limits allow gets higher ones and an entry in ``exceeded``,
    with which `check_prompts` refuses it.

    Raises:
        ValueError: a game cannot be made, or a reward part does not support a training game.
    """
    for index, task in enumerate(list(games.tasks)):
        is_trained = index < len(games.weights)
        if task.hosting.where != "inline" and not (is_trained and rewards.parts):
            continue
        with name_errors(option := "env" if is_trained and len(games.weights) == 1 else task.name):
            try:
                game = task.make("train")
            except TooFewActions as error:
                games.exceeded[index] = add_key(option, str(error))
                # with higher limits, the others are checked too
                task = games.tasks[index] = error.extend_limits(task)
                game = task.make("train")
        with closing(game) as env:
            if missing := list_missing(env):
                raise ValueError(
                    f"env: reset of game {task.name} takes no {' and no '.join(missing)}; write "
                    "reset(self, *, seed=None, options=None), and draw everything from seed and options['noise_seed']"
                )
            if task.hosting.where == "inline" and not _is_repeatable(env):
                screen.note(
                    f"reset(seed=0) of {task.name} gives another observation each time: the episodes of a group do not "
                    "share their task, and the run cannot be repeated; draw everything from the seed "
                    "(lit_agentrl.envs.checker.check_env)"
                )
            if is_trained and rewards.parts:
                with blame("env", f"env: game {task.name} instance seed 0, reset"):
                    observation, _ = env.reset(seed=0)
                for name, part in rewards.parts.items():
                    with blame(f"reward.{name}"):
                        part.check_game(task, env, observation)
