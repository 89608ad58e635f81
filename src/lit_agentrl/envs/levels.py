"""Chance and oracle: the two levels every score of a game is read against."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lit_agentrl.checks import require_whole
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.world import World
from lit_agentrl.files import write_atomic
from lit_agentrl.renamed import get_first_name

AGENTS = ("random", "oracle")  # uniform random legal play, and best play
_PLAYER = 41  # purpose key of the random player's choices


@dataclass(frozen=True)
class Levels:
    """What uniform random legal play and best play score under the same action budget; None: not known.

    Attributes:
        chance_success: share of episodes solved by random play.
        chance_return: mean return of random play, points.
        oracle_success: share of episodes solved by best play.
        oracle_return: mean return of best play, points.
        episodes: episodes each was measured on (the same instances for both).
    """

    chance_success: float | None = None
    chance_return: float | None = None
    oracle_success: float | None = None
    oracle_return: float | None = None
    episodes: int = 0


def measure(task: Task, split: str, episodes: int, seed: int) -> Levels:
    """Plays both levels on ``episodes`` instances of a split.

    Both may play ``task.action_budget`` actions and never write an invalid reply.  The oracle plans anew
    after every action.  A policy that commits to several actions per turn cannot do so where the game has
    noise, hence in FrozenLake the oracle is an upper bound under the turn limit, not always attainable.

    Args:
        task: the game and its limits.
        split: ``train``, ``val`` or ``test``.
        episodes: at least 1.
        seed: instances ``seed`` … ``seed + episodes - 1`` of the split are played.

    A game that does not say how to play at random, or best, has no such level.

    Raises:
        ValueError: no episodes, or best play is known for some instances only.
    """
    require_whole("episodes", episodes, 1)
    found = play_agents(task, split, range(seed, seed + episodes), seed)
    means = [np.mean(found[name], axis=0).tolist() if name in found else (None, None) for name in AGENTS]
    (chance_success, chance_return), (oracle_success, oracle_return) = means
    return Levels(chance_success, chance_return, oracle_success, oracle_return, episodes)


def play_agents(
    task: Task, split: str, instances: Sequence[int], seed: int
) -> dict[str, list[tuple[float, float]]]:
    """Success and return, points, of each agent of `AGENTS` that the game knows, on each instance.

    Args:
        task: the game and its limits.
        split: ``train``, ``val`` or ``test``.
        instances: what the game is reset with, at least one.
        seed: of random play.

    Raises:
        ValueError: best play is known for some instances only.
    """
    budget = task.action_budget
    rng = np.random.default_rng([seed, _PLAYER])
    found: dict[str, list[tuple[float, float]]] = {}
    with closing(task.make(split)) as env:
        env.reset(seed=instances[0])
        choices: dict[str, Callable[[int], str | None]] = {
            "random": lambda _: env.random_action(rng),
            "oracle": functools.partial(_best_action, env, budget),
        }
        known = [env.random_action(np.random.default_rng(0)), env.optimal_actions(horizon=budget)]
        for name, first in zip(AGENTS, known, strict=True):
            if first is not None:
                found[name] = [_episode(env, instance, budget, choices[name]) for instance in instances]
    return found


def _episode(
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


def _best_action(env: World, budget: int, num_left: int) -> str | None:
    plan = env.optimal_actions(horizon=num_left)
    if plan is None and num_left == budget:
        raise ValueError(
            f"{type(env).__name__}.optimal_actions gives None at the start of some instances and not of others"
        )
    return plan[0] if plan else None


def lookup(task: Task, split: str) -> Levels:
    """The levels of this very game, limits and split that ``lit-agentrl levels`` measured; unknown without.

    Raises:
        ValueError: the file beside the game is no file of levels.
    """
    found = read_levels(levels_file(task)).get(level_key(task, split))
    return Levels(**found["levels"]) if found else Levels()


def levels_file(task: Task) -> Path:
    """Where the levels of a game stand: in ``levels.json`` beside the file of its class, or of its data."""
    game = class_of(task)
    home = game.home(options_of(task)) if _is_world(game) else Path(inspect.getfile(game))
    return home.with_name("levels.json")


def read_levels(path: Path) -> dict[str, Any]:
    """The entries of a file of levels, by key; none if there is no such file.

    Raises:
        ValueError: it is something else.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return {}
    try:
        entries: dict[str, Any] = json.loads(text)["entries"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no file of levels; write it anew with lit-agentrl levels") from error
    return entries


def write_levels(task: Task, found: dict[str, Any]) -> Path:
    """Put the entries of one game into its file, which is returned; those of other games and settings stay.

    Raises:
        ValueError: the file is something else.
        OSError: it cannot be written.
    """
    path = levels_file(task)
    entries = read_levels(path) | found
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    write_atomic(path, json.dumps(kept | {"entries": entries}, indent=1) + "\n")
    return path


def class_of(task: Task) -> Any:
    """The class of its games, or whatever makes them."""
    return task.game.func if isinstance(task.game, functools.partial) else task.game


def _is_world(game: Any) -> bool:
    return isinstance(game, type) and issubclass(game, World)


def options_of(task: Task, **further: Any) -> dict[str, Any]:
    """All arguments of the game, defaults included."""
    game = task.game
    positional, keywords = (game.args, game.keywords) if isinstance(game, functools.partial) else ((), {})
    bound = inspect.signature(class_of(task)).bind_partial(*positional, **{**keywords, **further})
    bound.apply_defaults()
    return dict(bound.arguments)


def game_key(task: Task) -> str:
    """16 hex digits that change with the game's class and any of its options or data."""
    return _digest(_described(task, "train"))


def level_key(task: Task, split: str) -> str:
    """16 hex digits that change with the game's class, any of its options or data, the limits or the split."""
    limits = [task.max_turns, task.max_actions_per_turn, task.max_actions]
    return _digest({"name": task.name, **_described(task, split), "limits": limits})


def _described(task: Task, split: str) -> dict[str, Any]:
    target, options = class_of(task), options_of(task, split=split)
    return {
        "game": get_first_name(
            f"{target.__module__}.{target.__qualname__}"
        ),  # a key stays where a module moves
        "options": target.identity(options) if _is_world(target) else options,
    }


def _digest(description: Mapping[str, Any]) -> str:
    text = json.dumps(description, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
