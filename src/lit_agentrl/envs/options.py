"""One-line errors for bad options."""

from __future__ import annotations


def require(condition: bool, option: str, value: object, valid: str) -> None:
    """Checks an option.

    Raises:
        ValueError: the condition does not hold; names the option, its value and what would be valid.
    """
    if not condition:
        raise ValueError(f"env.{option}={value!r} is invalid: {valid}")


def require_int(option: str, value: object, low: int, high: int | None = None) -> None:
    """Checks that an option is an integer from ``low`` to ``high`` (None: unbounded).

    Raises:
        ValueError: it is not.
    """
    valid = f"an integer >= {low}" if high is None else f"an integer from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, int):
        require(False, option, value, valid)
    else:
        require(low <= value and (high is None or value <= high), option, value, valid)
