"""Generated questions of mathematics with exact answers, by topic and level."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lit_agentrl.envs.tasks.maths_answers import Form, Polynomial, add, multiply, scale

LEVELS = (1, 2, 3)
_ITEMS = ("pens", "apples", "stamps", "tickets", "candles", "bricks")
_PEOPLE = ("Amal", "Bela", "Chidi", "Dora", "Emre", "Freya", "Goran", "Hana")


@dataclass(frozen=True)
class Problem:
    """A question with its answer.

    Attributes:
        form: form of the answer, see `maths_answers.judge`.
        unknown: the letter that is asked for; empty: none.
    """

    question: str
    answer: str
    form: Form = "number"
    unknown: str = ""


class Sampler:
    """A source of random numbers for a level; a higher level gives larger numbers."""

    def __init__(self, rng: np.random.Generator, level: int) -> None:
        self.rng, self.level = rng, level

    def draw_whole(self, low: int, high: int) -> int:
        """Draw a whole number from low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def draw_size(self) -> int:
        """Draw a number of at least 2 whose range grows with the level."""
        return self.draw_whole(2, 8 * 4 ** (self.level - 1) + 1)

    def draw_signed(self, limit: int = 9) -> int:
        """Draw a whole number with a random sign, not 0."""
        return self.draw_whole(1, limit) * (1 - 2 * self.draw_whole(0, 1))

    def choose(self, values: tuple[str, ...]) -> str:
        """Choose one of the values."""
        return values[self.draw_whole(0, len(values) - 1)]

    def draw_polynomial(self, degree: int) -> Polynomial:
        """Draw a polynomial of x with whole coefficients, the leading one not 0."""
        lower = {_make_power(power): Fraction(self.draw_whole(-9, 9)) for power in range(degree)}
        return {key: value for key, value in lower.items() if value} | {
            _make_power(degree): Fraction(self.draw_signed(5))
        }


def format_number(value: Fraction) -> str:
    """Return a number in lowest terms as text."""
    return str(value)


def format_polynomial(value: Polynomial) -> str:
    """Return a polynomial as text, highest powers first."""
    terms = sorted(value.items(), key=lambda term: (-sum(power for _, power in term[0]), term[0]))
    text = ""
    for key, coefficient in terms:
        letters = "".join(letter + (f"^{power}" if power > 1 else "") for letter, power in key)
        size = "" if letters and abs(coefficient) == 1 else format_number(abs(coefficient))
        if letters and abs(coefficient).denominator > 1:
            size = f"({size})"
        text += f" {'-' if coefficient < 0 else '+'} {size}{letters}"
    return (text.removeprefix(" + ") if not text.startswith(" -") else f"-{text[3:]}") or "0"


def _make_power(power: int) -> tuple[tuple[str, int], ...]:
    return (("x", power),) if power else ()


def draw_arithmetic(sampler: Sampler) -> Problem:
    """Draw sums, products and differences in brackets."""
    text, value = str(first := sampler.draw_size()), Fraction(first)
    for index in range(sampler.level + 1):
        sign, other = (
            sampler.choose(("+", "-", "*")),
            sampler.draw_size() if index else sampler.draw_whole(2, 12),
        )
        value = {"+": value + other, "-": value - other, "*": value * other}[sign]
        text = f"({text}) {sign} {other}" if sign == "*" and index else f"{text} {sign} {other}"
    return Problem(f"Work out {text}.", format_number(value))


def draw_fractions(sampler: Sampler) -> Problem:
    """Draw a sum of two or more fractions."""
    parts = [
        Fraction(sampler.draw_whole(1, 9), sampler.draw_whole(2, 6 + 3 * sampler.level))
        for _ in range(sampler.level + 1)
    ]
    text, value = format_number(parts[0]), parts[0]
    for part in parts[1:]:
        sign = sampler.choose(("+", "-"))
        value, text = value + part if sign == "+" else value - part, f"{text} {sign} {format_number(part)}"
    return Problem(f"Work out {text} as one number.", format_number(value))


