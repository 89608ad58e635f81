"""Rewards from a user's Python function, for any game."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lit_agentrl.checks import require, require_one_of
from lit_agentrl.envs.tasks.functions import get_function_name, list_arguments
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.base import Rewards, Shaping, Stage

# arguments that a function may take
GIVEN = ("reply", "actions", "observation", "points", "is_valid", "turn", "is_last", "success", "episode")


@dataclass(kw_only=True)
class Function(Shaping):
    """``weight * fn(...)`` for each turn, added to its reward or replacing it.

    ``fn`` is called with the arguments that it names among ``reply`` (the whole text of the policy), ``actions`` (the
    actions played), ``observation`` (the last observation), ``points`` (the game's reward of the turn), ``is_valid``
    (the reply could be played), ``turn`` (counts from 0), ``is_last``, ``success`` (of the episode) and ``episode``
    (`lit_agentrl.episode.Episode`; do not modify it).  Constants are set next to its ``_target_``.  It returns a finite
    number or a bool.

    Args:
        fn: the function.
        per: ``turn`` calls it for each turn, ``episode`` for the last turn only.
        replaces: its rewards replace those of the game.
        keep_penalties: if it replaces them, add the protocol penalties.

    Raises:
        ValueError: a value is out of range, or the function takes other arguments; the message names the option.
    """

    fn: Callable[..., float]
    weight: float = 1.0
    per: Literal["turn", "episode"] = "turn"
    replaces: bool = False
    keep_penalties: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of("per", self.per, ("turn", "episode"))
        for name in ("replaces", "keep_penalties"):
            require(isinstance(getattr(self, name), bool), name, getattr(self, name), "true or false")
        if not self.keep_penalties and not self.replaces:
            raise ValueError("keep_penalties=false has no effect under replaces=false; leave it out")
        self._names = select_argument_names(self.fn, GIVEN)
        self.stage = Stage.TASK if self.replaces else Stage.SHAPING  # type: ignore[misc]  # an option decides it

    def score(self, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        """Return the function's value of each turn; 0 where it is not called."""
        return [
            [
                0.0 if self.per == "episode" and k + 1 < len(e.turns) else self._compute_score(e, k)
                for k in range(len(e.turns))
            ]
            for e in episodes
        ]

    def apply(self, rewards: Rewards, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        """Add the weighted values to the rewards, or replace them."""
        if self.replaces:
            rewards = [
                [t.reward_parts.get("invalid", 0.0) * self.keep_penalties for t in e.turns] for e in episodes
            ]
        return super().apply(rewards, episodes, iteration=iteration)

    def _compute_score(self, episode: Episode, index: int) -> float:
        turn = episode.turns[index]
        available = {
            "reply": turn.reply_text, "actions": list(turn.actions), "observation": turn.observation,
            "points": turn.reward, "is_valid": turn.is_valid, "turn": index,
            "is_last": index + 1 == len(episode.turns), "success": episode.success, "episode": episode,
        }  # fmt: skip
        return call_function(self.fn, self._names, available, episode, f"turn {index + 1}")


def select_argument_names(fn: Callable[..., float], given: Sequence[str]) -> list[str]:
    """Return the arguments of a user's function that a reward part gives.

    Raises:
        ValueError: ``fn`` is no function, or needs an argument that is not among ``given``.
    """
    require(callable(fn), "fn", fn, "a function: a _target_ with _partial_: true")
    names = list_arguments(fn, "fn")
    if unknown := [name for name, is_needed in names.items() if is_needed and name not in given]:
        raise ValueError(
            f"fn={get_function_name(fn)} asks for {unknown[0]}; it may ask for {', '.join(given)}, and "
            "constants are set next to its _target_"
        )
    return [name for name in names if name in given]


def call_function(
    fn: Callable[..., float], names: Sequence[str], given: Mapping[str, Any], episode: Episode, place: str
) -> float:
    """Return the value of a user's function, called with the arguments that it names.

    Raises:
        ValueError: it raises an error, or returns no finite number; the message names episode and ``place``.
    """
    try:
        value = fn(**{name: given[name] for name in names})
        if isinstance(value, str) or not math.isfinite(value):
            raise ValueError(f"it returned {value!r}, and must return a finite number")
    except (Exception, SystemExit) as error:  # user code may raise anything
        message = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(
            f"fn={get_function_name(fn)} fails on {episode.task_name} instance seed {episode.instance_seed}, "
            f"{place} ({message}); mend the function"
        ) from error
    return float(value)
