"""Parts as a user may write them by mistake."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lit_agentrl.envs.world import World
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.base import RewardPart, Rewards, Shaping
from lit_agentrl.text.dialects.answer import Answer


class Nothing:
    """No part at all."""

    def __init__(self, **options: Any) -> None:
        self.options = options


@dataclass(frozen=True)
class Raising(Answer):
    """A dialect that fails at a reply that holds no answer."""

    def parse(self, text: str, *args: Any, **options: Any) -> Any:
        return {"<": super().parse(text, *args, **options)}[text[0]]


@dataclass(frozen=True)
class Silent(Answer):
    """A dialect that forgets to return what it has read."""

    def parse(self, *args: Any, **options: Any) -> Any:
        return None


class NoStage(RewardPart):
    """A reward part that does not say when it acts."""

    def apply(self, points: Rewards, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        return points


@dataclass(kw_only=True)
class Scored(Shaping):
    """A reward part that scores as it is told: by a key that is not there, or flat, or with a text."""

    how: str
    weight: float = 1.0

    def score(self, episodes: Sequence[Episode], *, iteration: int) -> Any:
        rows: list[Any] = [[0.0] * len(episode.turns) for episode in episodes]
        if self.how == "raises":
            return [[{}["colour"]] for _ in episodes]
        if self.how == "exits":
            sys.exit("no more")
        number = len(rows[-1])
        wrong = {"flat": 0.0, "short": [], "text": ["much"] * number, "nan": [float("nan")] * number}
        return [*rows[:-1], wrong[self.how]]


class Odd(World):
    """A game that fails where it is told to."""

    def __init__(self, *, split: str = "train", fails: str = "", shows: Any = "P _") -> None:
        super().__init__(split=split)
        self._fails, self._shows = fails, shows
        self._fail("init")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._fail("reset")
        return self._shows, {}

    def step(self, action: str) -> Any:
        self._fail("step")
        return self._shows, 0.0, False, False, {"success": False}

    def action_names(self) -> list[str]:
        return ["Up", "Down"]

    def random_action(self, rng: Any) -> str | None:
        self._fail("random")
        return super().random_action(rng)

    def _fail(self, where: str) -> None:
        if self._fails == where:
            raise RuntimeError("no such level")
        if self._fails == f"{where} exits":
            sys.exit("enough")