def draw_percent(sampler: Sampler) -> Problem:
    """Draw a percentage, or a price after or before a change in percent."""
    share, whole = 5 * sampler.draw_whole(1, 19), 10 * sampler.draw_size()
    if sampler.level == 1:
        return Problem(f"What is {share} percent of {whole}?", format_number(Fraction(share * whole, 100)))
    up = sampler.draw_whole(0, 1)
    text = "rises" if up else "falls"
    after = Fraction(whole * (100 + share if up else 100 - share), 100)
    if sampler.level == 2:
        return Problem(
            f"A price of {whole} {text} by {share} percent. What is it then?", format_number(after)
        )
    return Problem(
        f"A price {text} by {share} percent. It is then {format_number(after)}. What was it?", str(whole)
    )


def draw_linear(sampler: Sampler) -> Problem:
    """Draw an equation of x, with x on one side or on both."""
    left, right = sampler.draw_signed(), sampler.draw_whole(-9, 9) if sampler.level > 1 else 0
    right += left == right
    shift, other = sampler.draw_signed(20), sampler.draw_signed(20)
    sides = [
        {_make_power(1): Fraction(factor), (): Fraction(free)}
        for factor, free in ((left, shift), (right, other))
    ]
    text = " = ".join(
        format_polynomial({key: value for key, value in side.items() if value}) for side in sides
    )
    answer = Fraction(other - shift, left - right)
    return Problem(f"Solve {text} for x.", format_number(answer), unknown="x")


def draw_system(sampler: Sampler) -> Problem:
    """Draw two equations of x and y."""
    x, y = sampler.draw_signed(4 * sampler.level), sampler.draw_signed(4 * sampler.level)
    a, b, c, d = (sampler.draw_signed(1 + 2 * sampler.level) for _ in range(4))
    d += (a * d == b * c) * (2 if d == -1 else 1)
    lines = []
    for first, second in ((a, b), (c, d)):
        line = format_polynomial({(("x", 1),): Fraction(first), (("y", 1),): Fraction(second)})
        lines.append(f"{line} = {first * x + second * y}")
    asked = sampler.choose(("x", "y"))
    value = x if asked == "x" else y
    return Problem(f"{lines[0]} and {lines[1]}. What is {asked}?", str(value), unknown=asked)


def draw_roots(sampler: Sampler) -> Problem:
    """Draw a quadratic equation, whose solutions may come in any order."""
    first, second, factor = (
        sampler.draw_signed(4 * sampler.level),
        sampler.draw_signed(4 * sampler.level),
        sampler.draw_whole(1, sampler.level),
    )
    product = multiply(_make_factor(first), _make_factor(second))
    answer = " and ".join(str(root) for root in sorted({first, second}))
    return Problem(
        f"Solve {format_polynomial(scale(product, Fraction(factor)))} = 0 for x.", answer, "numbers", "x"
    )


def draw_expansion(sampler: Sampler) -> Problem:
    """Draw a product of brackets."""
    parts = [sampler.draw_polynomial(1) for _ in range(2 if sampler.level < 3 else 3)]
    if sampler.level == 1:
        parts[0] = {(): Fraction(sampler.draw_signed())}
    value: Polynomial = {(): Fraction(1)}
    for part in parts:
        value = multiply(value, part)
    text = "".join(
        format_polynomial(part) if set(part) == {()} else f"({format_polynomial(part)})" for part in parts
    )
    return Problem(f"Multiply out {text}.", format_polynomial(value), "expression")


def draw_collection(sampler: Sampler) -> Problem:
    """Draw an expression with like terms and a bracket."""
    parts, by = (
        [sampler.draw_polynomial(min(sampler.level, 2)) for _ in range(2)],
        sampler.draw_whole(2, 9) * (1 - 2 * sampler.draw_whole(0, 1)),
    )
    value = add(parts[0], scale(parts[1], Fraction(by)))
    text = f"{format_polynomial(parts[0])} {'-' if by < 0 else '+'} {abs(by)}({format_polynomial(parts[1])})"
    return Problem(f"Simplify {text}.", format_polynomial(value), "expression")


