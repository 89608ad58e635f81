"""Answers in mathematics: read strictly, in bounded time, and compared exactly; nothing of them is ever evaluated.

A number is ``-3``, ``1,250``, ``0.75``, ``3/4``, ``1 1/2`` or ``75%``; an expression is a polynomial with brackets,
whole exponents and division by numbers.  Both become fractions, so that equal forms are equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Form = Literal["number", "numbers", "expression"]
MAX_LENGTH, MAX_DEPTH, MAX_DEGREE, MAX_TERMS, MAX_BITS = 200, 20, 12, 60, 512

# exponents of letters in alphabetic order, such as (("x", 2), ("y", 1)) -> coefficient; no coefficient is 0
Polynomial = dict[tuple[tuple[str, int], ...], Fraction]

_WHOLE = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
_DECIMAL = re.compile(rf"({_WHOLE}(?:\.\d+)?|\.\d+)(%?)", re.ASCII)
_FRACTION = re.compile(rf"(?:(\d+) )?({_WHOLE})/({_WHOLE})", re.ASCII)
_PIECE = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+|[a-z]|[-+*/^()])", re.ASCII)
_SIGNS = {"−": "-", "–": "-", "×": "*", "·": "*", "÷": "/", "²": "^2", "³": "^3", "**": "^", r"\cdot": "*"}
_WRAPPED = (
    re.compile(r"\$(.*)\$"),
    re.compile(r"\\\((.*)\\\)"),
    re.compile(r"\\boxed\{(.*)\}"),
)
_LATEX_FRACTION = re.compile(r"\\d?frac\{(\d+)\}\{(\d+)\}", re.ASCII)


class Unreadable(ValueError):
    """Not an answer of this form; the message says what it is not, or what it exceeds."""


@dataclass(frozen=True)
class Judged:
    """Whether an answer is right, and what is said of one that is not."""

    is_right: bool
    says: str = ""


def judge(answer: str, right: str, form: Form, unknown: str = "") -> Judged:
    """Compare an answer with the right one.

    Args:
        answer: any text.
        right: an answer of this form.
        form: ``number``, ``numbers`` (in any order) or ``expression`` (multiplied out, like terms collected).
        unknown: the letter that may stand before a number, as in ``x = 3``.
    """
    try:
        found = _READ[form](tidied(answer, unknown))
    except Unreadable as error:
        return Judged(False, str(error))
    return Judged(True) if found == _READ[form](right) else Judged(False, "it is not right")


def tidied(text: str, unknown: str = "") -> str:
    """The text without the signs that are put around answers, in plain characters.

    Raises:
        Unreadable: it is too long.
    """
    if len(text) > MAX_LENGTH:
        raise Unreadable(f"an answer has at most {MAX_LENGTH} characters")
    text = text.strip()
    for pattern in _WRAPPED:
        if wrapped := pattern.fullmatch(text):
            text = wrapped[1].strip()
    for sign, plain in _SIGNS.items():
        text = text.replace(sign, plain)
    text = _LATEX_FRACTION.sub(r"\1/\2", text)
    if unknown:
        text = re.sub(rf"\b{unknown}\s*=\s*", "", text)
    return text.removesuffix(".").strip()


def number(text: str) -> Fraction:
    """The number that a text writes.

    Raises:
        Unreadable: it writes none.
    """
    sign, rest = (-1, text[1:].lstrip()) if text.startswith("-") else (1, text.removeprefix("+"))
    if found := _DECIMAL.fullmatch(rest):
        return sign * Fraction(found[1].replace(",", "")) / (100 if found[2] else 1)
    if (found := _FRACTION.fullmatch(rest)) and (below := int(found[3].replace(",", ""))):
        return sign * (int(found[1] or 0) + Fraction(int(found[2].replace(",", "")), below))
    raise Unreadable("it is not a number such as -7, 2.5 or 3/4")


def numbers(text: str) -> frozenset[Fraction]:
    """The numbers of a list, which stand in any order.

    Raises:
        Unreadable: one of them is no number.
    """
    return frozenset(number(each.strip()) for each in re.split(r"[,;]|\band\b|\bor\b", text))


def expression(text: str) -> Polynomial:
    """The polynomial that a text writes term by term.

    Raises:
        Unreadable: it writes none, has brackets around letters, like terms, or exceeds a bound.
    """
    reader = Reader(text)
    value = reader.read()
    if reader.has_brackets or reader.terms > max(len(value), 1):
        raise Unreadable("it is not multiplied out with like terms collected")
    return value


_READ: dict[Form, Callable[[str], object]] = {
    "number": number,
    "numbers": numbers,
    "expression": expression,
}


class Reader:
    """Reads a polynomial by recursive descent.

    Attributes:
        terms: that stand outside of brackets.
        has_brackets: whether letters stand in brackets.

    Raises:
        Unreadable: on a sign that is none of it.
    """

    def __init__(self, text: str) -> None:
        self.pieces, self.at, self.depth = list[str](), 0, 0
        self.terms, self.has_brackets = 0, False
        place, end = 0, len(text.rstrip())
        while place < end:
            found = _PIECE.match(text, place)
            if not found:
                raise Unreadable("it is not an expression such as 2x^2 - 3x + 1")
            self.pieces.append(found[1])
            place = found.end()

    def read(self) -> Polynomial:
        """The whole of it."""
        value = self._sum()
        if self.at < len(self.pieces):
            raise Unreadable("it is not an expression such as 2x^2 - 3x + 1")
        return value

    def _sum(self) -> Polynomial:
        total: Polynomial = {}
        sign = -1 if self._take("-") else 1
        while True:
            self.terms += not self.depth
            total = added(total, scaled(self._product(), Fraction(sign)))
            if not (taken := self._take("+", "-")):
                return total
            sign = -1 if taken == "-" else 1

    def _product(self) -> Polynomial:
        value = self._power()
        while self._next() not in ("", "+", "-", ")"):
            if self._take("/"):
                below = self._power()
                if set(below) != {()}:
                    raise Unreadable("it divides by something that is no number, or by 0")
                value = scaled(value, 1 / below[()])
            else:
                self._take("*")
                value = times(value, self._power())
        return value

    def _power(self) -> Polynomial:
        if self._take("-"):
            return scaled(self._power(), Fraction(-1))
        base = self._atom()
        if not self._take("^"):
            return base
        exponent = self._next()
        if not exponent.isdigit() or len(exponent) > 2 or int(exponent) > MAX_DEGREE:
            raise Unreadable(f"an exponent is a whole number from 0 to {MAX_DEGREE}")
        self.at += 1
        value: Polynomial = {(): Fraction(1)}
        for _ in range(int(exponent)):
            value = times(value, base)
        return value

    def _atom(self) -> Polynomial:
        piece = self._next()
        if piece == "(":
            self.at, self.depth = self.at + 1, self.depth + 1
            if self.depth > MAX_DEPTH:
                raise Unreadable(f"brackets are at most {MAX_DEPTH} deep")
            value = self._sum()
            self.has_brackets |= not set(value) <= {()}
            if not self._take(")"):
                raise Unreadable("a bracket is not closed")
            self.depth -= 1
            return value
        if not piece or piece in "+-*/^)":
            raise Unreadable("it is not an expression such as 2x^2 - 3x + 1")
        self.at += 1
        return {((piece, 1),): Fraction(1)} if piece.isalpha() else scaled({(): Fraction(1)}, Fraction(piece))

    def _next(self) -> str:
        return self.pieces[self.at] if self.at < len(self.pieces) else ""

    def _take(self, *wanted: str) -> str:
        piece = self._next()
        if piece not in wanted:
            return ""
        self.at += 1
        return piece


def added(left: Polynomial, right: Polynomial) -> Polynomial:
    """The sum of two polynomials."""
    return _kept({key: left.get(key, Fraction(0)) + right.get(key, Fraction(0)) for key in {**left, **right}})


def scaled(value: Polynomial, by: Fraction) -> Polynomial:
    """A polynomial times a number."""
    return _kept({key: coefficient * by for key, coefficient in value.items()})


def times(left: Polynomial, right: Polynomial) -> Polynomial:
    """The product of two polynomials."""
    found: Polynomial = {}
    for one, first in left.items():
        for other, second in right.items():
            exponents = dict(one)
            for letter, exponent in other:
                exponents[letter] = exponents.get(letter, 0) + exponent
            key = tuple(sorted(exponents.items()))
            found[key] = found.get(key, Fraction(0)) + first * second
    return _kept(found)


def _kept(value: Polynomial) -> Polynomial:
    """Without terms that vanish; within the bounds."""
    value = {key: coefficient for key, coefficient in value.items() if coefficient}
    degree = max((sum(exponent for _, exponent in key) for key in value), default=0)
    bits = max((_bits(coefficient) for coefficient in value.values()), default=0)
    if len(value) > MAX_TERMS or degree > MAX_DEGREE or bits > MAX_BITS:
        raise Unreadable("its numbers, terms or exponents are too large")
    return value


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())
