"""Environments of one game in one place; imports neither torch nor an engine."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from lit_agentrl.actions import Actions, ToolSpec
from lit_agentrl.checks import blame
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.hosting import Hosting
from lit_agentrl.envs.world import World
from lit_agentrl.rollout.worlds.branch_point import BranchPoint, restore_game
from lit_agentrl.rollout.worlds.validation import (
    OF_STEP,
    check_returned,
    is_solved,
    make_readable,
    read_cost,
    read_counts,
    read_number,
    read_reward_parts,
    read_scenario,
)

_log = logging.getLogger(__name__)
Probes = Mapping[str, Callable[[Any, str], float]]
Look = Callable[[World, str], str | None]  # called with an environment and its observation


@dataclass
class Step:
    """One action that was played, with its reward."""

    action: str
    reward: float
    reward_parts: dict[str, float]
    is_valid: bool
    cost: float | None = None
    counts: dict[str, float] = field(default_factory=dict)


@dataclass
class Answer:
    """The answer of a game to a reset, or to the actions of one reply.

    Attributes:
        observation: Current observation; None if unchanged.
        actions, state_key, probes: Those of the current state, unless the game is over.
        steps: The actions played, up to one that ended or broke the game.
        error: The error that the game raised; the episode has failed.
        timed_out: Whether ``error`` is a timeout, including a `TimeoutError` raised by the game itself.
        seconds, calls: Duration and number of resets and steps.
        instance_id, scenario, scenario_tasks, rules, system_text: Set after a reset.
        result: Result of a `Look`.
    """

    observation: str | None = None
    actions: Actions | None = None
    state_key: int = 0
    probes: dict[str, float] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    ended: bool = False
    success: bool = False
    error: str = ""
    timed_out: bool = False
    seconds: float = 0.0
    calls: int = 0
    instance_id: str = ""
    scenario: str = ""
    scenario_tasks: int = 0
    rules: str = ""
    system_text: str | None = None
    result: str | None = None
    state: dict[str, Any] | None = None  # current state, if requested and available

    def to_plain(self) -> dict[str, Any]:
        """Return plain JSON values, because data from a worker process must not execute code."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Answer:
        """Create an answer from the result of :meth:`to_plain`."""
        if (actions := plain["actions"]) is not None:
            tools = tuple(ToolSpec(**tool) for tool in actions["tools"])
            plain["actions"] = Actions(actions["format"], tuple(actions["names"]), tools)
        plain["steps"] = [Step(**step) for step in plain["steps"]]
        return cls(**plain)


