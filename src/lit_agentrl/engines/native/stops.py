"""Stop rules for many rows at once: what a rule said of (state, token) once is looked up ever after."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

_MAX_STATES = 4096


class StopRule(Protocol):
    """Tells when a reply is complete; keeps a short string of state per reply, one of few."""

    def update(self, state: str, token: int) -> tuple[str, bool]: ...


class StopTable:
    """A stop rule as a table of transitions, filled as tokens are met.

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
        """The states after these tokens, and which of them completed a reply.

        Raises:
            ValueError: the rule has too many states for a table.
        """
        value_A = self._next_SV[state_A, token_A]
        for i in np.flatnonzero(value_A < 0):
            value_A[i] = self._learn(int(state_A[i]), int(token_A[i]))
        return value_A >> 1, (value_A & 1).astype(np.bool_)

    def _learn(self, state: int, token: int) -> int:
        following, stopped = self._rule.update(self._states[state], token)
        if following not in self._code:
            if len(self._states) >= _MAX_STATES:
                raise ValueError(
                    f"the stop rule {type(self._rule).__name__} has more than {_MAX_STATES} states; let its state "
                    "hold no more than what may still complete a reply"
                )
            self._code[following] = len(self._states)
            self._states.append(following)
            if len(self._states) > len(self._next_SV):
                self._next_SV = np.concatenate([self._next_SV, np.full_like(self._next_SV, -1)])
        self._next_SV[state, token] = value = 2 * self._code[following] + stopped
        return value