def draw_derivative(sampler: Sampler) -> Problem:
    """Draw a polynomial to differentiate."""
    value = sampler.draw_polynomial(sampler.level + 1)
    slopes = ((sum(power for _, power in key), coefficient) for key, coefficient in value.items())
    answer = {_make_power(power - 1): coefficient * power for power, coefficient in slopes if power}
    return Problem(
        f"Differentiate {format_polynomial(value)} with respect to x.",
        format_polynomial(answer),
        "expression",
    )


def draw_divisors(sampler: Sampler) -> Problem:
    """Draw a greatest common divisor, a least common multiple or a remainder."""
    common = sampler.draw_whole(2, 4 + 4 * sampler.level)
    first, second = common * sampler.draw_size(), common * sampler.draw_size()
    asked = sampler.draw_whole(0, 2)
    if asked == 0:
        return Problem(
            f"What is the greatest common divisor of {first} and {second}?", str(math.gcd(first, second))
        )
    if asked == 1:
        return Problem(
            f"What is the least common multiple of {first} and {second}?", str(math.lcm(first, second))
        )
    by = sampler.draw_whole(3, 9 * sampler.level)
    return Problem(f"What is the remainder of {first * second} divided by {by}?", str(first * second % by))


def draw_shopping(sampler: Sampler) -> Problem:
    """Draw a story about money."""
    name, product, count, price = (
        sampler.choose(_PEOPLE),
        sampler.choose(_ITEMS),
        sampler.draw_size(),
        Fraction(sampler.draw_whole(5, 95), 10),
    )
    cost = count * price
    paid = math.ceil(cost) + sampler.draw_whole(0, 20)
    text = f"{name} buys {count} {product} at {float(price):.2f} each"
    if sampler.level == 1:
        return Problem(f"{text}. How much is that?", format_number(cost))
    if sampler.level == 2:
        return Problem(f"{text} and pays with {paid}. How much is given back?", format_number(paid - cost))
    friends = sampler.draw_whole(2, 6)
    asks = f"{text}, less 10 percent, and shares the cost with {friends} friends. How much does each of them pay?"
    return Problem(asks, format_number(cost * Fraction(9, 10) / (friends + 1)))


def draw_journey(sampler: Sampler) -> Problem:
    """Draw a story about time and distance."""
    name, speed, minutes = (
        sampler.choose(_PEOPLE),
        4 * sampler.draw_size(),
        15 * sampler.draw_whole(1, 4 * sampler.level),
    )
    distance = Fraction(speed * minutes, 60)
    if sampler.level == 1:
        asks = f"{name} rides for {minutes} minutes at {speed} km an hour. How many km is that?"
        return Problem(asks, format_number(distance))
    if sampler.level == 2:
        asks = f"{name} needs {minutes} minutes for {format_number(distance)} km. What is the speed in km an hour?"
        return Problem(asks, str(speed))
    back = 4 * sampler.draw_size()
    text = f"{name} rides {format_number(distance)} km at {speed} km an hour, and back at {back}."
    return Problem(
        f"{text} How many hours is that in all?", format_number(distance / speed + distance / back)
    )


def _make_factor(root: int) -> Polynomial:
    """Return the polynomial x - root."""
    return {_make_power(1): Fraction(1), (): Fraction(-root)}


TOPICS: Mapping[str, Callable[[Sampler], Problem]] = {
    "arithmetic": draw_arithmetic,
    "fractions": draw_fractions,
    "percent": draw_percent,
    "linear": draw_linear,
    "system": draw_system,
    "roots": draw_roots,
    "expand": draw_expansion,
    "collect": draw_collection,
    "derivative": draw_derivative,
    "divisors": draw_divisors,
    "shopping": draw_shopping,
    "journey": draw_journey,
}
