"""Maps of the frozen lake: gymnasium's transitions, distances and value iteration."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

ACTIONS = ("Left", "Down", "Right", "Up")  # gymnasium's 0, 1, 2, 3
# Charged per step inside the planner only, so that the shorter of two equally good plans wins.
_HASTE = 1e-6

Transitions = dict[int, dict[int, list[tuple[float, int, float, bool]]]]


@dataclass(frozen=True)
class Lake:
    """A map (rows of ``F`` ice, ``H`` hole, ``G`` goal) and gymnasium's transitions on it."""

    rows: tuple[str, ...]
    success_rate: float

    @property
    def size(self) -> int:
        """Number of rows and of columns."""
        return len(self.rows)

    @cached_property
    def transitions(self) -> Transitions:
        """``[square][action]`` -> (probability, next square, reward, ended) of each outcome."""
        # gymnasium requires a start on the map; ours is stored separately, so any ice will do.
        desc = "/".join(self.rows).replace("F", "S", 1).split("/")
        return FrozenLakeEnv(desc=desc, is_slippery=True, success_rate=self.success_rate).P

    @cached_property
    def tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The transitions as arrays (squares, actions, 3 outcomes): probability, next square, reward."""
        shape = (self.size**2, len(ACTIONS), 3)
        probability, following, reward = np.zeros(shape), np.zeros(shape, dtype=int), np.zeros(shape)
        for square, by_action in self.transitions.items():
            for action, outcomes in by_action.items():
                for index, (p, target, gain, _) in enumerate(outcomes):
                    probability[square, action, index] = p
                    following[square, action, index] = target
                    reward[square, action, index] = gain
        return probability, following, reward

    def get_kind(self, square: int) -> str:
        """Return ``F``, ``H`` or ``G``; squares are numbered row by row."""
        return self.rows[square // self.size][square % self.size]

    def measure_distances(self, start: int) -> dict[int, int]:
        """Return the steps from ``start`` to every square reachable over ice, without slips."""
        steps, queue = {start: 0}, deque([start])
        while queue:
            square = queue.popleft()
            if self.get_kind(square) == "G":
                continue
            row, column = divmod(square, self.size)
            for r, c in ((row, column - 1), (row + 1, column), (row, column + 1), (row - 1, column)):
                ahead = r * self.size + c
                is_inside = 0 <= r < self.size and 0 <= c < self.size
                if is_inside and self.get_kind(ahead) != "H" and ahead not in steps:
                    steps[ahead] = steps[square] + 1
                    queue.append(ahead)
        return steps

    def plan_values(self, horizon: int) -> list[np.ndarray]:
        """Compute Q (squares, actions) for each number of actions left, by value iteration.

        Entry ``h`` of the list is Q with ``h + 1`` actions left.

        Q_h(s, a) = sum_s' P(s' | s, a) [r + max_a' Q_{h-1}(s', a')] (Bellman 1957).
        """
        probability, following, reward = self.tables
        # Terminal squares loop with reward 0 in gymnasium; the charge per step must not accumulate there.
        is_open = np.array([self.get_kind(square) == "F" for square in range(self.size**2)])
        value, q_values = np.zeros(self.size**2), []
        for _ in range(horizon):
            q = (probability * (reward + value[following])).sum(-1) - _HASTE
            q_values.append(q)
            value = np.where(is_open, q.max(-1), 0.0)
        return q_values
