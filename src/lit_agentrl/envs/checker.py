"""Checks of the contract of text games, by playing a game.

Each check is one rule; those of single calls are in `call_checks`.  Fixed seeds decide everything, so that a game
passes or fails the same way every time.
"""

from __future__ import annotations

import io
import json
import logging
import pickle
import random
import time
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from functools import partial
from typing import Any

import numpy as np

from lit_agentrl.envs.call_checks import (
    HORIZON,
    check_reset,
    check_step,
    check_unknown_action,
    get_key,
    make_rng,
    play,
    start,
)
from lit_agentrl.envs.splits import SPLITS
from lit_agentrl.envs.violations import (
    ContractError,
    Make,
    Probe,
    Stop,
    Violation,
    describe,
    shorten,
)
from lit_agentrl.envs.world import World

__all__ = ["ContractError", "Violation", "check_env"]

_ATTEMPTS = 10  # most plays; one of them must leave the global generators unchanged
_SLOW_S = 1.0  # if an episode takes longer, each rule is checked on one episode
_log = logging.getLogger(__name__)


def check_env(make: Make, *, episodes: int = 20) -> None:
    """Play a game and check the contract; print one line if it is kept.

    Args:
        make: creates an environment of the given split (``task.make`` fits).
        episodes: episodes to play for each rule.

    Raises:
        ContractError: (a ValueError) a rule is broken; the message has a line for each broken rule, with its remedy.
    """
    probe, printed = Probe(make), io.StringIO()
    with redirect_stdout(printed):
        _run(check_step, probe, 1)  # imports what the game needs
        began = time.monotonic()
        _run(check_step, probe, 1)
        if (seconds := time.monotonic() - began) > _SLOW_S and episodes > 1:
            _log.warning(
                "an episode takes %.1f s, so only one is played for each rule; env.hosting.where=thread plays several "
                "at once in a run", seconds,
            )  # fmt: skip
            episodes = 1
        skipped = {rule: _run(check, probe, episodes) for rule, check in _CHECKS.items()}
        _run(_warn_of_unplayed_tools, probe, episodes)
    probe.expect(
        not printed.getvalue(),
        "output",
        f"the game prints to stdout: {describe(printed.getvalue().strip())}",
        "use logging, or a text in info: a run shows its own lines there",
    )
    if probe.violations:
        raise ContractError(probe.violations)
    checked = ", ".join(rule for rule, reason in skipped.items() if not reason)
    left_out = ", ".join(f"{rule} ({reason})" for rule, reason in skipped.items() if reason)
    print(
        f"the game keeps the contract: {checked}; {episodes} episode{'s' * (episodes != 1)} played for each"
        + (f"; not checked: {left_out}" if left_out else "")
    )


def _run(check: Callable[[Probe, int], str | None], probe: Probe, episodes: int) -> str | None:
    """Run a check; a check that stops early has recorded a violation.

    Returns:
        Why the game has nothing to check; None if it was checked.
    """
    with suppress(Stop):
        return check(probe, episodes)
    return None


def _check_determinism(probe: Probe, episodes: int) -> None:
    shared = probe.make("train")
    for seed in range(episodes):
        for _ in range(_ATTEMPTS):
            # A game that draws from a global generator changes it in every play.  Other threads, which ping a
            # websocket or play an abandoned game, change it only now and then.
            random.seed(seed)
            np.random.seed(seed)
            globals_before = (random.getstate(), str(np.random.get_state()))
            first, _ = play(probe, start(probe, seed), make_rng(seed))
            if globals_before == (random.getstate(), str(np.random.get_state())):
                break
        else:
            probe.stop(
                "determinism",
                "the game draws from a global random generator",
                "draw from one that reset seeds: TextEnv has self._noise, others numpy.random.default_rng(noise_seed)",
            )
        opening = probe.reset(shared, seed=seed, options={"noise_seed": 7})
        replayed, _ = play(probe, shared, make_rng(seed))
        again = probe.reset(probe.make("train"), seed=seed, options={"noise_seed": 7})
        probe.expect(
            first == replayed and opening == again,
            "determinism",
            f"seed {seed} played twice gives different episodes",
            "draw everything from the seeds of reset, and keep nothing from earlier episodes or in class attributes",
        )


