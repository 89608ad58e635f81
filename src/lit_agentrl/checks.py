"""Checks of options, and whose options they are.

A part names its options bare (``epsilon=-1 must be …``); whoever builds it says with `named` where it stands, up to the
full key that a user types, so that one message serves every place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

_OPTION = re.compile(r"[A-Za-z_]\w*(\.\w+)*=")  # how a message about an option begins


class NotFinite(ValueError):
    """Weights, logits or gradients are NaN or infinite; all ranks raise it alike.

    Args:
        message: one line.
        version: checkpoints of so many optimizer steps, or more, are of no use.
    """

    def __init__(self, message: str, *, version: int) -> None:
        super().__init__(message)
        self.version = version


def under(key: str, message: str) -> str:
    """The message about a part, with the key at which the part stands."""
    return f"{key}.{message}" if _OPTION.match(message) else f"{key}: {message}"


@contextmanager
def named(key: str) -> Iterator[None]:
    """Whatever is built inside stands at ``key``: its errors begin with it.

    Raises:
        ValueError: in place of one raised inside.
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(under(key, str(error))) from error


@contextmanager
def blamed(key: str, who: str = "", *, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Runs code of a part, which may be a user's: whatever it raises, `sys.exit` included, is told as its fault.

    Args:
        key: where the part stands, as of `named`.
        who: what it is called where a message is about no option; empty: ``key``.
        but: errors that are left alone.

    Raises:
        ValueError: in place of one raised inside.
    """
    try:
        yield
    except but:
        raise
    except (Exception, SystemExit) as error:
        text = str(error) if isinstance(error, ValueError) else ""
        text = text or f"{type(error).__name__}: {error}"
        if not text.startswith(key):
            text = under(key, text) if _OPTION.match(text) else f"{who or key}: {text}"
        raise ValueError(text) from error


def shown(value: object) -> str:
    """A value as it is written in YAML.

    >>> shown([None, True, {"a": 1.5}])
    '[null, true, {a: 1.5}]'
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {shown(item)}' for key, item in value.items())}}}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(shown, value))}]"
    return one_line(str(value))


def one_line(text: str) -> str:
    """A text with its line breaks and other signs that nothing shows as they are written in code."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def require(condition: bool, option: str, value: object, valid: str) -> None:
    """Checks that a condition holds; ``valid`` completes "must be".

    Raises:
        ValueError: it does not.
    """
    if not condition:
        # a text that looks like a number, as of ${now:%Y}, would be told to be what it seems
        told = repr(value) if isinstance(value, str) and reads_as_number(value) else shown(value)
        raise ValueError(f"{option}={told} must be {valid}")


def reads_as_number(text: str) -> bool:
    """Whether it would be shown as a number is."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def require_number(
    option: str, value: object, valid: str, is_valid: Callable[[float], bool] = lambda _: True
) -> None:
    """Checks a finite number; ``valid`` completes "must be".

    Raises:
        ValueError: it is none, or ``is_valid`` says no.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    require(is_number and is_valid(value), option, value, valid)  # type: ignore[arg-type]


def require_positive(option: str, value: object) -> None:
    """Checks a number > 0; ``inf`` is one, and stands for no limit.

    Raises:
        ValueError: it is not.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    require(is_number and value > 0, option, value, "a number > 0")  # type: ignore[operator]


def require_whole(option: str, value: object, low: int, high: int | None = None, beside: str = "") -> None:
    """Checks a whole number of at least ``low`` and at most ``high``; ``beside`` says what else would be valid.

    Raises:
        ValueError: it is not.
    """
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    is_valid = is_whole and low <= value and (high is None or value <= high)  # type: ignore[operator]
    require(
        is_valid,
        option,
        value,
        f"a whole number {f'>= {low}' if high is None else f'from {low} to {high}'}{beside}",
    )


def require_local(option: str, path: object) -> None:
    """Checks that a file is not named by an address: nothing is downloaded.

    Raises:
        ValueError: it is.
    """
    if "://" in str(path):
        raise ValueError(f"{option}={shown(path)} is an address; download the file and give its path")


def require_one_of(option: str, value: object, valid: tuple[str, ...]) -> None:
    """Checks a choice.

    Raises:
        ValueError: it is not among them.
    """
    require(value in valid, option, value, f"one of {', '.join(valid)}")
