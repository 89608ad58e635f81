"""Functions of a user's own that are called with those arguments, by name, that they ask for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any


def arguments_of(function: Callable[..., Any], option: str) -> dict[str, bool]:
    """The arguments that are not set as constants, and whether each is needed.

    Args:
        function: bare, or a partial with its constants.
        option: where it stands, for messages.

    Raises:
        ValueError: it does not say what its arguments are, or takes one by position only.
    """
    constants = function.keywords if isinstance(function, partial) else {}
    name = function_name(function)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{option}={name} does not say what its arguments are; wrap it in def") from error
    if positional := [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]:
        raise ValueError(f"{option}={name} takes {positional[0]} by position only; take it by name")
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return {p.name: p.default is p.empty for p in named if p.name not in constants}


def function_name(function: Callable[..., Any]) -> str:
    """Module and name, of a partial those of what it calls."""
    function = function.func if isinstance(function, partial) else function
    own = function if hasattr(function, "__qualname__") else type(function)
    return f"{own.__module__}.{own.__qualname__}"
