"""Checks of the contract of text games, by playing a game.

Each ``_check_*`` below is one rule.  Fixed seeds decide everything, so that a game passes or fails the same way
every time.
"""

from __future__ import annotations

import json
import math
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.error import ResetNeeded

from lit_agentrl.envs.splits import SPLITS
from lit_agentrl.envs.world import World

Make = Callable[[str], World]
_HORIZON = 10  # actions of one checked episode
_ATTEMPTS = 10  # plays at most; one must leave the global generators unchanged
_UNKNOWN_ACTION = "no such action"


class ContractError(ValueError):
    """A broken rule of the contract; ``rule`` is its name."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"rule {rule!r} is broken: {message}")
        self.rule = rule


def check_env(make: Make, *, episodes: int = 20) -> None:
    """Play a game and check every rule of the contract.

    Args:
        make: creates an environment of the given split (``task.make`` fits).
        episodes: episodes to play for each rule.

    Raises:
        ContractError: (a ValueError) for the first rule that is broken.
    """
    for check in (
        _check_reset,
        _check_step,
        _check_unknown_action,
        _check_determinism,
        _check_siblings,
        _check_state_dict,
        _check_pickling,
        _check_splits,
        _check_optimal_actions,
    ):
        check(make, episodes)


def _expect(condition: bool, rule: str, message: str) -> None:
    if not condition:
        raise ContractError(rule, message)


def _make_rng(seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, 999])


def _start(make: Make, seed: int, *, split: str = "train", noise_seed: int = 7) -> World:
    env = make(split)
    env.reset(seed=seed, options={"noise_seed": noise_seed})
    return env


def _play(env: World, rng: np.random.Generator, num_actions: int = _HORIZON) -> tuple[list[Any], bool]:
    """Play at random from the current state; return everything observed and whether the game ended."""
    trace: list[Any] = [env.state_key()]
    for _ in range(num_actions):
        action = env.random_action(rng)
        if action is None:  # random play is unknown beyond the start
            break
        step = env.step(action)
        trace.append((action, *step, env.state_key()))
        if step[2]:
            return trace, True
    return trace, False


def _check_reset(make: Make, episodes: int) -> None:
    env = make("train")
    _expect(
        isinstance(env, World),
        "types",
        f"make(split) gave {type(env).__name__}, not a World, such as a TextEnv",
    )
    for seed in range(episodes):
        result = env.reset(seed=seed)
        _expect(isinstance(result, tuple) and len(result) == 2, "types", "reset gives (observation, info)")
        observation, info = result
        _expect(isinstance(observation, str), "types", "the observation of reset is a str")
        _expect(
            isinstance(info.get("instance_id", ""), str), "info", "instance_id, where there is one, is a str"
        )
        try:
            names = env.actions().names
        except ValueError as error:
            raise ContractError("actions", str(error)) from error
        _expect(len({name.lower() for name in names}) == len(names), "actions", f"names clash: {names}")
        key = env.state_key()
        _expect(type(key) is int and 0 <= key < 2**63, "state_key", f"{key!r} is no int of 63 bits")
    _expect(isinstance(env.rules, str), "types", "rules is a str")
    try:
        env.reset()
    except ValueError:
        return
    raise ContractError("seeding", "reset without a seed must raise ValueError: instances are addressed")


def _check_step(make: Make, episodes: int) -> None:
    for seed in range(episodes):
        env, rng, is_over, action = _start(make, seed), _make_rng(seed), False, ""
        for _ in range(_HORIZON):
            names, chosen = env.action_names(), env.random_action(rng)
            if chosen is None:  # how to play is not known here
                return
            action = chosen
            _expect(
                names is None or action in names, "actions", f"random action {action!r} is not in {names}"
            )
            # Names match whatever their case; free text goes in as it is.
            is_over = _check_result(env.step(action if names is None else action.upper()), action)
            if is_over:
                break
        if is_over:
            try:
                env.step(action)
            except ResetNeeded:
                continue
            raise ContractError("ending", "step after the end must raise gymnasium.error.ResetNeeded")


def _check_result(result: Any, action: str) -> bool:
    _expect(isinstance(result, tuple) and len(result) == 5, "types", "step gives a tuple of five")
    observation, reward, terminated, truncated, info = result
    _expect(isinstance(observation, str), "types", "the observation of step is a str")
    _expect(type(reward) is float, "types", f"the reward is a Python float, not {type(reward).__name__}")
    _expect(type(terminated) is bool and truncated is False, "types", "terminated is a bool, truncated False")
    _expect(not terminated or "success" in info, "info", "info has 'success' when the game is over")
    for key, default in (("success", False), ("action_is_valid", True), ("reward_parts", {"reward": reward})):
        kind = type(default)
        _expect(type(info.setdefault(key, default)) is kind, "info", f"info[{key!r}] is a {kind.__name__}")
    _expect(info["action_is_valid"], "actions", f"the random action {action!r} was called invalid")
    total = sum(info["reward_parts"].values())
    _expect(abs(total - reward) < 1e-9, "rewards", f"parts sum to {total}, the reward is {reward}")
    cost = info.get("cost", 0.0)
    _expect(type(cost) is float and math.isfinite(cost), "info", f"info['cost']={cost!r} is a finite float")
    return bool(terminated)


def _check_unknown_action(make: Make, episodes: int) -> None:
    for seed in range(episodes):
        env = _start(make, seed)
        if env.action_format() == "text":
            return
        before = _save_state(env)
        _, reward, terminated, _, info = env.step(_UNKNOWN_ACTION)
        is_noop = reward == 0 and not terminated and not info.get("success") and _save_state(env) == before
        _expect(is_noop, "unknown action", "an unknown action must change nothing and earn 0")
        _expect(
            not info.get("action_is_valid", True), "unknown action", "it must be marked action_is_valid=False"
        )


def _check_determinism(make: Make, episodes: int) -> None:
    shared = make("train")
    for seed in range(episodes):
        for _ in range(_ATTEMPTS):
            # A game that draws from a global generator moves it in every play; another thread, which pings a
            # websocket or plays a game that was given up, moves it now and then.
            random.seed(seed)
            np.random.seed(seed)
            globals_before = (random.getstate(), str(np.random.get_state()))
            first, _ = _play(_start(make, seed), _make_rng(seed))
            if globals_before == (random.getstate(), str(np.random.get_state())):
                break
        else:
            raise ContractError("determinism", "the game draws from a global random generator")
        shared.reset(seed=seed, options={"noise_seed": 7})
        replayed, _ = _play(shared, _make_rng(seed))
        _expect(first == replayed, "determinism", f"seed {seed} played twice gives different episodes")


def _check_siblings(make: Make, episodes: int) -> None:
    env = make("train")
    for seed in range(episodes):
        starts = []
        for noise_seed in (seed, seed + 1):
            observation, info = env.reset(seed=seed, options={"noise_seed": noise_seed})
            starts.append((observation, info, env.state_key()))
        _expect(starts[0] == starts[1], "siblings", "members of a group must share the instance")
        env.reset(seed=seed)
        default, _ = _play(env, _make_rng(seed))
        stated, _ = _play(_start(make, seed, noise_seed=seed), _make_rng(seed))
        _expect(default == stated, "siblings", "noise_seed must default to seed")


def _save_state(env: World) -> object:
    return env.state_dict() if env.has_state else None


def _check_state_dict(make: Make, episodes: int) -> None:
    if not make("train").has_state:
        return
    for seed in range(episodes):
        env = _start(make, seed)
        _, is_over = _play(env, _make_rng(seed), seed % 4)
        if is_over:
            env = _start(make, seed)
        text = _as_json(env.state_dict())
        going_on, _ = _play(env, _make_rng(seed + 1))
        _expect(_as_json(json.loads(text)) == text, "state_dict", "it does not survive JSON")
        # Into another episode of another environment, and back into the one that has gone on.
        for target in (_start(make, seed + 1, noise_seed=8), env):
            target.load_state_dict(json.loads(text))
            _expect(_as_json(target.state_dict()) == text, "state_dict", "loading then saving changes it")
            resumed, _ = _play(target, _make_rng(seed + 1))
            _expect(resumed == going_on, "state_dict", f"seed {seed}: the loaded game goes on differently")


def _as_json(state: dict[str, Any]) -> str:
    try:
        return json.dumps(state, sort_keys=True)
    except TypeError as error:
        raise ContractError("state_dict", f"it must hold plain JSON values: {error}") from error


def _check_pickling(make: Make, episodes: int) -> None:
    if not make("train").has_state:
        return
    for seed in range(min(episodes, 3)):
        env = _start(make, seed)
        try:
            copy = pickle.loads(pickle.dumps(env))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ContractError("pickling", f"the environment cannot be pickled: {error}") from error
        _expect(
            _play(copy, _make_rng(seed)) == _play(env, _make_rng(seed)),
            "pickling",
            "the copy plays differently",
        )


def _check_splits(make: Make, episodes: int) -> None:
    split_of: dict[object, str] = {}
    for split in SPLITS:
        env, ids = make(split), set()
        if env.instances == 1:
            return
        _expect(env.split == split, "splits", f"make({split!r}) gave split={env.split!r}")
        for seed in range(episodes):
            _, info = env.reset(seed=seed)
            ids.add(info.get("instance_id", seed))
            # The state tells on an instance_id that is not made from the content; what is unknown tells nothing.
            for mark in filter(None, (info.get("instance_id"), env.state_key())):
                first = split_of.setdefault(mark, split)
                _expect(first == split, "splits", f"an instance is both in {first} and in {split}: {info}")
        _expect(len(ids) > 1 or episodes == 1, "splits", f"every seed of {split} gives the same instance")


def _check_optimal_actions(make: Make, episodes: int) -> None:
    best_successes = chance_successes = 0
    for seed in range(episodes):
        env = _start(make, seed)
        if env.optimal_actions(horizon=max(_HORIZON, env.max_solution)) is None:
            if seed == 0:
                return  # this game offers no best play
            raise ContractError("optimal actions", f"seed {seed} has no best play though others have")
        best_successes += _solve_by_best_play(env)
        trace, _ = _play(_start(make, seed), _make_rng(seed))
        chance_successes += len(trace) > 1 and trace[-1][5].get("success", False)
    _expect(
        best_successes >= chance_successes,
        "optimal actions",
        f"best play solved {best_successes} of {episodes}, random play {chance_successes}",
    )


def _solve_by_best_play(env: World) -> bool:
    for num_left in range(max(_HORIZON, env.max_solution), 0, -1):
        plan, names = env.optimal_actions(horizon=num_left), env.action_names()
        if plan is None:
            return False
        is_legal = names is None or set(plan) <= set(names)
        message = f"{plan} is empty, illegal, or longer than horizon={num_left}"
        _expect(is_legal and 0 < len(plan) <= num_left, "optimal actions", message)
        _, _, terminated, _, info = env.step(plan[0])
        if terminated:
            return bool(info.get("success", False))
    return False
