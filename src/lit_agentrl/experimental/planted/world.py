"""A calculation with a planted error, which a critic must find."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lit_agentrl.checks import require_number, require_whole
from lit_agentrl.envs.base import Outcome, TextEnv
from lit_agentrl.envs.splits import draw_for_split, keyed_rng

_STEPS = 101  # purpose key
_NUMBER = re.compile(r"[0-9]{1,3}")
_ANSWER = re.compile(r"none|[0-9]{1,3}( *, *[0-9]{1,3})*", re.IGNORECASE)


def compute_reward(named: Sequence[int], planted: Sequence[int], cost: float) -> float:
    """Compute the reward ``max(-1, found - cost * false)`` of the steps that were named.

    ``found`` is 1 if all planted steps were named, else 0; ``false`` counts the named steps that are right.  Without a
    planted step, ``found`` is 1 if no step was named, else 0.

    >>> compute_reward([2, 3], [2], cost=0.25), compute_reward([], [], cost=0.25)
    (0.75, 1.0)
    """
    false = len({*named} - {*planted})
    is_found = {*planted} <= {*named} if planted else not named
    return max(-1.0, is_found - cost * false)


class PlantedErrors(TextEnv):
    """A calculation with an error planted in one step: a small form of CriticGPT.

    The critic names the wrong steps: ``2``, ``2,3`` or ``none``.  Each step adds or subtracts a number and continues
    from the previous result, even a wrong one, so that only the planted step is wrong.  The reward is that of
    `compute_reward`; success means that exactly the wrong steps were named.

    Departs from CriticGPT (arXiv 2407.00215, "LLM Critics Help Catch LLM Bugs"; the paper was not at hand): there,
    people plant bugs in code, and the critic learns from a reward model of critiques, trained on people's comparisons.
    Here the error is known, and ``cost`` sets the trade-off between missed errors and false alarms.

    Args:
        steps: number of steps of a calculation, from 2 to 50.
        clean_share: share of calculations without an error, from 0 to below 1.
        cost: cost of each right step that is named, finite and >= 0.
        split: ``train``, ``val`` or ``test``, by the hash of the calculation.

    Raises:
        ValueError: an option is out of range.
    """

    def __init__(
        self, *, steps: int = 4, clean_share: float = 0.2, cost: float = 0.25, split: str = "train"
    ) -> None:
        super().__init__(split=split)
        require_whole("steps", steps, 2, 50)
        require_number("clean_share", clean_share, "from 0 to below 1", lambda share: 0 <= share < 1)
        require_number("cost", cost, "finite and >= 0", lambda value: 0 <= value < math.inf)
        self._num_steps, self._clean_share, self._cost = steps, clean_share, cost
        self._lines: list[str] = []
        self._planted: list[int] = []
        self._is_answered = False

    @property
    def rules(self) -> str:
        """Goal, actions and rewards."""
        return (
            "Name the steps whose result is wrong. A step goes on from the result of the one before, right or wrong.\n"
            "Actions: the numbers of the wrong steps, such as 2 or 2,3; or none.\n"
            f"Rewards: 1 if the wrong step is named (none: if there is none), -{self._cost:g} for each right one named."
        )

    def random_action(self, rng: np.random.Generator) -> str:
        """Return one step, or none, each equally likely."""
        number = int(rng.integers(self._num_steps + 1))
        return str(number) if number else "none"

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """Return the planted error; None after the answer."""
        require_whole("horizon", horizon, 1)
        return None if self._is_answered else [",".join(map(str, self._planted)) or "none"]

    def _draw_instance(self, seed: int) -> str:
        def propose(attempt: int) -> Iterator[tuple[list[str], list[int]]]:
            yield draw_steps(keyed_rng(seed, attempt, _STEPS), self._num_steps, self._clean_share)

        self._lines, self._planted = draw_for_split(
            propose, lambda drawn: "\n".join(drawn[0]), split=self.split
        )
        self._is_answered = False
        return "\n".join(self._lines)

    def _observe(self) -> str:
        return "\n".join(self._lines)

    def _play(self, action: str) -> Outcome:
        self._is_answered = True
        text = action.strip()
        if not _ANSWER.fullmatch(text):
            return Outcome({"critique": 0.0}, terminated=True, success=False)
        named = sorted({int(number) for number in _NUMBER.findall(text)})
        reward = compute_reward(named, self._planted, self._cost)
        return Outcome({"critique": reward}, terminated=True, success=named == self._planted)

    def _get_state(self) -> dict[str, Any]:
        return {"lines": list(self._lines), "planted": list(self._planted), "is_answered": self._is_answered}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self._lines, self._planted = list(state["lines"]), [int(number) for number in state["planted"]]
        self._is_answered = bool(state["is_answered"])


def draw_steps(rng: np.random.Generator, steps: int, clean_share: float) -> tuple[list[str], list[int]]:
    """Draw the lines of a calculation, perhaps with one wrong result, and the wrong steps.

    A wrong result differs by 1 to 3 from the right one.
    """
    value, lines = int(rng.integers(1, 20)), []
    wrong = 0 if rng.random() < clean_share else int(rng.integers(1, steps + 1))
    for number in range(1, steps + 1):
        is_minus, change = bool(rng.integers(2)) and value > 1, int(rng.integers(1, 10))
        change = min(change, value - 1) if is_minus else change
        result = value - change if is_minus else value + change
        if number == wrong:
            shift = int(rng.integers(1, 4))
            result = result - shift if rng.integers(2) and result > shift else result + shift
        lines.append(f"{number}. {value} {'-' if is_minus else '+'} {change} = {result}")
        value = result
    return lines, [wrong] if wrong else []
