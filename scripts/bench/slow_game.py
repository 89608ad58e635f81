"""A game that takes its time; in a file of its own, so that a process that plays it imports little."""

from __future__ import annotations

import time
from typing import Any

from lit_agentrl.envs.world import World
from lit_agentrl.seeds import draw_uniform


class Slow(World):
    """Takes its time over every step, and says how long the action was.

    With ``spread`` a step takes from ``1 - spread`` to ``1 + spread`` times its ``seconds``, by instance and turn.
    """

    def __init__(self, *, split: str = "train", seconds: float = 0.05, spread: float = 0.0) -> None:
        super().__init__(split=split)
        self._seconds, self._spread = seconds, spread
        self._seed = self._turn = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self._seed, self._turn = seed or 0, 0
        return f"go {self._seed % 9}", {"instance_id": str(seed)}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._turn += 1
        share = 2 * draw_uniform(0, "slow", self._seed, self._turn) - 1
        time.sleep(self._seconds * (1 + self._spread * share))
        return f"go {len(action) % 9}", 0.0, False, False, {}
