"""A slow game, in a separate file so that its process imports little."""

from __future__ import annotations

import time
from typing import Any

from lit_agentrl.envs.world import World
from lit_agentrl.seeds import draw_uniform


class Slow(World):
    """A game whose steps take time, and whose observations depend on the action's length.

    With ``spread``, a step takes from ``1 - spread`` to ``1 + spread`` times ``seconds``, depending on instance and
    turn.
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
