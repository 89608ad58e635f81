"""Chance and oracle: the two levels every score of a game is read against."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

from lit_agentrl.envs.base import Task, TextEnv
from lit_agentrl.envs.options import require_int

LOOKUP_EPISODES = 512
_PLAYER = 41  # purpose key of the random player's choices


@dataclass(frozen=True)
class Levels:
    """What uniform random legal play and best play score under the same action budget.

    Attributes:
        chance_success: share of episodes solved by random play.
        chance_return: mean return of random play, points.
        oracle_success: share of episodes solved by best play.
        oracle_return: mean return of best play, points.
        episodes: episodes each was measured on (the same instances for both).
    """

    chance_success: float
    chance_return: float
    oracle_success: float
    oracle_return: float
    episodes: int

    def normalised(self, success: float) -> float:
        """Success rate on the scale where chance is 0 and oracle is 1.

        Raises:
            ValueError: chance and oracle coincide, so the scale has no length.
        """
        span = self.oracle_success - self.chance_success
        if span == 0:
            raise ValueError(f"chance and oracle are both {self.chance_success}: no scale to normalise on")
        return (success - self.chance_success) / span


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

    Raises:
        ValueError: no episodes, or the game offers no best play.
    """
    require_int("episodes", episodes, 1)
    env, budget = task.make(split), task.action_budget
    rng = np.random.default_rng([seed, _PLAYER])
    chance, oracle = [], []
    for instance in range(seed, seed + episodes):
        chance.append(_episode(env, instance, budget, lambda _: env.random_action(rng)))
        oracle.append(_episode(env, instance, budget, functools.partial(_best_action, env, budget)))
    (chance_success, chance_return), (oracle_success, oracle_return) = (
        np.mean(scores, axis=0).tolist() for scores in (chance, oracle)
    )
    return Levels(chance_success, chance_return, oracle_success, oracle_return, episodes)


def _episode(
    env: TextEnv, instance: int, budget: int, choose: Callable[[int], str | None]
) -> tuple[float, float]:
    env.reset(seed=instance)
    total = 0.0
    for num_left in range(budget, 0, -1):
        action = choose(num_left)
        if action is None:
            break
        _, reward, terminated, _, info = env.step(action)
        total += reward
        if terminated:
            return float(info["success"]), total
    return 0.0, total


def _best_action(env: TextEnv, budget: int, num_left: int) -> str | None:
    plan = env.optimal_actions(horizon=num_left)
    if plan is None and num_left == budget:
        raise ValueError(
            f"{type(env).__name__}.optimal_actions gives None at the start: no oracle to measure"
        )
    return plan[0] if plan else None


def lookup(task: Task, split: str) -> Levels:
    """The shipped levels of this very game, limits and split; measured on 512 episodes if not shipped."""
    shipped = _shipped().get(level_key(task, split))
    return Levels(**shipped["levels"]) if shipped else measure(task, split, LOOKUP_EPISODES, seed=0)


def level_key(task: Task, split: str) -> str:
    """16 hex digits that change with the game's class, any of its options, the limits or the split."""
    game = task.game
    positional, keywords = (game.args, game.keywords) if isinstance(game, functools.partial) else ((), {})
    target = game.func if isinstance(game, functools.partial) else game
    bound = inspect.signature(target).bind_partial(*positional, **{**keywords, "split": split})
    bound.apply_defaults()
    description: dict[str, Any] = {
        "name": task.name,
        "game": f"{target.__module__}.{target.__qualname__}",
        "options": dict(bound.arguments),
        "limits": [task.max_turns, task.max_actions_per_turn, task.max_actions],
    }
    text = json.dumps(description, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@functools.cache
def _shipped() -> dict[str, Any]:
    file = resources.files("lit_agentrl.envs") / "levels.json"
    if not file.is_file():
        return {}
    entries: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["entries"]
    return entries
