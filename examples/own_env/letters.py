"""Go to the letter: a whole game of one's own, played with ``env=letters``."""

from collections.abc import Iterator, Mapping
from typing import Any

from lit_agentrl.envs.base import Outcome, TextEnv
from lit_agentrl.envs.splits import draw_for_split, keyed_rng

SIZE = 4
MOVES = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}


class Letters(TextEnv):
    """An empty field with a player P and the letters A and B; the observation says which to go to."""

    rules = "Go to the letter you are told. You are P.\nRewards: -0.1 for a move, 1 at the letter."
    max_solution = 2 * (SIZE - 1)

    def action_names(self) -> list[str]:
        return list(MOVES)

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        (y, x), (to_y, to_x) = divmod(self.cells["P"], SIZE), divmod(self.cells[self.goal], SIZE)
        plan = ["Down"] * (to_y - y) + ["Up"] * (y - to_y) + ["Right"] * (to_x - x) + ["Left"] * (x - to_x)
        return plan if 0 < len(plan) <= horizon else None

    def _draw_instance(self, seed: int) -> str:
        def propose(attempt: int) -> Iterator[tuple[list[int], str]]:
            rng = keyed_rng(seed, attempt, 1)
            yield rng.choice(SIZE**2, size=3, replace=False).tolist(), "AB"[rng.integers(2)]

        cells, self.goal = draw_for_split(propose, str, split=self.split)
        self.cells = dict(zip("ABP", cells, strict=True))
        return str((cells, self.goal))

    def _observe(self) -> str:
        field = ["_"] * SIZE**2
        for symbol, cell in self.cells.items():
            field[cell] = symbol
        rows = [" ".join(field[i : i + SIZE]) for i in range(0, SIZE**2, SIZE)]
        return "\n".join([f"go to {self.goal}", *rows])

    def _play(self, action: str) -> Outcome:
        (y, x), (down, right) = divmod(self.cells["P"], SIZE), MOVES[action]
        y, x = min(max(y + down, 0), SIZE - 1), min(max(x + right, 0), SIZE - 1)
        self.cells["P"] = y * SIZE + x
        found = self.cells["P"] == self.cells[self.goal]
        return Outcome({"move": -0.1, "letter": float(found)}, terminated=found, success=found)

    def _get_state(self) -> dict[str, Any]:
        return {"cells": dict(self.cells), "goal": self.goal}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self.cells, self.goal = dict(state["cells"]), state["goal"]
