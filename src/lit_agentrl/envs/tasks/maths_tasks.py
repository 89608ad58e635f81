"""Questions of mathematics with exact answers, drawn by topic and level; texts and numbers are our own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lit_agentrl.envs.tasks.maths_answers import Form, Polynomial, added, scaled, times

LEVELS = (1, 2, 3)
_ITEMS = ("pens", "apples", "stamps", "tickets", "candles", "bricks")
_PEOPLE = ("Amal", "Bela", "Chidi", "Dora", "Emre", "Freya", "Goran", "Hana")


@dataclass(frozen=True)
class Problem:
    """A question with its answer.

    Attributes:
        form: of the answer, see `maths_answers.judge`.
        unknown: the letter that is asked for; empty: none.
    """

    question: str
    answer: str
    form: Form = "number"
    unknown: str = ""


class Draw:
    """Numbers of a level: the higher it is, the larger they are and the more there are."""

    def __init__(self, rng: np.random.Generator, level: int) -> None:
        self.rng, self.level = rng, level

    def whole(self, low: int, high: int) -> int:
        """A whole number from low to high."""
        return int(self.rng.integers(low, high + 1))

    def some(self) -> int:
        """A number from 2 that grows with the level."""
        return self.whole(2, 8 * 4 ** (self.level - 1) + 1)

    def signed(self, most: int = 9) -> int:
        """A whole number with a sign, not 0."""
        return self.whole(1, most) * (1 - 2 * self.whole(0, 1))

    def of(self, values: tuple[str, ...]) -> str:
        """One of them."""
        return values[self.whole(0, len(values) - 1)]

    def polynomial(self, degree: int) -> Polynomial:
        """One of x with whole coefficients, of which the first is not 0."""
        lower = {_x(power): Fraction(self.whole(-9, 9)) for power in range(degree)}
        return {key: value for key, value in lower.items() if value} | {_x(degree): Fraction(self.signed(5))}


def written(value: Fraction) -> str:
    """A number in lowest terms."""
    return str(value)


def spelt(value: Polynomial) -> str:
    """A polynomial with its highest powers first."""
    terms = sorted(value.items(), key=lambda term: (-sum(power for _, power in term[0]), term[0]))
    told = ""
    for key, coefficient in terms:
        letters = "".join(letter + (f"^{power}" if power > 1 else "") for letter, power in key)
        size = "" if letters and abs(coefficient) == 1 else written(abs(coefficient))
        if letters and abs(coefficient).denominator > 1:
            size = f"({size})"
        told += f" {'-' if coefficient < 0 else '+'} {size}{letters}"
    return (told.removeprefix(" + ") if not told.startswith(" -") else f"-{told[3:]}") or "0"


def _x(power: int) -> tuple[tuple[str, int], ...]:
    return (("x", power),) if power else ()


def arithmetic(draw: Draw) -> Problem:
    """Sums, products and differences in brackets."""
    text, value = str(first := draw.some()), Fraction(first)
    for place in range(draw.level + 1):
        sign, other = draw.of(("+", "-", "*")), draw.some() if place else draw.whole(2, 12)
        value = {"+": value + other, "-": value - other, "*": value * other}[sign]
        text = f"({text}) {sign} {other}" if sign == "*" and place else f"{text} {sign} {other}"
    return Problem(f"Work out {text}.", written(value))


def fractions(draw: Draw) -> Problem:
    """Two or more fractions."""
    parts = [Fraction(draw.whole(1, 9), draw.whole(2, 6 + 3 * draw.level)) for _ in range(draw.level + 1)]
    text, value = written(parts[0]), parts[0]
    for part in parts[1:]:
        sign = draw.of(("+", "-"))
        value, text = value + part if sign == "+" else value - part, f"{text} {sign} {written(part)}"
    return Problem(f"Work out {text} as one number.", written(value))


def percent(draw: Draw) -> Problem:
    """A share, or what a price becomes."""
    share, whole = 5 * draw.whole(1, 19), 10 * draw.some()
    if draw.level == 1:
        return Problem(f"What is {share} percent of {whole}?", written(Fraction(share * whole, 100)))
    up = draw.whole(0, 1)
    told = "rises" if up else "falls"
    after = Fraction(whole * (100 + share if up else 100 - share), 100)
    if draw.level == 2:
        return Problem(f"A price of {whole} {told} by {share} percent. What is it then?", written(after))
    return Problem(
        f"A price {told} by {share} percent. It is then {written(after)}. What was it?", str(whole)
    )


def linear(draw: Draw) -> Problem:
    """An equation of x, on one side or on both."""
    left, right = draw.signed(), draw.whole(-9, 9) if draw.level > 1 else 0
    right += left == right
    shift, other = draw.signed(20), draw.signed(20)
    sides = [
        {_x(1): Fraction(factor), (): Fraction(free)} for factor, free in ((left, shift), (right, other))
    ]
    text = " = ".join(spelt({key: value for key, value in side.items() if value}) for side in sides)
    answer = Fraction(other - shift, left - right)
    return Problem(f"Solve {text} for x.", written(answer), unknown="x")


def system(draw: Draw) -> Problem:
    """Two equations of x and y."""
    x, y = draw.signed(4 * draw.level), draw.signed(4 * draw.level)
    a, b, c, d = (draw.signed(1 + 2 * draw.level) for _ in range(4))
    d += (a * d == b * c) * (2 if d == -1 else 1)
    lines = []
    for first, second in ((a, b), (c, d)):
        line = spelt({(("x", 1),): Fraction(first), (("y", 1),): Fraction(second)})
        lines.append(f"{line} = {first * x + second * y}")
    asked = draw.of(("x", "y"))
    value = x if asked == "x" else y
    return Problem(f"{lines[0]} and {lines[1]}. What is {asked}?", str(value), unknown=asked)


def roots(draw: Draw) -> Problem:
    """A quadratic equation; its solutions in any order."""
    first, second, factor = (
        draw.signed(4 * draw.level),
        draw.signed(4 * draw.level),
        draw.whole(1, draw.level),
    )
    product = times(_minus(first), _minus(second))
    found = " and ".join(str(root) for root in sorted({first, second}))
    return Problem(f"Solve {spelt(scaled(product, Fraction(factor)))} = 0 for x.", found, "numbers", "x")


def expand(draw: Draw) -> Problem:
    """A product of brackets."""
    parts = [draw.polynomial(1) for _ in range(2 if draw.level < 3 else 3)]
    if draw.level == 1:
        parts[0] = {(): Fraction(draw.signed())}
    value: Polynomial = {(): Fraction(1)}
    for part in parts:
        value = times(value, part)
    told = "".join(spelt(part) if set(part) == {()} else f"({spelt(part)})" for part in parts)
    return Problem(f"Multiply out {told}.", spelt(value), "expression")


def collect(draw: Draw) -> Problem:
    """Like terms, and a bracket."""
    parts, by = (
        [draw.polynomial(min(draw.level, 2)) for _ in range(2)],
        draw.whole(2, 9) * (1 - 2 * draw.whole(0, 1)),
    )
    value = added(parts[0], scaled(parts[1], Fraction(by)))
    told = f"{spelt(parts[0])} {'-' if by < 0 else '+'} {abs(by)}({spelt(parts[1])})"
    return Problem(f"Simplify {told}.", spelt(value), "expression")


def derivative(draw: Draw) -> Problem:
    """Of a polynomial."""
    value = draw.polynomial(draw.level + 1)
    slopes = ((sum(power for _, power in key), coefficient) for key, coefficient in value.items())
    found = {_x(power - 1): coefficient * power for power, coefficient in slopes if power}
    return Problem(f"Differentiate {spelt(value)} with respect to x.", spelt(found), "expression")


def divisors(draw: Draw) -> Problem:
    """Greatest common divisor, least common multiple, remainder."""
    common = draw.whole(2, 4 + 4 * draw.level)
    one, other = common * draw.some(), common * draw.some()
    asked = draw.whole(0, 2)
    if asked == 0:
        return Problem(
            f"What is the greatest common divisor of {one} and {other}?", str(math.gcd(one, other))
        )
    if asked == 1:
        return Problem(f"What is the least common multiple of {one} and {other}?", str(math.lcm(one, other)))
    by = draw.whole(3, 9 * draw.level)
    return Problem(f"What is the remainder of {one * other} divided by {by}?", str(one * other % by))


def shopping(draw: Draw) -> Problem:
    """A story of money."""
    who, what, count, price = draw.of(_PEOPLE), draw.of(_ITEMS), draw.some(), Fraction(draw.whole(5, 95), 10)
    cost = count * price
    paid = math.ceil(cost) + draw.whole(0, 20)
    told = f"{who} buys {count} {what} at {float(price):.2f} each"
    if draw.level == 1:
        return Problem(f"{told}. How much is that?", written(cost))
    if draw.level == 2:
        return Problem(f"{told} and pays with {paid}. How much is given back?", written(paid - cost))
    friends = draw.whole(2, 6)
    asks = f"{told}, less 10 percent, and shares the cost with {friends} friends. How much does each of them pay?"
    return Problem(asks, written(cost * Fraction(9, 10) / (friends + 1)))


def journey(draw: Draw) -> Problem:
    """A story of time and distance."""
    who, speed, minutes = draw.of(_PEOPLE), 4 * draw.some(), 15 * draw.whole(1, 4 * draw.level)
    distance = Fraction(speed * minutes, 60)
    if draw.level == 1:
        asks = f"{who} rides for {minutes} minutes at {speed} km an hour. How many km is that?"
        return Problem(asks, written(distance))
    if draw.level == 2:
        asks = f"{who} needs {minutes} minutes for {written(distance)} km. What is the speed in km an hour?"
        return Problem(asks, str(speed))
    back = 4 * draw.some()
    told = f"{who} rides {written(distance)} km at {speed} km an hour, and back at {back}."
    return Problem(f"{told} How many hours is that in all?", written(distance / speed + distance / back))


def _minus(root: int) -> Polynomial:
    """The polynomial x - root."""
    return {_x(1): Fraction(1), (): Fraction(-root)}


TOPICS: Mapping[str, Callable[[Draw], Problem]] = {
    each.__name__: each
    for each in (
        arithmetic, fractions, percent, linear, system, roots, expand, collect, derivative, divisors, shopping, journey
    )
}  # fmt: skip