def _check_siblings(probe: Probe, episodes: int) -> None:
    env = probe.make("train")
    for seed in range(episodes):
        starts = []
        for noise_seed in (seed, seed + 1):
            observation, info = probe.reset(env, seed=seed, options={"noise_seed": noise_seed})
            starts.append((observation, info, get_key(probe, env)))
        probe.expect(
            starts[0] == starts[1],
            "siblings",
            f"seed {seed} starts differently with another noise_seed",
            "let seed alone choose the task: members of a group share it",
        )
        probe.reset(env, seed=seed)
        default, _ = play(probe, env, make_rng(seed))
        stated, _ = play(probe, start(probe, seed, noise_seed=seed), make_rng(seed))
        probe.expect(
            default == stated,
            "siblings",
            f"reset(seed={seed}) plays differently from one with noise_seed={seed}",
            "let noise_seed default to seed",
        )


def _check_state_dict(probe: Probe, episodes: int) -> str | None:
    if not probe.make("train").has_state:
        return "has_state is false"
    for seed in range(episodes):
        env = start(probe, seed)
        _, is_over = play(probe, env, make_rng(seed), seed % 4)
        if is_over:
            env = start(probe, seed)
        text = _as_json(probe, env)
        continued, _ = play(probe, env, make_rng(seed + 1))
        is_kept = _to_text(json.loads(text)) == text
        probe.expect(
            is_kept,
            "state_dict",
            f"state_dict() changes in JSON: {shorten(text)}",
            "use str as keys, and lists",
        )
        # load the state into a new environment in another episode, and into the same one after further play
        for target in (start(probe, seed + 1, noise_seed=8), env):
            probe.call("load_state_dict(state)", partial(target.load_state_dict, json.loads(text)))
            probe.expect(
                _as_json(probe, target) == text,
                "state_dict",
                f"seed {seed}: loading a state and saving it again changes it",
                "restore in load_state_dict everything that state_dict returns",
            )
            resumed, _ = play(probe, target, make_rng(seed + 1))
            probe.expect(
                resumed == continued,
                "state_dict",
                f"seed {seed}: the loaded game continues differently from the saved one",
                "put everything that the future depends on into state_dict, with the random generator",
            )
    return None


def _to_text(state: Any) -> str:
    return json.dumps(state, sort_keys=True)


def _as_json(probe: Probe, env: World) -> str:
    state = probe.call("state_dict()", env.state_dict)
    try:
        return _to_text(state)
    except (TypeError, ValueError) as error:
        probe.stop(
            "state_dict",
            f"state_dict() is no plain JSON: {error}",
            "convert its values: int(…), list(…), str(…)",
        )


def _check_pickling(probe: Probe, episodes: int) -> str | None:
    if not probe.make("train").has_state:
        return "has_state is false"
    for seed in range(min(episodes, 3)):
        env = start(probe, seed)
        try:
            copy = pickle.loads(pickle.dumps(env))
        except Exception as error:
            probe.stop(
                "pickling",
                f"the environment cannot be pickled: {shorten(' '.join(str(error).split()))}",
                "keep no lambda, open file or generator as an attribute, or set has_state = False",
            )
        probe.expect(
            play(probe, copy, make_rng(seed)) == play(probe, env, make_rng(seed)),
            "pickling",
            f"seed {seed}: a pickled copy plays differently",
            "let __getstate__ keep the whole state",
        )
    return None


