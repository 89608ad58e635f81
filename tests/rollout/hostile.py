"""A game that does harm; in a file of its own, so that a process that plays it imports little."""

from __future__ import annotations

import os
import time
from typing import Any

from lit_agentrl.envs.world import World
from scripts.bench.slow_game import Slow


class Hostile(Slow):
    """Does to its process what the action says, in the second instance."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.is_hostile, self.said = seed == 1, 0
        return "go", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.said += 1
        if self.is_hostile and self.said == 2:
            if action == "hang":
                time.sleep(60)
            elif action == "die":
                os._exit(3)
            elif action == "grow":
                bytearray(2**31)
        return f"go {self.said}", float(self.said), False, False, {}


class Unwilling(Slow):
    """Does not start."""

    def __init__(self, *, how: str, **options: Any) -> None:
        super().__init__(seconds=0, **options)
        self.how = how

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        if self.how == "hang":
            time.sleep(0.5)
        elif self.how == "die":
            os._exit(3)
        raise RuntimeError("no display")


def where_it_is(env: World, observation: str) -> str:
    """The game, and the process that it is in."""
    return f"{type(env).__name__} {os.getpid()}"
