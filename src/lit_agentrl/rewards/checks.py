"""Checks of a part's options; messages begin with the option, what builds the part prefixes ``reward.<part>.``."""

from __future__ import annotations

import math
from collections.abc import Callable


def require_number(
    option: str, value: object, valid: str, is_valid: Callable[[float], bool] = lambda _: True
) -> None:
    """Checks a finite number.

    Raises:
        ValueError: it is none, or ``is_valid`` says no; ``valid`` completes "must be".
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not (is_number and is_valid(value)):  # type: ignore[arg-type]
        raise ValueError(f"{option}={value} must be {valid}")


def require_whole(option: str, value: object, low: int) -> None:
    """Checks a whole number of at least ``low``.

    Raises:
        ValueError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ValueError(f"{option}={value} must be a whole number >= {low}")


def require_one_of(option: str, value: object, valid: tuple[str, ...]) -> None:
    """Checks a choice.

    Raises:
        ValueError: it is not among them.
    """
    if value not in valid:
        raise ValueError(f"{option}={value} must be one of {', '.join(valid)}")
