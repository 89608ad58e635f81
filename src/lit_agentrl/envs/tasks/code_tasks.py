"""Generated tasks of programming: a function is described step by step, with examples, tests and a solution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Ints = list[int]


@dataclass(frozen=True)
class Step:
    """A way to make something of a list of numbers ``xs``; ``{0}`` and ``{1}`` are its own numbers.

    Attributes:
        says: in words.
        code: the same as an expression of Python.
        does: the same as a function of the list and its numbers.
        ranges: from which its numbers are drawn, ends included.
    """

    says: str
    code: str
    does: Callable[..., Any]
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
    """A function that is to be written.

    Attributes:
        steps: place in `MIDDLE`, the last in `LAST`, and the numbers of each.
    """

    steps: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def question(self) -> str:
        """The function in words."""
        says = [
            f"{number}. {step.says.format(*own)}" for number, (step, own) in enumerate(self._parts[:-1], 1)
        ]
        step, own = self._parts[-1]
        return "\n".join(
            ["Write f(xs) for a list of whole numbers xs.", *says, f"Then return {step.says.format(*own)}."]
        )

    @property
    def solution(self) -> str:
        """A program that does it."""
        lines = [f"    xs = {step.code.format(*own)}" for step, own in self._parts[:-1]]
        step, own = self._parts[-1]
        return "\n".join(["def f(xs):", *lines, f"    return {step.code.format(*own)}"])

    def right(self, xs: Ints) -> Any:
        """What the function gives."""
        for step, own in self._parts:
            xs = step.does(list(xs), *own)
        return xs

    @property
    def _parts(self) -> list[tuple[Step, tuple[int, ...]]]:
        *middle, (last, own) = self.steps
        return [*((MIDDLE[place], numbers) for place, numbers in middle), (LAST[last], own)]


def draw_task(rng: np.random.Generator, num_steps: int) -> CodeTask:
    """A task of so many steps before the last."""

    def drawn(steps: Sequence[Step]) -> tuple[int, tuple[int, ...]]:
        place = int(rng.integers(len(steps)))
        return place, tuple(int(rng.integers(low, high + 1)) for low, high in steps[place].ranges)

    return CodeTask((*(drawn(MIDDLE) for _ in range(num_steps)), drawn(LAST)))


def draw_inputs(rng: np.random.Generator, count: int) -> list[Ints]:
    """Lists to call it with, the empty one among them."""
    return [[], *(rng.integers(-9, 15, size=int(rng.integers(1, 9))).tolist() for _ in range(count - 1))]
