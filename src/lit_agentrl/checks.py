"""Checks of options, with error messages that give the full key.

A part names its options without a prefix (``epsilon=-1 must be …``); the code that builds it adds the key with
`name_errors`, so that users see the full key that they type.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

_OPTION = re.compile(r"[A-Za-z_]\w*(\.\w+)*=")  # the beginning of a message about an option
MOST_EPISODES = 1_000_000  # most that are planned at a time, since each is an object in memory


class NotFinite(ValueError):
    """Weights, logits or gradients are NaN or infinite; all ranks raise the same error.

    Args:
        message: one line.
        version: number of optimizer steps from which on checkpoints are unusable.
    """

    def __init__(self, message: str, *, version: int) -> None:
        super().__init__(message)
        self.version = version


def add_key(key: str, message: str) -> str:
    """Put the key of a part before a message about it."""
    return f"{key}.{message}" if _OPTION.match(message) else f"{key}: {message}"


@contextmanager
def name_errors(key: str) -> Iterator[None]:
    """Put ``key`` before the message of each ValueError raised inside.

    Raises:
        ValueError: in place of a ValueError raised inside.
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(add_key(key, str(error))) from error


@contextmanager
def blame(key: str, owner: str = "", *, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn every error raised inside, ``SystemExit`` included, into an error of one part.

    Use it around code that may be a user's.

    Args:
        key: key of the part, as in `name_errors`.
        owner: name of the part in messages that are not about an option; empty: ``key``.
        but: errors that pass unchanged.

    Raises:
        ValueError: in place of an error raised inside.
    """
    try:
        yield
    except but:
        raise
    except (Exception, SystemExit) as error:
        text = str(error) if isinstance(error, ValueError) else ""
        text = text or f"{type(error).__name__}: {error}"
        if not re.match(rf"{re.escape(key)}\b", text):  # else the message names the part itself
            text = add_key(key, text) if _OPTION.match(text) else f"{owner or key}: {text}"
        raise ValueError(text) from error


def format_value(value: object) -> str:
    """Format a value as it is written in YAML.

    >>> format_value([None, True, {"a": 1.5}])
    '[null, true, {a: 1.5}]'
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {format_value(item)}' for key, item in value.items())}}}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(format_value, value))}]"
    return escape_unprintable(str(value))


def escape_unprintable(text: str) -> str:
    """Replace line breaks and other unprintable characters by their escape sequences."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def require(condition: bool, option: str, value: object, valid: str) -> None:
    """Check that a condition holds; ``valid`` completes "must be".

    Raises:
        ValueError: the condition is False.
    """
    if not condition:
        # a text such as '2026', from ${now:%Y}, is quoted, or it would read as a number
        text = repr(value) if isinstance(value, str) and is_numeric(value) else format_value(value)
        raise ValueError(f"{option}={text} must be {valid}")


def is_numeric(text: str) -> bool:
    """Return whether a text can be read as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def require_number(
    option: str, value: object, valid: str, is_valid: Callable[[float], bool] = lambda _: True
) -> None:
    """Check that a value is a finite number; ``valid`` completes "must be".

    Raises:
        ValueError: the value is no finite number, or ``is_valid`` returns False.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if isinstance(value, float) and math.isinf(value) and is_valid(value) and "finite" not in valid:
        # or the message would hold for the value
        valid = (
            valid.replace("a number", "a finite number", 1) if "a number" in valid else f"finite and {valid}"
        )
    require(is_number and is_valid(value), option, value, valid)  # type: ignore[arg-type]


def require_positive(option: str, value: object) -> None:
    """Check that a value is a number > 0; ``inf`` means no limit.

    Raises:
        ValueError: the value is no number > 0.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    require(is_number and value > 0, option, value, "a number > 0")  # type: ignore[operator]


def require_whole(
    option: str, value: object, low: int, high: int | None = None, alternative: str = ""
) -> None:
    """Check that a value is a whole number from ``low`` to ``high``.

    ``alternative`` is added to the message and names another valid value.

    Raises:
        ValueError: the value is no whole number in this range.
    """
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    is_valid = is_whole and low <= value and (high is None or value <= high)  # type: ignore[operator]
    require(
        is_valid,
        option,
        value,
        f"a whole number {f'>= {low}' if high is None else f'from {low} to {high}'}{alternative}",
    )


def require_members(label: str, built: object, protocol: type[object]) -> None:
    """Check that an object has all members of a protocol.

    Args:
        label: what made the object, such as an option with its value.
        built: the object.
        protocol: the members are its methods, properties and annotated attributes.

    Raises:
        ValueError: the object lacks a member, which the message names.
    """
    members = {*vars(protocol), *inspect.get_annotations(protocol)}
    lacking = sorted(name for name in members if not name.startswith("_") and not hasattr(built, name))
    if lacking:
        raise ValueError(
            f"{label} makes a {type(built).__name__} without {lacking[0]}, which "
            f"{protocol.__module__}.{protocol.__qualname__} requires"
        )


def require_local(option: str, path: object) -> None:
    """Check that a path is not a URL, because nothing is downloaded.

    Raises:
        ValueError: the path is a URL.
    """
    if "://" in str(path):
        raise ValueError(f"{option}={format_value(path)} is an address; download the file and give its path")


def require_one_of(option: str, value: object, valid: tuple[str, ...]) -> None:
    """Check that a value is one of the valid values.

    Raises:
        ValueError: the value is not valid.
    """
    require(value in valid, option, value, f"one of {', '.join(valid)}")
