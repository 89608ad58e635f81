"""Chance and oracle levels: the scores of random and of best play."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lit_agentrl.checks import require_whole
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.world import World
from lit_agentrl.files import write_atomic
from lit_agentrl.renamed import get_first_name

AGENTS = ("random", "oracle")  # uniform random legal play, and best play
# levels that a user measured for games of this package; shipped ones are next to the games
MEASURED = Path("outputs") / "levels.json"
_PLAYER = 41  # purpose key of the random player


@dataclass(frozen=True)
class Levels:
    """Scores of random legal play and of best play under one action budget; None: unknown.

    Attributes:
        chance_success: share of episodes solved by random play.
        chance_return: mean return of random play.
        oracle_success: share of episodes solved by best play.
        oracle_return: mean return of best play.
        episodes: episodes per level, both on the same instances.
    """

    chance_success: float | None = None
    chance_return: float | None = None
    oracle_success: float | None = None
    oracle_return: float | None = None
    episodes: int = 0


def measure(
    task: Task, split: str, episodes: int, seed: int, *, watch: Callable[[], None] = lambda: None
) -> Levels:
    """Measure both levels on ``episodes`` instances of a split.

    Random and best play may take ``task.action_budget`` actions and never write an invalid reply.  Best play plans
    again after every action.  A policy that commits to several actions per turn cannot do so where the game has noise;
    in FrozenLake the oracle is therefore an upper bound under the turn limit and not always attainable.  A game without
    random or best play has no chance or oracle level.

    Args:
        task: the game and its limits.
        split: ``train``, ``val`` or ``test``.
        episodes: at least 1.
        seed: the instances ``seed`` … ``seed + episodes - 1`` of the split are played.
        watch: called after each episode.

    Raises:
        ValueError: no episodes, or best play is known for some instances only.
    """
    require_whole("episodes", episodes, 1)
    scores = play_agents(task, split, range(seed, seed + episodes), seed, watch=watch)
    means = [np.mean(scores[name], axis=0).tolist() if name in scores else (None, None) for name in AGENTS]
    (chance_success, chance_return), (oracle_success, oracle_return) = means
    return Levels(chance_success, chance_return, oracle_success, oracle_return, episodes)


def play_agents(
    task: Task,
    split: str,
    instances: Sequence[int],
    seed: int,
    *,
    watch: Callable[[], None] = lambda: None,
) -> dict[str, list[tuple[float, float]]]:
    """Return success and return of each agent of `AGENTS` on each instance.

    An agent is left out if the game does not provide its actions.

    Args:
        task: the game and its limits.
        split: ``train``, ``val`` or ``test``.
        instances: the seeds of the resets, at least one.
        seed: seed of random play.
        watch: called after each episode.

    Raises:
        ValueError: best play is known for some instances only.
    """
    budget = task.action_budget
    rng = np.random.default_rng([seed, _PLAYER])
    scores: dict[str, list[tuple[float, float]]] = {}
    with closing(task.make(split)) as env:
        env.reset(seed=instances[0])
        choices: dict[str, Callable[[int], str | None]] = {
            "random": lambda _: env.random_action(rng),
            "oracle": functools.partial(_choose_best_action, env, budget),
        }
        actions = [env.random_action(np.random.default_rng(0)), env.optimal_actions(horizon=budget)]
        for name, first in zip(AGENTS, actions, strict=True):
            if first is None:
                continue
            scores[name] = []
            for instance in instances:
                scores[name].append(_play_episode(env, instance, budget, choices[name]))
                watch()
    return scores


def _play_episode(
    env: World, instance: int, budget: int, choose: Callable[[int], str | None]
) -> tuple[float, float]:
    env.reset(seed=instance)
    total = 0.0
    for num_left in range(budget, 0, -1):
        action = choose(num_left)
        if action is None:
            break
        _, reward, terminated, truncated, info = env.step(action)
        total += reward
        if terminated or truncated:
            return float(info["success"]), total
    return 0.0, total


def _choose_best_action(env: World, budget: int, num_left: int) -> str | None:
    plan = env.optimal_actions(horizon=num_left)
    if plan is None and num_left == budget:
        raise ValueError(
            f"{type(env).__name__}.optimal_actions returns None at the start of some instances, but not of others"
        )
    return plan[0] if plan else None


def find_levels(task: Task, split: str) -> Levels:
    """Return the levels that ``lit-agentrl levels`` measured for this game, its limits and split.

    They are stored in `MEASURED`, or next to the game.  Without an entry for this game, limits and split, all levels
    are unknown.

    Raises:
        ValueError: a file is no file of levels.
    """
    key = make_level_key(task, split)
    entry = read_levels(MEASURED).get(key) or read_levels(locate_levels(task)).get(key)
    return Levels(**entry["levels"]) if entry else Levels()


def locate_levels(task: Task) -> Path:
    """Return the ``levels.json`` next to the file of the game's class, or of its data."""
    game = get_game_class(task)
    home = game.home(get_game_options(task)) if _is_world(game) else Path(inspect.getfile(game))
    return home.with_name("levels.json")


def read_levels(path: Path) -> dict[str, Any]:
    """Return the entries of a file of levels, by key; empty without a file.

    Raises:
        ValueError: the file has another format.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return {}
    try:
        entries: dict[str, Any] = json.loads(text)["entries"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no file of levels; write it again with lit-agentrl levels") from error
    return entries


def write_levels(path: Path, new_entries: dict[str, Any]) -> None:
    """Add the entries of one game to a file; others stay.

    Raises:
        ValueError: the file has another format.
        OSError: it cannot be written.
    """
    entries = read_levels(path) | new_entries
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(content | {"entries": entries}, indent=1) + "\n")


def get_game_class(task: Task) -> Any:
    """Return the class of the game, or the function that creates it."""
    return task.game.func if isinstance(task.game, functools.partial) else task.game


def _is_world(game: Any) -> bool:
    return isinstance(game, type) and issubclass(game, World)


def get_game_options(task: Task, **overrides: Any) -> dict[str, Any]:
    """Return all arguments of the game, with defaults."""
    game = task.game
    positional, keywords = (game.args, game.keywords) if isinstance(game, functools.partial) else ((), {})
    bound = inspect.signature(get_game_class(task)).bind_partial(*positional, **{**keywords, **overrides})
    bound.apply_defaults()
    return dict(bound.arguments)


def make_game_key(task: Task) -> str:
    """Return 16 hex digits that identify the game's class, options and data."""
    return _hash_description(_describe(task, "train"))


def make_level_key(task: Task, split: str) -> str:
    """Return 16 hex digits that identify the game's class, options, data, limits and split."""
    limits = [task.max_turns, task.max_actions_per_turn, task.max_actions]
    return _hash_description({"name": task.name, **_describe(task, split), "limits": limits})


def _describe(task: Task, split: str) -> dict[str, Any]:
    target, options = get_game_class(task), get_game_options(task, split=split)
    faults = task.make_faults()
    changed: dict[str, Any] = {} if faults is None else {"faults": asdict(faults)}
    if task.user is not None:
        changed["user"] = dict(task.user.keywords) if isinstance(task.user, functools.partial) else task.user
    return changed | {
        # the first name of a class, so that a moved module keeps its key
        "game": get_first_name(f"{target.__module__}.{target.__qualname__}"),
        "options": target.identity(options) if _is_world(target) else options,
    }


def _hash_description(description: Mapping[str, Any]) -> str:
    text = json.dumps(description, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
