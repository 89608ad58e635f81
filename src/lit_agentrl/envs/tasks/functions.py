"""Inspect the names of user functions and of the arguments that they ask for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any


def list_arguments(function: Callable[..., Any], option: str) -> dict[str, bool]:
    """Return the arguments that are not set as constants, and whether each is required.

    Args:
        function: a function, or a partial with its constants.
        option: the option that holds it, for messages.

    Raises:
        ValueError: the arguments cannot be inspected, or one is taken by position only.
    """
    constants = function.keywords if isinstance(function, partial) else {}
    name = get_function_name(function)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{option}={name} has no signature that can be read; wrap it in def") from error
    if positional := [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]:
        raise ValueError(f"{option}={name} takes {positional[0]} by position only; take it by name")
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return {p.name: p.default is p.empty for p in named if p.name not in constants}


def get_function_name(function: Callable[..., Any]) -> str:
    """Return module and name of a function, or of the function that a partial calls."""
    function = function.func if isinstance(function, partial) else function
    target = function if hasattr(function, "__qualname__") else type(function)
    return f"{target.__module__}.{target.__qualname__}"
