"""Strict, bounded parsing and exact comparison of answers in mathematics; no answer is ever evaluated.

A number is ``-3``, ``1,250``, ``0.75``, ``3/4``, ``1 1/2`` or ``75%``; an expression is a polynomial with brackets,
whole exponents and division by numbers.  Both are converted to fractions, so that equal forms compare equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Form = Literal["number", "numbers", "expression"]
MAX_LENGTH, MAX_DEPTH, MAX_DEGREE, MAX_TERMS, MAX_BITS = 200, 20, 12, 60, 512

# exponents of the letters in alphabetic order, such as (("x", 2), ("y", 1)) -> coefficient; coefficients are not 0
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
    """An answer that does not have the required form; the message says why."""


@dataclass(frozen=True)
class Judgement:
    """Verdict on an answer, with feedback for a wrong one."""

    is_right: bool
    message: str = ""


def judge(answer: str, right: str, form: Form, unknown: str = "") -> Judgement:
    """Compare an answer with the right one.

    Args:
        answer: any text.
        right: an answer in the required form.
        form: ``number``, ``numbers`` (in any order) or ``expression`` (multiplied out, like terms collected).
        unknown: the letter that may precede a number, as in ``x = 3``.
    """
    try:
        parsed = _PARSERS[form](normalise_answer(answer, unknown))
    except Unreadable as error:
        return Judgement(False, str(error))
    return Judgement(True) if parsed == _PARSERS[form](right) else Judgement(False, "it is not right")


def normalise_answer(text: str, unknown: str = "") -> str:
    """Return the text in plain characters, without the signs often put around answers.

    Raises:
        Unreadable: the text is too long.
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


def parse_number(text: str) -> Fraction:
    """Parse a number.

    Raises:
        Unreadable: the text is no number.
    """
    sign, rest = (-1, text[1:].lstrip()) if text.startswith("-") else (1, text.removeprefix("+"))
    if match := _DECIMAL.fullmatch(rest):
        return sign * Fraction(match[1].replace(",", "")) / (100 if match[2] else 1)
    if (match := _FRACTION.fullmatch(rest)) and (divisor := int(match[3].replace(",", ""))):
        return sign * (int(match[1] or 0) + Fraction(int(match[2].replace(",", "")), divisor))
    raise Unreadable("it is not a number such as -7, 2.5 or 3/4")


def parse_numbers(text: str) -> frozenset[Fraction]:
    """Parse a list of numbers, whose order does not matter.

    Raises:
        Unreadable: an entry is no number.
    """
    return frozenset(parse_number(part.strip()) for part in re.split(r"[,;]|\band\b|\bor\b", text))


def parse_expression(text: str) -> Polynomial:
    """Parse a polynomial that is written term by term.

    Raises:
        Unreadable: the text is no polynomial, has brackets around letters or uncollected like terms, or exceeds a
            bound.
    """
    reader = Parser(text)
    value = reader.parse()
    if reader.has_brackets or reader.terms > max(len(value), 1):
        raise Unreadable("it is not multiplied out with like terms collected")
    return value


_PARSERS: dict[Form, Callable[[str], object]] = {
    "number": parse_number,
    "numbers": parse_numbers,
    "expression": parse_expression,
}


