"""A game that takes its time; in a file of its own, so that a process that plays it imports little."""

from __future__ import annotations

import time
from typing import Any

from lit_agentrl.envs.world import World


class Slow(World):
    """Takes its time over every step, and says how long the action was."""

    def __init__(self, *, split: str = "train", seconds: float = 0.05) -> None:
        super().__init__(split=split)
        self._seconds = seconds

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        return f"go {(seed or 0) % 9}", {"instance_id": str(seed)}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        time.sleep(self._seconds)
        return f"go {len(action) % 9}", 0.0, False, False, {}
