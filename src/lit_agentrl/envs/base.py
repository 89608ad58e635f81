"""Base class of games with state, and `Task`, a game with its limits."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from gymnasium.error import ResetNeeded

from lit_agentrl.actions import BadCall, ToolCall, read_call
from lit_agentrl.checks import blame, name_errors, require, require_whole
from lit_agentrl.envs.faults import Faults, FaultyWorld
from lit_agentrl.envs.hosting import Hosting
from lit_agentrl.envs.splits import keyed_rng, stable_hash
from lit_agentrl.envs.world import World

_NOISE = 1  # purpose key of an episode's slips and payoffs
_BRANCH = 2  # purpose key of the same draws after an episode branched off another one


@dataclass(frozen=True)
class Outcome:
    """Effect of one action.

    Attributes:
        reward_parts: the terms of the reward, by name.
        terminated: whether the game is over.
        success: whether it is solved.
        action_is_valid: whether the action was legal.
        cost: a cost outside the reward; None: the game has no cost.
        counts: what the action counts for metrics, by name, 0 included, such as ``failed_calls``.
    """

    reward_parts: dict[str, float] = field(default_factory=dict)
    terminated: bool = False
    success: bool = False
    action_is_valid: bool = True
    cost: float | None = None
    counts: dict[str, float] = field(default_factory=dict)


class TextEnv(World):
    """Base class of games that can save and restore their whole state.

    A subclass implements one hook each for drawing an instance, showing it, playing an action, saving and loading.
    This class does the seeding, the matching of actions, the content of ``info`` and exact saving.  ``_noise`` is the
    generator of everything random after the reset (slips, payoffs).
    """

    has_state = True

    def __init__(self, *, split: str = "train") -> None:
        super().__init__(split=split)
        self._noise = np.random.default_rng(0)
        self._is_running = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: picks the instance (room, map, arms) within the split; all episodes of a group share it.  None: drawn,
                as in Gymnasium.
            options: ``{"noise_seed": int}`` seeds the slips and sampled payoffs; default: ``seed``.

        Returns:
            The first observation, and ``info`` with ``instance_id`` (same content, same id).

        Raises:
            ValueError: a negative seed, or an unknown option.
        """
        options = options or {}
        unknown = sorted(set(options) - {"noise_seed"})
        if unknown:
            raise ValueError(f"reset: option {unknown[0]!r} is unknown; the only option is 'noise_seed'")
        instance_seed = self.choose_seed(None if seed is None else _check_seed("seed", seed))
        noise_seed = _check_seed("noise_seed", options.get("noise_seed", instance_seed))
        content = self._draw_instance(instance_seed)
        # Both seeds key it, so that equal noise seeds of different instances share no random draws.
        self._noise = keyed_rng(instance_seed, noise_seed, _NOISE)
        self._is_running = True
        instance_id = f"{type(self).__name__}-{stable_hash(content):016x}"
        return self._observe(), {"instance_id": instance_id, **self._extra_info()}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one action; an unknown or refused one changes nothing and is marked invalid.

        Returns:
            ``(observation, reward, terminated, truncated, info)``; ``reward`` is the sum of ``info["reward_parts"]``;
            ``truncated`` is always False because the caller enforces the budgets.

        Raises:
            ResetNeeded: before the first reset or after the game ended.
        """
        if not self._is_running:
            raise ResetNeeded("step: no game is running; call reset(seed=...) first")
        name = self._match(action)
        played = Outcome(action_is_valid=False) if name is None else self._play(name)
        outcome = Outcome(action_is_valid=False) if isinstance(played, BadCall) else played
        self._is_running = not outcome.terminated
        info = {
            "success": outcome.success,
            "action_is_valid": outcome.action_is_valid,
            "reward_parts": outcome.reward_parts,
            **({} if outcome.cost is None else {"cost": outcome.cost}),
            **({"counts": outcome.counts} if outcome.counts else {}),
            **self._extra_info(),
        }
        shown = played.message if isinstance(played, BadCall) else self._observe()
        return shown, float(sum(outcome.reward_parts.values())), outcome.terminated, False, info

    def rekey(self, noise_seed: int) -> None:
        """Seed everything random from now on with ``noise_seed`` alone."""
        self._noise = keyed_rng(_check_seed("noise_seed", noise_seed), 0, _BRANCH)

    def state_key(self) -> int:
        """Return a stable 63-bit hash of the state without its noise, for grouping equal states."""
        return stable_hash(type(self).__name__ + json.dumps(self._get_state(), sort_keys=True))

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the future depends on, with the noise generator, in plain JSON values."""
        return {
            "game": self._get_state(),
            "noise": self._noise.bit_generator.state,
            "is_running": self._is_running,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore exactly the state that :meth:`state_dict` returned."""
        self._set_state(state["game"])
        self._noise.bit_generator.state = state["noise"]
        self._is_running = state["is_running"]

    @abstractmethod
    def _draw_instance(self, seed: int) -> str:
        """Set up the instance that ``seed`` addresses within the split, and return its content."""

    @abstractmethod
    def _observe(self) -> str:
        """Return the current observation."""

    @abstractmethod
    def _play(self, action: str) -> Outcome | BadCall:
        """Play a legal action, spelt as in ``action_names``, or any text where actions are free.

        A `BadCall`, which `call_tool` returns for what a validator refuses, is an invalid action; its message is shown.
        """

    @abstractmethod
    def _get_state(self) -> dict[str, Any]:
        """Return the state of the game in plain JSON values, without its noise."""

    @abstractmethod
    def _set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``_get_state`` returned."""

    def _extra_info(self) -> dict[str, Any]:
        """Return further entries of ``info``, for the reset and every step."""
        return {}

    def _match(self, action: str) -> str | None:
        if self.action_format() == "tools":
            call = read_call(action, self.tools())
            return str(call) if isinstance(call, ToolCall) else None
        names = self.action_names()
        if names is None:
            return action
        return next((name for name in names if name.lower() == action.lower()), None)


def _check_seed(name: str, seed: object) -> int:
    if isinstance(seed, (int, np.integer)) and seed >= 0:
        return int(seed)
    raise ValueError(f"reset: {name}={seed!r} is invalid: an integer >= 0 (it addresses the draws)")


class TooFewActions(ValueError):
    """Best play of a game needs more actions than the limits of its task allow."""

    def __init__(self, subject: str, needed: int, task: Task) -> None:
        self._turns = max(task.max_turns, -(-needed // task.max_actions_per_turn))
        self._actions = max(task.max_actions, needed)
        changes = [
            f"{name}={value}"
            for name, value in (("env.max_turns", self._turns), ("env.max_actions", self._actions))
            if value != getattr(task, name.removeprefix("env."))
        ]
        super().__init__(
            f"{subject} must be a whole number from 1 to {task.action_budget}, the actions of an episode: "
            f"max_turns={task.max_turns} with max_actions_per_turn={task.max_actions_per_turn}, "
            f"max_actions={task.max_actions}; set {' '.join(changes)}"
        )

    def extend_limits(self, task: Task) -> Task:
        """Return the task with limits that allow best play."""
        return replace(task, max_turns=self._turns, max_actions=self._actions)


@dataclass(frozen=True)
class Task:
    """A game and the limits under which it is played.

    Attributes:
        name: the stem of its YAML file; names the game in metrics and reports.
        game: returns an environment when called with ``split=``.
        max_turns: replies per episode.
        max_actions_per_turn: actions played from one reply; further ones are ignored.
        max_actions: actions per episode.
        invalid_penalty: added to the reward for an invalid reply (by the scheduler), <= 0.
        hosting: where its environments run, and under which limits.
        faults: how often actions fail, options of `Faults` by name; None: never.
        user: wraps the game in a world with a user, who answers questions; None: there is no user.
    """

    name: str
    game: Callable[..., World]
    max_turns: int = 5
    max_actions_per_turn: int = 5
    max_actions: int = 10
    invalid_penalty: float = -0.1
    hosting: Hosting = Hosting()
    faults: Mapping[str, Any] | None = None
    user: Callable[[World], World] | None = None

    def __post_init__(self) -> None:
        require(isinstance(self.name, str) and bool(self.name), "name", self.name, "a non-empty text")
        require(
            not set("/\\\0") & set(self.name),
            "name",
            self.name,
            "a text without slashes, because it names files",
        )
        require(callable(self.game), "game", self.game, "a _target_ with _partial_: true")
        require_whole("max_turns", self.max_turns, 1)
        require_whole("max_actions", self.max_actions, 1)
        require_whole("max_actions_per_turn", self.max_actions_per_turn, 1, self.max_actions)
        require(self.invalid_penalty <= 0, "invalid_penalty", self.invalid_penalty, "a number <= 0")
        self.make_faults()
        require(self.user is None or callable(self.user), "user", self.user, "null, or +env/user=NAME")
        for name in ("faults", "user"):
            if getattr(self, name) is not None and self.play_class is not None:
                raise ValueError(
                    f"{name} needs a game that is played action by action, not a program; leave it out"
                )

    @property
    def play_class(self) -> Callable[..., Any] | None:
        """Class of its episodes in play; None: `rollout.episode.EpisodeInPlay`."""
        return None

    @property
    def remedy(self) -> str:
        """Advice for the message that every episode that was tried failed."""
        return "lit_agentrl.envs.checker.check_env lists all that a game of your own breaks"

    @property
    def action_budget(self) -> int:
        """Most actions an episode can hold under all three limits."""
        return min(self.max_actions, self.max_turns * self.max_actions_per_turn)

    def make_faults(self) -> Faults | None:
        """Return the faults that ``faults`` describes, or None.

        Raises:
            ValueError: it is no mapping, or has an unknown or invalid option.
        """
        if self.faults is None:
            return None
        valid = [each.name for each in fields(Faults)]
        is_known = isinstance(self.faults, Mapping) and {*self.faults} <= {*valid}
        require(is_known, "faults", self.faults, f"null, or a mapping of some of {', '.join(valid)}")
        with name_errors("faults"):
            return Faults(**self.faults)

    def make(self, split: str) -> World:
        """Create an environment of this split.

        Raises:
            ValueError: it is no text game, or its instances may need more actions than the budget allows.
        """
        with blame("game", f"game {self.name}"):
            try:
                env = self.game(split=split)
            except TypeError as error:
                text = f"{error}; write reset and step, and let __init__ take split="
                raise TypeError(text) from error
        require(isinstance(env, World), "game", type(env).__name__, "a subclass of World, such as TextEnv")
        require_whole("game.max_solution", env.max_solution, 1)
        asks = ""
        if self.user is not None:
            with name_errors("user"):
                env = self.user(env)
            asks = ", questions to the user included,"
        if env.max_solution > self.action_budget:
            raise TooFewActions(f"game.max_solution={env.max_solution}{asks}", env.max_solution, self)
        faults = self.make_faults()
        return env if faults is None else FaultyWorld(env, faults)


@dataclass(frozen=True)
class Mixture:
    """Several games in one run.

    Attributes:
        weights: task name -> relative share of the prompts; a weight of 0 excludes the game.
    """

    weights: Mapping[str, float]

    def __post_init__(self) -> None:
        weights = {str(name): float(weight) for name, weight in self.weights.items()}
        for name, weight in weights.items():
            is_weight = np.isfinite(weight) and weight >= 0
            require(bool(is_weight), f"weights.{name}", weight, "a finite number >= 0; 0 leaves the game out")
        played = {name: weight for name, weight in weights.items() if weight}
        require(bool(played), "weights", weights, "at least one game with a weight above 0")
        object.__setattr__(self, "weights", played)

    @property
    def shares(self) -> dict[str, float]:
        """The weights, normalised to sum to 1."""
        total = sum(self.weights.values())
        return {name: weight / total for name, weight in self.weights.items()}