class Environments:
    """The environments of one game by episode; they are reused for further episodes.

    Args:
        task: The game.
        probes: Functions measured before every turn of training episodes.
    """

    def __init__(self, task: Task, probes: Probes) -> None:
        self._task = task
        self._probes = probes
        self.envs: dict[int, tuple[str, World]] = {}  # by episode: split and environment
        self._shown: dict[int, str] = {}
        self._spare: dict[str, list[World]] = {}
        self._saving: set[int] = set()  # episodes from which others may continue

    def reset(
        self,
        key: int,
        split: str,
        seed: int,
        noise_seed: int,
        branch_point: BranchPoint | None = None,
        saves: bool = False,
    ) -> Answer:
        """Start episode ``key``; errors of a user's game fail that episode, not the run.

        ``branch_point`` is the point from which the episode continues; random draws from there on are keyed by
        ``noise_seed``.  With ``saves`` the answers contain the state of a game that has one.
        """
        spare = self._spare.setdefault(split, [])
        answer = Answer(calls=1)
        try:
            env = spare.pop() if spare else self._task.make(split)
            self.envs[key] = (split, env)
            started = time.perf_counter()
            try:
                first = noise_seed if branch_point is None else branch_point.played[0][0]
                given = env.reset(seed=seed, options={"noise_seed": first})
                answer.observation, info = check_returned("reset", given, "observation, info")
                if branch_point is not None:
                    answer.calls += restore_game(env, branch_point, noise_seed)
                    answer.observation = branch_point.observation
            finally:
                answer.seconds = time.perf_counter() - started
            if saves:
                self._saving.add(key)
            self._shown[key] = answer.observation = make_readable(answer.observation)
            answer.instance_id = str(info.get("instance_id", ""))
            answer.scenario, answer.scenario_tasks = read_scenario(info)
            answer.rules, answer.system_text = env.rules, env.system_text
            self._describe_state(key, answer)
        except (Exception, SystemExit) as error:
            answer.error, answer.timed_out = (
                f"{type(error).__name__}: {error}",
                isinstance(error, TimeoutError),
            )
        return answer

    def step(self, key: int, actions: Sequence[str]) -> Answer:
        """Play the actions of one reply, up to the end of the game."""
        _, env = self.envs[key]
        answer, results = Answer(), []  # type: Answer, list[str]
        try:
            shows_all = len(actions) > 1 and env.action_format() == "tools"
            for action in actions:
                answer.calls += 1
                started = time.perf_counter()
                try:
                    given = env.step(action)
                finally:
                    answer.seconds += time.perf_counter() - started
                observation, reward, terminated, truncated, info = check_returned("step", given, OF_STEP)
                # every tool result is shown, but only the last state after moves
                results.append(make_readable(observation))
                answer.observation = self._shown[key] = "\n".join(results) if shows_all else results[-1]
                reward = read_number("reward", reward)
                parts = read_reward_parts(info, reward)
                is_valid = bool(info.get("action_is_valid", True))
                answer.steps.append(Step(action, reward, parts, is_valid, read_cost(info), read_counts(info)))
                if terminated or truncated:
                    answer.ended, answer.success = True, is_solved(info)
                    return answer
            self._describe_state(key, answer)
        except (Exception, SystemExit) as error:  # as in reset()
            answer.error, answer.timed_out = (
                f"{type(error).__name__}: {error}",
                isinstance(error, TimeoutError),
            )
        return answer

    def look(self, key: int, function: Look) -> Answer:
        """Call a function on the environment of an episode, and return its result."""
        try:
            return Answer(result=function(self.envs[key][1], self._shown[key]))
        except (Exception, SystemExit) as error:  # as in reset()
            return Answer(error=f"{type(error).__name__}: {error}")

    def release(self, key: int, *, is_broken: bool) -> None:
        """Release the environment of an episode that is over; a failed one is not reused."""
        if key not in self.envs:  # it could not be created
            return
        split, env = self.envs.pop(key)
        self._shown.pop(key, None)
        self._saving.discard(key)
        if is_broken:
            _close(env)
        else:
            self._spare[split].append(env)

    def without(self, key: int) -> Environments:
        """Return all environments but a hung one, as a new object.

        What the hung environment does later changes only this old object, and reaches no episode.
        """
        others = Environments(self._task, self._probes)
        others.envs, others._shown, others._spare = dict(self.envs), dict(self._shown), self._spare
        others.envs.pop(key, None)  # it may hang before it is stored, or when it is released
        others._shown.pop(key, None)
        others._saving = set(self._saving)
        return others

    def interrupt(self) -> None:
        """End what the environments wait for in another thread."""
        for _, env in list(self.envs.values()):
            env.interrupt()

    def close(self) -> None:
        """Close all environments; the next episodes make new ones."""
        for env in [
            *(env for _, env in self.envs.values()),
            *(e for spare in self._spare.values() for e in spare),
        ]:
            _close(env)
        self.envs.clear()
        self._spare.clear()

    def _describe_state(self, key: int, answer: Answer) -> None:
        split, env = self.envs[key]
        answer.actions, answer.state_key = env.actions(), int(env.state_key())
        if key in self._saving and env.has_state:
            answer.state = copy.deepcopy(env.state_dict())  # a copy: the game may change parts of it
        if split == "train":
            for name, probe in self._probes.items():
                with blame(f"reward.{name}"):
                    answer.probes[name] = float(probe(env, self._shown[key]))


def _close(env: World) -> None:
    try:
        env.close()
    except Exception as error:  # a game's own code; its episode is over, so the run continues
        _log.warning("a game of class %s could not be closed: %s", type(env).__name__, error)


@dataclass(frozen=True)
class Call:
    """A call to an environment."""

    kind: Literal["reset", "step", "look", "release"]
    key: int
    arguments: tuple[object, ...] = ()


def random_action(env: World, observation: str, *, rng: np.random.Generator) -> str | None:
    """Return a legal action; None if the game cannot choose one at random.

    Raises:
        ValueError: The game returned something else.
    """
    action = env.random_action(rng)
    if not isinstance(action, str | None):
        raise ValueError(f"random_action must give a text or None, not {action!r}")
    return action


def serve(environments: Environments, call: Call) -> Answer | None:
    """Execute a call."""
    if call.kind == "release":
        environments.release(call.key, is_broken=bool(call.arguments[0]))
        return None
    return getattr(environments, call.kind)(call.key, *call.arguments)  # type: ignore[no-any-return]


def get_time_limit(hosting: Hosting, call: Call) -> float | None:
    """Return the time limit of a call in seconds.

    A look, and closing a game that failed, have the limit of a step.
    """
    return hosting.reset_timeout_s if call.kind == "reset" else hosting.step_timeout_s


def describe_restart_limit(hosting: Hosting) -> str:
    """Return the error for a pool whose workers must not be replaced any more."""
    return (
        f"hosting.restarts={hosting.restarts} workers were replaced, since they died or hung; no more are: mend the "
        "game, or raise it"
    )


def make_timeout_answer(call: Call, limit: float) -> Answer:
    """Return the answer for a game that has timed out."""
    option = "reset_timeout_s" if call.kind == "reset" else "step_timeout_s"
    return Answer(error=f"hosting.{option}={limit:g} passed without an answer", timed_out=True)
