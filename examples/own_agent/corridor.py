"""The task of both agents: walk P to the goal G of a corridor, in four replies."""

from __future__ import annotations

import random
import re
from typing import Any

LENGTHS = {"train": (5, 6, 7), "val": (8,), "test": (9,)}  # no corridor is in two splits


class Corridor:
    """A corridor, the messages about it, and its reward."""

    def __init__(self, task: dict[str, Any]) -> None:
        drawn = random.Random(task["seed"])
        self.length = drawn.choice(LENGTHS[task["split"]])
        self.player, self.goal = drawn.sample(range(self.length), 2)
        self.turns = 4

    @property
    def text(self) -> str:
        cells = {self.goal: "G", self.player: "P"}
        return f"turns {self.turns} actions 8\n" + " ".join(cells.get(i, "_") for i in range(self.length))

    def move(self, reply: str) -> None:
        """Play the moves that a reply names."""
        self.turns -= 1
        for action in re.findall("Left|Right", reply.partition("<answer>")[2]):
            if self.player != self.goal:
                self.player = min(max(self.player + (1 if action == "Right" else -1), 0), self.length - 1)

    @property
    def reward(self) -> float:
        return float(self.player == self.goal)
