"""The interface of text games; only ``reset`` and ``step`` are required."""

from __future__ import annotations

import inspect
import string
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from lit_agentrl.actions import Actions, Format, ToolSpec
from lit_agentrl.envs.splits import SPLITS

# gymnasium requires spaces; they reject nothing.
_TEXT = gymnasium.spaces.Text(max_length=65_536, min_length=0, charset=string.printable + "√")


class World(gymnasium.Env[str, str], ABC):
    """A game played in text.

    A game of your own needs only ``reset`` and ``step``.  Everything else has a default that stands for "unknown" and
    is reported so: random play (the chance level), best play (the oracle level), the hash of the state, the rules.
    ``checker.check_env`` tests whether what a game does provide follows the contract.

    Attributes:
        split: ``train``, ``val`` or ``test``; every instance (room, map, question) belongs to exactly one.
        max_solution: most actions that best play needs on any instance, expected slips not counted.
        instances: the number of instances, where it is known and small; a single instance cannot be split.
        has_state: whether ``state_dict`` and ``load_state_dict`` are exact and the game can be pickled.
    """

    metadata: dict[str, Any] = {"render_modes": []}
    observation_space: gymnasium.Space[str] = _TEXT
    action_space: gymnasium.Space[str] = _TEXT
    max_solution: int = 1
    instances: int | None = None
    has_state: bool = False
    _last_seed: int | None = None  # of the last reset that was given one
    _later_seeds: np.random.Generator | None = None  # of the resets without a seed since then

    def __init__(self, *, split: str = "train") -> None:
        if split not in SPLITS:
            raise ValueError(f"split={split!r} is unknown; choose one of {', '.join(SPLITS)}")
        self.split = split

    @classmethod
    def home(cls, options: Mapping[str, Any]) -> Path:
        """Return the file next to which the measured levels of the game are stored.

        By default the file of the game's class; a game that reads data returns the file of its data.
        """
        return Path(inspect.getfile(cls))

    @classmethod
    def identity(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what identifies the game across runs, in JSON values.

        By default its options; a game that reads files returns their content's hash in place of their paths.
        """
        return options

    @abstractmethod
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: picks the instance within the split; all episodes of a group share it.  None: see `choose_seed`.
            options: ``{"noise_seed": int}`` seeds everything random after the reset; default: ``seed``.

        Returns:
            The first observation, and ``info``, with ``instance_id`` where it is known (same content, same id), and
            with ``scenario`` and ``scenario_tasks`` where the task is one of several of a scenario.
        """

    def choose_seed(self, seed: int | None) -> int:
        """Return the seed of a reset, or draw one where it is None.

        Resets without a seed are determined by the last reset that was given one; before that they are random.
        """
        if seed is not None:
            self._last_seed, self._later_seeds = seed, None
            return seed
        if self._later_seeds is None:
            self._later_seeds = np.random.default_rng(self._last_seed)
        return int(self._later_seeds.integers(2**31))

    def locate(self, seed: int) -> int | None:
        """Return the number of the instance that a seed picks, from 0 on.

        A game that returns numbers must draw each of its ``instances``.  None: they have no numbers.
        """
        return None

    @abstractmethod
    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one action.

        Returns:
            ``(observation, reward, terminated, truncated, info)``.  ``info`` has ``success`` when the game is over.
            It may have ``action_is_valid`` (default True), ``reward_parts`` (terms by name, whose sum is the reward)
            ``cost`` (a number outside the reward, which a constrained objective may limit) and ``counts`` (numbers by
            name for metrics, which are summed over the episode, such as ``failed_calls``).
        """

    @property
    def rules(self) -> str:
        """Instructions for a policy that has never seen the game: goal, symbols, actions, rewards."""
        return ""

    @property
    def system_text(self) -> str | None:
        """Text that replaces the name and the rules in the system message; None: keep them."""
        return None

    def action_names(self) -> list[str] | None:
        """Return the legal actions of this instance; None where actions have no names."""
        return None

    def tools(self) -> Sequence[ToolSpec]:
        """Return the tools that can be called, in the order of the prompt."""
        return ()

    def action_format(self) -> Format:
        """Return the format of actions: ``names``, ``text`` or ``tools``.

        ``names``: one of :meth:`action_names`; ``text``: any text; ``tools``: a call of a tool.  With text and tools a
        reply is one action, which is neither split nor stripped.  A call arrives as the canonical JSON of an
        `actions.ToolCall`.
        """
        return "tools" if self.tools() else "text" if self.action_names() is None else "names"

    def actions(self) -> Actions:
        """Return the actions that are possible now."""
        kind = self.action_format()
        names = self.action_names() if kind == "names" else None
        return Actions(kind, tuple(names or ()), tuple(self.tools()) if kind == "tools" else ())

    def random_action(self, rng: np.random.Generator) -> str | None:
        """Return a legal action, uniform over :meth:`action_names`; None: random play is unknown."""
        names = self.action_names()
        return names[int(rng.integers(len(names)))] if names else None

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """Return the best play from here, at most ``horizon`` actions.

        In a game with noise, play the first action and call this method again.  None: best play is unknown, or the game
        can no longer be solved.
        """
        return None

    def best_thought(self) -> str | None:
        """Return the reasoning that best play would write here before acting; None: unknown."""
        return None

    def state_key(self) -> int:
        """Return a stable 63-bit hash of the state without its noise, for grouping equal states.

        0: unknown.
        """
        return 0

    def rekey(self, noise_seed: int) -> None:
        """Seed everything random from now on with ``noise_seed``.

        It is called where an episode branches off a turn of another one.  By default nothing is seeded: all branches
        see the same random draws.
        """
        return None

    def interrupt(self) -> None:
        """End a `reset` or `step` that waits in another thread, because the run ends.

        The call that waited then raises an error, and `close` is called.  By default nothing is ended.
        """
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the future depends on, in plain JSON values, where ``has_state``."""
        raise NotImplementedError(f"{type(self).__name__} has no state to save")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state_dict` returned, exactly, where ``has_state``."""
        raise NotImplementedError(f"{type(self).__name__} has no state to load")
