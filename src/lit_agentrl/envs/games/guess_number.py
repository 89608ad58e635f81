"""A game in which a number is guessed from the answers "higher" and "lower"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from lit_agentrl.checks import require_whole
from lit_agentrl.envs.base import Outcome, TextEnv
from lit_agentrl.envs.splits import draw_for_split, keyed_rng

_NUMBER = 33  # purpose key


class GuessNumber(TextEnv):
    """A game of guessing a number in a known range.

    Answers say whether the number is higher or lower.  The right guess earns 1, every other guess 0.  Random play
    guesses uniformly in the range and ignores the answers.  Best play guesses the middle of the remaining numbers, and
    needs at most ``max_solution`` guesses, the number of binary digits of ``size``.

    Args:
        size: How many numbers a range has.
        largest: Largest number of any range; a range begins at any number from 1 on.
        split: ``train``, ``val`` or ``test``, by the hash of range and number.

    Raises:
        ValueError: An option is out of range.
    """

    def __init__(self, *, size: int = 100, largest: int = 999, split: str = "train") -> None:
        super().__init__(split=split)
        require_whole("size", size, 2, 1_000_000)
        require_whole("largest", largest, size, 1_000_000_000)
        self._size, self._largest = size, largest
        self.max_solution = size.bit_length()
        self._lowest, self._number, self._guesses = 1, 1, list[int]()

    @property
    def rules(self) -> str:
        return (
            f"Find a hidden number among {self._size} numbers. After each guess you are told whether the number is "
            "higher or lower.\nActions: a whole number.\nRewards: 1 for the right number."
        )

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a number of the range."""
        return str(self._lowest + int(rng.integers(self._size)))

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """Return the middle of the remaining numbers; None after the right guess."""
        require_whole("horizon", horizon, 1)
        low, high = self._find_left()
        return None if self._is_found() else [str((low + high) // 2)]

    def best_thought(self) -> str:
        """Return the lowest and the highest remaining number."""
        low, high = self._find_left()
        return f"{low} to {high}"

    def _find_left(self) -> tuple[int, int]:
        """Return the lowest and the highest number that agree with the answers."""
        low = max([self._lowest, *(guess + 1 for guess in self._guesses if guess < self._number)])
        high = min(
            [self._lowest + self._size - 1, *(guess - 1 for guess in self._guesses if guess > self._number)]
        )
        return low, high

    def _is_found(self) -> bool:
        return self._guesses[-1:] == [self._number]

    def _draw_instance(self, seed: int) -> str:
        def propose(attempt: int) -> Iterator[tuple[int, int]]:
            rng = keyed_rng(seed, attempt, _NUMBER)
            first = 1 + int(rng.integers(self._largest - self._size + 1))
            yield first, first + int(rng.integers(self._size))

        self._lowest, self._number = draw_for_split(propose, str, split=self.split)
        self._guesses = []
        return f"{self._lowest} {self._number} of {self._size}"

    def _observe(self) -> str:
        if not self._guesses:
            return f"Guess a number from {self._lowest} to {self._lowest + self._size - 1}."
        guess = self._guesses[-1]
        if guess == self._number:
            return f"{guess} is right."
        return f"It is {'higher' if guess < self._number else 'lower'} than {guess}."

    def _play(self, action: str) -> Outcome:
        text = action.strip()
        if not (text.isascii() and text.isdigit() and len(text) <= len(str(self._largest))):
            return Outcome(action_is_valid=False)
        guess = int(text)
        if not self._lowest <= guess < self._lowest + self._size:
            return Outcome(action_is_valid=False)
        self._guesses = [*self._guesses, guess]
        is_right = guess == self._number
        return Outcome({"guess": float(is_right)}, terminated=is_right, success=is_right)

    def _get_state(self) -> dict[str, Any]:
        return {"first": self._lowest, "number": self._number, "guesses": list(self._guesses)}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self._lowest, self._number = int(state["first"]), int(state["number"])
        self._guesses = [int(guess) for guess in state["guesses"]]