def _check_splits(probe: Probe, episodes: int) -> str | None:
    split_of: dict[object, str] = {}
    openings: dict[str, list[str]] = {split: [] for split in SPLITS}
    for split in SPLITS:
        env, ids = probe.make(split), set()
        if env.instances == 1:
            return "instances is 1"
        probe.expect(
            env.split == split,
            "splits",
            f"make({split!r}) gave split={env.split!r}",
            "pass split on to the game",
        )
        for seed in range(episodes):
            observation, info = probe.reset(env, seed=seed)
            ids.add(info.get("instance_id", observation))
            openings[split].append(observation)
            # Equal states reveal an instance in two splits even if its ids differ; unknown ids and keys are skipped.
            for mark in filter(None, (info.get("instance_id"), get_key(probe, env))):
                first = split_of.setdefault(mark, split)
                probe.expect(
                    first == split,
                    "splits",
                    f"an instance is both in {first} and in {split}: {describe(info)}",
                    "draw tasks through lit_agentrl.envs.splits.draw_for_split",
                )
        probe.expect(
            len(ids) > 1 or episodes == 1,
            "splits",
            f"every seed of {split} gives the same instance",
            "let reset choose the task by its seed, or say instances = 1",
        )
    if not split_of and episodes > 1 and openings["train"] == openings["test"]:
        _log.warning(
            "seeds 0 to %d begin in test as they begin in train, and the game gives no info['instance_id']: tasks of "
            "test may be trained on; draw tasks through lit_agentrl.envs.splits.draw_for_split, with self.split",
            episodes - 1,
        )
    return None


def _check_optimal_actions(probe: Probe, episodes: int) -> str | None:
    best_successes = chance_successes = 0
    for seed in range(episodes):
        env = start(probe, seed)
        if _plan(probe, env, max(HORIZON, env.max_solution)) is None:
            if seed == 0:
                return "it gives no best play"
            probe.stop(
                "optimal actions",
                f"seed {seed} has no best play though others have",
                "return None for all, or a plan",
            )
        best_successes += _solve_by_best_play(probe, env)
        trace, _ = play(probe, start(probe, seed), make_rng(seed))
        chance_successes += len(trace) > 1 and bool(trace[-1].info.get("success", False))
    probe.expect(
        best_successes >= chance_successes,
        "optimal actions",
        f"best play solved {best_successes} of {episodes}, random play {chance_successes}",
        "return the best plan, or None where it is unknown",
    )
    return None


def _warn_of_unplayed_tools(probe: Probe, episodes: int) -> None:
    env = start(probe, 0)
    if env.action_format() == "tools" and len(play(probe, env, make_rng(0), 1)[0]) == 1:
        _log.warning(
            "no tool was called, so what the tools do is not checked: the game has no random_action, and calls of our "
            "own are drawn only where has_state is true and a drawn call fits a schema; write random_action(rng)"
        )


def _plan(probe: Probe, env: World, horizon: int) -> Any:
    return probe.call(f"optimal_actions(horizon={horizon})", lambda: env.optimal_actions(horizon=horizon))


def _solve_by_best_play(probe: Probe, env: World) -> bool:
    for num_left in range(max(HORIZON, env.max_solution), 0, -1):
        plan, names = _plan(probe, env, num_left), env.action_names()
        if plan is None:
            return False
        is_legal = names is None or set(plan) <= set(names)
        if not probe.expect(
            is_legal and 0 < len(plan) <= num_left,
            "optimal actions",
            f"{describe(plan)} is empty, illegal, or longer than horizon={num_left}",
            "return legal actions, at least one and at most horizon, or None",
        ):
            return False
        _, _, terminated, _, info = probe.step(env, plan[0])
        if terminated:
            return bool(info.get("success", False))
    return False


_CHECKS: dict[str, Callable[[Probe, int], str | None]] = {
    "reset": check_reset, "step": check_step, "unknown actions": check_unknown_action,
    "determinism": _check_determinism, "siblings": _check_siblings, "state_dict": _check_state_dict,
    "pickling": _check_pickling, "splits": _check_splits, "optimal actions": _check_optimal_actions,
}  # fmt: skip
