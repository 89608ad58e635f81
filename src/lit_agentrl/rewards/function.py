"""Points from a Python function of one's own, beside any game."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from lit_agentrl.checks import require, require_one_of
from lit_agentrl.envs.tasks.functions import get_function_name, list_arguments
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.base import Points, Shaping, Stage

# what a function may ask for
GIVEN = ("reply", "actions", "observation", "points", "is_valid", "turn", "is_last", "success", "episode")


@dataclass(kw_only=True)
class Function(Shaping):
    """``weight * fn(...)`` for each turn, added to its points or in their place.

    ``fn`` is called by name with those of its arguments that are ``reply`` (all that the policy wrote), ``actions``
    (those played), ``observation`` (what it had read), ``points`` (the game's, of the turn), ``is_valid`` (the reply
    could be played), ``turn`` (0 is the first), ``is_last``, ``success`` (of the episode) and ``episode``
    (`lit_agentrl.episode.Episode`, to be left as it is).  Constants are set beside its ``_target_``.  It returns a
    finite number, or True or False.

    Args:
        fn: the function.
        per: ``turn``: it is called for each; ``episode``: for the last turn alone.
        replaces: its points stand in place of the game's.
        keep_penalties: protocol penalties stay beside them.

    Raises:
        ValueError: a value out of range, or a function that asks for something else, naming the option.
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
        require(callable(self.fn), "fn", self.fn, "a function: a _target_ with _partial_: true")
        self._names = list_arguments(self.fn, "fn")
        if unknown := [name for name, is_needed in self._names.items() if is_needed and name not in GIVEN]:
            raise ValueError(
                f"fn={get_function_name(self.fn)} asks for {unknown[0]}; it may ask for {', '.join(GIVEN)}, and "
                "constants are set beside its _target_"
            )
        self.stage = Stage.TASK if self.replaces else Stage.SHAPING  # type: ignore[misc]  # an option decides it

    def score(self, episodes: Sequence[Episode], *, iteration: int) -> Points:
        """Of each turn; 0 where it is not asked."""
        return [
            [
                0.0 if self.per == "episode" and k + 1 < len(e.turns) else self._of(e, k)
                for k in range(len(e.turns))
            ]
            for e in episodes
        ]

    def apply(self, points: Points, episodes: Sequence[Episode], *, iteration: int) -> Points:
        """The points with its own, or its own alone."""
        if self.replaces:
            kept = [
                [t.reward_parts.get("invalid", 0.0) * self.keep_penalties for t in e.turns] for e in episodes
            ]
            points = kept
        return super().apply(points, episodes, iteration=iteration)

    def _of(self, episode: Episode, index: int) -> float:
        turn = episode.turns[index]
        given = {
            "reply": turn.reply_text, "actions": list(turn.actions), "observation": turn.observation,
            "points": turn.reward, "is_valid": turn.is_valid, "turn": index,
            "is_last": index + 1 == len(episode.turns), "success": episode.success, "episode": episode,
        }  # fmt: skip
        try:
            found = self.fn(**{name: given[name] for name in self._names if name in given})
            if isinstance(found, str) or not math.isfinite(found):
                raise ValueError(f"it returned {found!r}, and must return a finite number")
        except (Exception, SystemExit) as error:  # it is a function of the user's
            what = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(
                f"fn={get_function_name(self.fn)} fails on {episode.task_name} instance seed {episode.instance_seed}, "
                f"turn {index + 1} ({what}); mend the function"
            ) from error
        return float(found)
