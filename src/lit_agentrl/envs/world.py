"""The least that a run asks of a game: ``reset``, ``step`` and ``close``; all else may stay unknown."""

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

# Declared because gymnasium wants spaces; nothing is ever refused by them.
_TEXT = gymnasium.spaces.Text(max_length=65_536, min_length=0, charset=string.printable + "√")


class World(gymnasium.Env[str, str], ABC):
    """A game played in text.  One of one's own may implement ``reset`` and ``step`` alone.

    What it does not say counts as unknown and is reported so: random play and best play (chance and oracle),
    the hash of its state, its rules.  ``checker.check_env`` is the specification of what it does say.

    Attributes:
        split: ``train``, ``val`` or ``test``; every instance belongs to exactly one.
        max_solution: most actions the best play of any instance needs (expected slips not counted).
        instances: how many there are, where that is known and small; one instance cannot be split.
        has_state: whether ``state_dict`` and ``load_state_dict`` are exact and the game can be pickled.
    """

    metadata: dict[str, Any] = {"render_modes": []}
    observation_space: gymnasium.Space[str] = _TEXT
    action_space: gymnasium.Space[str] = _TEXT
    max_solution: int = 1
    instances: int | None = None
    has_state: bool = False

    def __init__(self, *, split: str = "train") -> None:
        if split not in SPLITS:
            raise ValueError(f"split={split!r} is unknown; choose one of {', '.join(SPLITS)}")
        self.split = split

    @classmethod
    def home(cls, options: Mapping[str, Any]) -> Path:
        """The file beside which the levels of a game of these options lie: that of its class, or of its data."""
        return Path(inspect.getfile(cls))

    @classmethod
    def identity(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """What makes it the same game in another run, in JSON values: its options, or what files of theirs hold."""
        return options

    @abstractmethod
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Starts an episode.

        Args:
            seed: picks the instance within the split; shared by the members of a group.
            options: ``{"noise_seed": int}`` keys what is random after the reset; default: ``seed``.

        Returns:
            The first observation, and ``info``, with ``instance_id`` where it is known (equal content, equal id).
        """

    @abstractmethod
    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Plays one action.

        Returns:
            ``(observation, reward, terminated, truncated, info)``, the reward in points.  ``info`` has
            ``success`` when the game is over, and may have ``action_is_valid`` (default True),
            ``reward_parts`` (points by name, which sum to the reward) and ``cost`` (a number that is no part of the
            reward, and that training may hold within a limit).
        """

    @property
    def rules(self) -> str:
        """Instructions for a policy that has never seen the game: goal, symbols, actions, rewards."""
        return ""

    @property
    def system_text(self) -> str | None:
        """What opens the system message in place of the game's name and rules; None: these."""
        return None

    def action_names(self) -> list[str] | None:
        """Names of the legal actions of this instance; None where actions are no names."""
        return None

    def tools(self) -> Sequence[ToolSpec]:
        """Where actions are calls: the tools, in the order in which they are told."""
        return ()

    def action_format(self) -> Format:
        """What :meth:`step` takes: ``names`` (one of :meth:`action_names`), ``text`` (any) or ``tools`` (calls).

        Of text and tools one reply is one action: it is neither split nor stripped.  A call arrives as the
        canonical JSON of an `actions.ToolCall`.
        """
        return "tools" if self.tools() else "text" if self.action_names() is None else "names"

    def actions(self) -> Actions:
        """What can be done now."""
        kind = self.action_format()
        names = self.action_names() if kind == "names" else None
        return Actions(kind, tuple(names or ()), tuple(self.tools()) if kind == "tools" else ())

    def random_action(self, rng: np.random.Generator) -> str | None:
        """A legal action, uniform over :meth:`action_names`; None: how to play at random is not known."""
        names = self.action_names()
        return names[int(rng.integers(len(names)))] if names else None

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """Best play from here with ``horizon`` actions left, at most that many.

        In a game with noise play the first and ask again.  None: no best play is known, or the game can no
        longer be solved.
        """
        return None

    def best_thought(self) -> str | None:
        """What best play would write down here before it acts; None: no form of such thoughts is known."""
        return None

    def state_key(self) -> int:
        """Stable 63-bit hash of the state (noise excluded), for grouping equal states; 0: not known."""
        return 0

    def rekey(self, noise_seed: int) -> None:
        """What is random from now on is keyed by ``noise_seed``: an episode goes on from a turn of another one.

        A game that does not say how meets in all of them the draws of the first.
        """
        return None

    def state_dict(self) -> dict[str, Any]:
        """Everything the future depends on, in plain JSON values, where ``has_state``."""
        raise NotImplementedError(f"{type(self).__name__} has no state to save")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues exactly where :meth:`state_dict` was taken, where ``has_state``."""
        raise NotImplementedError(f"{type(self).__name__} has no state to load")
