"""Stop rules for many rows at once, cached in a transition table."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

_MAX_STATES = 4096


class StopRule(Protocol):
    """Decides when a reply is complete; the state per reply is a short string."""

    def update(self, state: str, token: int) -> tuple[str, bool]: ...


class StopTable:
    """A stop rule as a table of transitions, filled as tokens occur.

    States are numbered in order of appearance; a reply starts in state 0, the empty string.
    """

    def __init__(self, rule: StopRule, vocabulary: int) -> None:
        self._rule = rule
        self._states = [""]
        self._code = {"": 0}
        self._next_SV = np.full((4, vocabulary), -1, dtype=np.int32)  # 2 * next state + stopped

    def advance(
        self, state_A: npt.NDArray[np.int32], token_A: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Return the states after these tokens, and which tokens completed a reply.

        Raises:
            ValueError: If the rule has too many states for a table.
        """
        value_A = self._next_SV[state_A, token_A]
        for i in np.flatnonzero(value_A < 0):
            value_A[i] = self._add_transition(int(state_A[i]), int(token_A[i]))
        return value_A >> 1, (value_A & 1).astype(np.bool_)

    def _add_transition(self, state: int, token: int) -> int:
        next_state, stopped = self._rule.update(self._states[state], token)
        if next_state not in self._code:
            if len(self._states) >= _MAX_STATES:
                raise ValueError(
                    f"the stop rule {type(self._rule).__name__} has more than {_MAX_STATES} states; let its state "
                    "hold only the text that may still complete a reply"
                )
            self._code[next_state] = len(self._states)
            self._states.append(next_state)
            if len(self._states) > len(self._next_SV):
                self._next_SV = np.concatenate([self._next_SV, np.full_like(self._next_SV, -1)])
        self._next_SV[state, token] = value = 2 * self._code[next_state] + stopped
        return value
