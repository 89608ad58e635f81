"""Generated programming tasks: a function described step by step, with examples, tests and a solution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Ints = list[int]


@dataclass(frozen=True)
class Step:
    """One operation on a list of numbers ``xs``.

    ``{0}`` and ``{1}`` stand for the numbers of the operation.

    Attributes:
        text: the operation in words.
        code: the same as a Python expression.
        function: the same as a function of the list and the numbers.
        ranges: ranges of the numbers, ends included.
    """

    text: str
    code: str
    function: Callable[..., Any]
    ranges: tuple[tuple[int, int], ...] = ()


# list -> list
MIDDLE: tuple[Step, ...] = (
    Step(
        "keep the numbers that {0} divides",
        "[x for x in xs if x % {0} == 0]",
        lambda xs, a: [x for x in xs if x % a == 0],
        ((2, 4),),
    ),
    Step(
        "drop the numbers below {0}",
        "[x for x in xs if x >= {0}]",
        lambda xs, a: [x for x in xs if x >= a],
        ((-6, 4),),
    ),
    Step(
        "add {0} to each number",
        "[x + {0} for x in xs]",
        lambda xs, a: [x + a for x in xs],
        ((2, 9),),
    ),
    Step(
        "multiply each number by {0}",
        "[x * {0} for x in xs]",
        lambda xs, a: [x * a for x in xs],
        ((2, 5),),
    ),
    Step(
        "square each number",
        "[x * x for x in xs]",
        lambda xs: [x * x for x in xs],
    ),
    Step(
        "replace each number by its remainder of division by {0}",
        "[x % {0} for x in xs]",
        lambda xs, a: [x % a for x in xs],
        ((3, 9),),
    ),
    Step(
        "reverse the list",
        "xs[::-1]",
        lambda xs: xs[::-1],
    ),
    Step(
        "sort the list, smallest first",
        "sorted(xs)",
        lambda xs: sorted(xs),
    ),
    Step(
        "take every number at a place that {0} divides, counted from 0",
        "xs[::{0}]",
        lambda xs, a: xs[::a],
        ((2, 3),),
    ),
    Step(
        "drop the first {0} numbers",
        "xs[{0}:]",
        lambda xs, a: xs[a:],
        ((1, 3),),
    ),
    Step(
        "keep the first of equal numbers only",
        "list(dict.fromkeys(xs))",
        lambda xs: list(dict.fromkeys(xs)),
    ),
    Step(
        "replace each number by the sum of it and all before it",
        "[sum(xs[: i + 1]) for i in range(len(xs))]",
        lambda xs: [sum(xs[: i + 1]) for i in range(len(xs))],
    ),
    Step(
        "replace numbers above {0} by {0}",
        "[min(x, {0}) for x in xs]",
        lambda xs, a: [min(x, a) for x in xs],
        ((5, 12),),
    ),
)
# list -> anything
LAST: tuple[Step, ...] = (
    Step(
        "the list",
        "xs",
        lambda xs: xs,
    ),
    Step(
        "the sum",
        "sum(xs)",
        lambda xs: sum(xs),
    ),
    Step(
        "the number of entries",
        "len(xs)",
        lambda xs: len(xs),
    ),
    Step(
        "the largest number, or {0} if there is none",
        "max(xs, default={0})",
        lambda xs, a: max(xs, default=a),
        ((-3, 3),),
    ),
    Step(
        "the smallest number, or {0} if there is none",
        "min(xs, default={0})",
        lambda xs, a: min(xs, default=a),
        ((-3, 3),),
    ),
    Step(
        "how many numbers are above {0}",
        "sum(x > {0} for x in xs)",
        lambda xs, a: sum(x > a for x in xs),
        ((0, 8),),
    ),
    Step(
        "the numbers as text, with '{0}' between them",
        "'{0}'.join(str(x) for x in xs)",
        lambda xs, a: str(a).join(str(x) for x in xs),
        ((0, 9),),
    ),
    Step(
        "True if {0} is among them, else False",
        "{0} in xs",
        lambda xs, a: a in xs,
        ((0, 9),),
    ),
    Step(
        "a dict of each number and how often it stands there",
        "{{x: xs.count(x) for x in xs}}",
        lambda xs: {x: xs.count(x) for x in xs},
    ),
)


@dataclass(frozen=True)
class CodeTask:
    """A function to write.

    Attributes:
        steps: index into `MIDDLE`, for the last step into `LAST`, and the numbers of each step.
    """

    steps: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def question(self) -> str:
        """The function in words."""
        text = [
            f"{number}. {step.text.format(*numbers)}"
            for number, (step, numbers) in enumerate(self._parts[:-1], 1)
        ]
        step, numbers = self._parts[-1]
        return "\n".join(
            [
                "Write f(xs) for a list of whole numbers xs.",
                *text,
                f"Then return {step.text.format(*numbers)}.",
            ]
        )

    @property
    def solution(self) -> str:
        """A program that solves the task."""
        lines = [f"    xs = {step.code.format(*numbers)}" for step, numbers in self._parts[:-1]]
        step, numbers = self._parts[-1]
        return "\n".join(["def f(xs):", *lines, f"    return {step.code.format(*numbers)}"])

    def compute(self, xs: Ints) -> Any:
        """Return what the function returns for ``xs``."""
        for step, numbers in self._parts:
            xs = step.function(list(xs), *numbers)
        return xs

    @property
    def _parts(self) -> list[tuple[Step, tuple[int, ...]]]:
        *middle, (last, numbers) = self.steps
        return [*((MIDDLE[index], numbers) for index, numbers in middle), (LAST[last], numbers)]


def draw_task(rng: np.random.Generator, num_steps: int) -> CodeTask:
    """Draw a task with ``num_steps`` steps before the last."""

    def draw_step(steps: Sequence[Step]) -> tuple[int, tuple[int, ...]]:
        index = int(rng.integers(len(steps)))
        return index, tuple(int(rng.integers(low, high + 1)) for low, high in steps[index].ranges)

    return CodeTask((*(draw_step(MIDDLE) for _ in range(num_steps)), draw_step(LAST)))


def draw_inputs(rng: np.random.Generator, count: int) -> list[Ints]:
    """Draw lists to call the function with, the first of them empty."""
    return [[], *(rng.integers(-9, 15, size=int(rng.integers(1, 9))).tolist() for _ in range(count - 1))]