class Parser:
    """Parser of polynomials, by recursive descent.

    Attributes:
        terms: number of terms outside brackets.
        has_brackets: whether letters stand in brackets.

    Raises:
        Unreadable: on a character that cannot be part of a polynomial.
    """

    def __init__(self, text: str) -> None:
        self.tokens, self.position, self.depth = list[str](), 0, 0
        self.terms, self.has_brackets = 0, False
        start, end = 0, len(text.rstrip())
        while start < end:
            match = _PIECE.match(text, start)
            if not match:
                raise Unreadable("it is not an expression such as 2x^2 - 3x + 1")
            self.tokens.append(match[1])
            start = match.end()

    def parse(self) -> Polynomial:
        """Parse the whole text."""
        value = self._parse_sum()
        if self.position < len(self.tokens):
            raise Unreadable("it is not an expression such as 2x^2 - 3x + 1")
        return value

    def _parse_sum(self) -> Polynomial:
        total: Polynomial = {}
        sign = -1 if self._take("-") else 1
        while True:
            self.terms += not self.depth
            total = add(total, scale(self._parse_product(), Fraction(sign)))
            if not (sign_taken := self._take("+", "-")):
                return total
            sign = -1 if sign_taken == "-" else 1

    def _parse_product(self) -> Polynomial:
        value = self._parse_power()
        while self._look_ahead() not in ("", "+", "-", ")"):
            if self._take("/"):
                divisor = self._parse_power()
                if set(divisor) != {()}:
                    raise Unreadable("it divides by something that is no number, or by 0")
                value = scale(value, 1 / divisor[()])
            else:
                self._take("*")
                value = multiply(value, self._parse_power())
        return value

    def _parse_power(self) -> Polynomial:
        if self._take("-"):
            return scale(self._parse_power(), Fraction(-1))
        base = self._parse_atom()
        if not self._take("^"):
            return base
        exponent = self._look_ahead()
        if not exponent.isdigit() or len(exponent) > 2 or int(exponent) > MAX_DEGREE:
            raise Unreadable(f"an exponent is a whole number from 0 to {MAX_DEGREE}")
        self.position += 1
        value: Polynomial = {(): Fraction(1)}
        for _ in range(int(exponent)):
            value = multiply(value, base)
        return value

    def _parse_atom(self) -> Polynomial:
        token = self._look_ahead()
        if token == "(":
            self.position, self.depth = self.position + 1, self.depth + 1
            if self.depth > MAX_DEPTH:
                raise Unreadable(f"brackets are at most {MAX_DEPTH} deep")
            value = self._parse_sum()
            self.has_brackets |= not set(value) <= {()}
            if not self._take(")"):
                raise Unreadable("a bracket is not closed")
            self.depth -= 1
            return value
        if not token or token in "+-*/^)":
            raise Unreadable("it is not an expression such as 2x^2 - 3x + 1")
        self.position += 1
        return {((token, 1),): Fraction(1)} if token.isalpha() else scale({(): Fraction(1)}, Fraction(token))

    def _look_ahead(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def _take(self, *wanted: str) -> str:
        token = self._look_ahead()
        if token not in wanted:
            return ""
        self.position += 1
        return token


def add(left: Polynomial, right: Polynomial) -> Polynomial:
    """Return the sum of two polynomials."""
    return _drop_zeros(
        {key: left.get(key, Fraction(0)) + right.get(key, Fraction(0)) for key in {**left, **right}}
    )


def scale(value: Polynomial, by: Fraction) -> Polynomial:
    """Return a polynomial times a number."""
    return _drop_zeros({key: coefficient * by for key, coefficient in value.items()})


def multiply(left: Polynomial, right: Polynomial) -> Polynomial:
    """Return the product of two polynomials."""
    product: Polynomial = {}
    for exponents_left, first in left.items():
        for exponents_right, second in right.items():
            exponents = dict(exponents_left)
            for letter, exponent in exponents_right:
                exponents[letter] = exponents.get(letter, 0) + exponent
            key = tuple(sorted(exponents.items()))
            product[key] = product.get(key, Fraction(0)) + first * second
    return _drop_zeros(product)


def _drop_zeros(value: Polynomial) -> Polynomial:
    """Drop the terms that vanish, and check the bounds."""
    value = {key: coefficient for key, coefficient in value.items() if coefficient}
    degree = max((sum(exponent for _, exponent in key) for key in value), default=0)
    bits = max((_count_bits(coefficient) for coefficient in value.values()), default=0)
    if len(value) > MAX_TERMS or degree > MAX_DEGREE or bits > MAX_BITS:
        raise Unreadable("its numbers, terms or exponents are too large")
    return value


def _count_bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())
