"""Checks of what a game's calls return, and plays for all checks."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from gymnasium.error import ResetNeeded

from lit_agentrl.envs.random_calls import draw_call
from lit_agentrl.envs.violations import Probe, describe, describe_error
from lit_agentrl.envs.world import World

HORIZON = 10  # actions of one checked episode
_UNKNOWN_ACTION = "no such action"


def make_rng(seed: int) -> np.random.Generator:
    """Make the generator of random play."""
    return np.random.default_rng([seed, 999])


def start(probe: Probe, seed: int, *, split: str = "train", noise_seed: int = 7) -> World:
    """Create an environment and start an episode."""
    env = probe.make(split)
    probe.reset(env, seed=seed, options={"noise_seed": noise_seed})
    return env


class PlayedStep(NamedTuple):
    """An action, what the step returned, and the hash of the state after it."""

    action: str
    observation: str
    reward: Any
    terminated: Any
    truncated: Any
    info: dict[str, Any]
    key: Any


def play(
    probe: Probe, env: World, rng: np.random.Generator, num_actions: int = HORIZON
) -> tuple[list[Any], bool]:
    """Play at random from the current state; return a trace, and whether the game ended.

    The trace has the hash of the first state, then each `PlayedStep`.
    """
    trace: list[Any] = [get_key(probe, env)]
    for _ in range(num_actions):
        action, _ = _draw_action(probe, env, rng)
        if action is None:  # random play is unknown in this state
            break
        observation, reward, terminated, truncated, info = probe.step(env, action)
        if not (isinstance(reward, float) and math.isfinite(reward)):
            reward = repr(reward)  # NaN differs from itself, its text does not
        key = get_key(probe, env)
        trace.append(PlayedStep(action, observation, reward, terminated, truncated, info, key))
        if terminated:
            return trace, True
    return trace, False


def get_key(probe: Probe, env: World) -> Any:
    """Return the hash of the state."""
    return probe.call("state_key()", env.state_key)


def _draw_action(probe: Probe, env: World, rng: np.random.Generator) -> tuple[Any, bool]:
    """Draw an action, and say whether the game itself drew it.

    For a game of tools without random play, a call is drawn from the schemas of its tools.  If the game cannot save its
    state, no call is drawn: its tools may change something real.
    """
    action = probe.call("random_action(rng)", lambda: env.random_action(rng))
    if action is not None or not env.has_state or env.action_format() != "tools":
        return action, action is not None
    call = draw_call(probe.call("tools()", env.tools), rng)
    return None if call is None else str(call), False


def check_reset(probe: Probe, episodes: int) -> None:
    """Check what a reset returns, with and without a seed."""
    env = probe.make("train")
    for seed in range(episodes):
        _, info = probe.reset(env, seed=seed)
        name = info.get("instance_id", "")
        probe.expect(
            isinstance(name, str),
            "info",
            f"instance_id is {describe(name)}",
            "make it a str, or leave it out",
        )
        names = probe.call("actions()", lambda: _list_actions(probe, env))
        probe.expect(
            len({name.lower() for name in names}) == len(names),
            "actions",
            f"names clash: {describe(list(names))}",
            "make action_names differ in more than their case",
        )
        key = get_key(probe, env)
        probe.expect(
            type(key) is int and 0 <= key < 2**63,
            "state_key",
            f"state_key() is {describe(key)}, no int of 63 bits",
            "return lit_agentrl.envs.splits.stable_hash(TEXT OF THE STATE), or 0 where it is unknown",
        )
    rules = probe.call("rules", lambda: env.rules)
    probe.expect(isinstance(rules, str), "types", f"rules is {describe(rules)}", "make it a str")
    try:
        env.reset()
    except ValueError:  # a game may refuse it
        pass
    except Exception as error:
        probe.expect(
            False,
            "seeding",
            f"reset() without a seed raised {describe_error(error)}",
            "begin with seed = self.choose_seed(seed)",
        )


def _list_actions(probe: Probe, env: World) -> tuple[str, ...]:
    try:
        return env.actions().names
    except ValueError as error:
        probe.stop("actions", str(error), "correct action_names(), tools() or action_format()")


def check_step(probe: Probe, episodes: int) -> None:
    """Check what a step returns, and that a finished game cannot be played on."""
    for seed in range(episodes):
        env, rng, is_over, action = start(probe, seed), make_rng(seed), False, ""
        for _ in range(HORIZON):
            names = probe.call("action_names()", env.action_names)
            chosen, is_own = _draw_action(probe, env, rng)
            if chosen is None:  # how to play is not known here
                if names is None and env.action_format() == "text":
                    _check_result(probe, probe.step(env, _UNKNOWN_ACTION), None)
                return
            action = chosen
            probe.expect(
                names is None or action in names,
                "actions",
                f"random_action gave {describe(action)}, which is not in {describe(names)}",
                "draw from action_names()",
            )
            # Names match whatever their case; free text goes in as it is.
            step = probe.step(env, action if names is None else action.upper())
            is_over = _check_result(probe, step, action if is_own else None)
            if is_over:
                break
        if is_over:
            try:
                env.step(action)
            except ResetNeeded:
                continue
            except Exception as error:
                reaction = f"raised {describe_error(error)}"
            else:
                reaction = "went on"
            probe.expect(
                False,
                "ending",
                f"step after the end {reaction}",
                "raise gymnasium.error.ResetNeeded where the game is over",
            )


def _check_result(probe: Probe, result: Any, action: str | None) -> bool:
    """Check what a step returned; the action is None where it may be invalid."""
    _, reward, terminated, truncated, info = result
    is_number = probe.expect(
        type(reward) is float,
        "types",
        f"the reward is {describe(reward)}, not a Python float",
        "return float(reward)",
    )
    is_number = is_number and probe.expect(
        math.isfinite(reward), "rewards", f"the reward is {reward}", "return a finite number"
    )
    probe.expect(
        type(terminated) is bool,
        "types",
        f"terminated is {describe(terminated)}",
        "return a bool: bool(value)",
    )
    probe.expect(
        truncated is False,
        "types",
        f"truncated is {describe(truncated)}",
        "return False: max_turns and max_actions of the YAML file end an episode",
    )
    if terminated:
        probe.expect(
            "success" in info,
            "info",
            f"info at the end is {describe(info)}",
            "say whether the game is solved: success",
        )
    entries = {
        "success": False,
        "action_is_valid": True,
        "reward_parts": {"reward": reward},
        "cost": 0.0,
        "counts": {},
        **info,
    }
    for key, kind in (("success", bool), ("action_is_valid", bool), ("reward_parts", dict), ("cost", float),
        ("counts", dict),
    ):  # fmt: skip
        probe.expect(
            type(entries[key]) is kind,
            "info",
            f"info[{key!r}] is {describe(entries[key])}, not a {kind.__name__}",
            f"convert it: {kind.__name__}(value)",
        )
    probe.expect(
        action is None or bool(entries["action_is_valid"]),
        "actions",
        f"{describe(action)} of random_action was called invalid",
        "accept what action_names lists, whatever its case",
    )
    if is_number and type(entries["reward_parts"]) is dict:
        _check_parts(probe, entries["reward_parts"], reward)
    if type(entries["cost"]) is float:
        is_finite = math.isfinite(entries["cost"])
        probe.expect(is_finite, "info", f"info['cost'] is {entries['cost']}", "return a finite number")
    return bool(terminated)


def _check_parts(probe: Probe, parts: dict[str, Any], reward: float) -> None:
    is_sum = all(isinstance(part, int | float) for part in parts.values())
    probe.expect(
        is_sum and abs(sum(parts.values()) - reward) < 1e-9,
        "rewards",
        f"info['reward_parts'] is {describe(parts)}, the reward is {reward}",
        "let the parts sum to the reward",
    )


def check_unknown_action(probe: Probe, episodes: int) -> None:
    """Check that an unknown action changes nothing."""
    for seed in range(episodes):
        env = start(probe, seed)
        if probe.call("action_format()", env.action_format) == "text":
            return
        before = save_state(probe, env)
        _, reward, terminated, _, info = probe.step(env, _UNKNOWN_ACTION)
        is_number = isinstance(reward, int | float) and math.isfinite(reward)  # else this has been reported
        is_noop = (
            (reward == 0 or not is_number)
            and not terminated
            and not info.get("success")
            and save_state(probe, env) == before
        )
        probe.expect(
            bool(is_noop),
            "unknown action",
            f"step({_UNKNOWN_ACTION!r}) gave the reward {describe(reward)}, or changed the game",
            "let an action that is unknown change nothing and earn 0",
        )
        probe.expect(
            not info.get("action_is_valid", True),
            "unknown action",
            f"step({_UNKNOWN_ACTION!r}) gave info {describe(info)}",
            "mark it: info['action_is_valid'] = False",
        )


def save_state(probe: Probe, env: World) -> object:
    """Return the state of a game that can be saved; None for others."""
    return probe.call("state_dict()", env.state_dict) if env.has_state else None
