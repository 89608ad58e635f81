"""Open an engine, and match it with the requirements of the run's other parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from lit_agentrl.checks import name_errors
from lit_agentrl.engines.base import Capabilities, CheckedEngine, Engine, ServedEngine
from lit_agentrl.facts import ONE_PROCESS, ONE_VERSION
from lit_agentrl.requirements import Part, describe_part, match

# the other parts of a run that plays without training
ALONE = (describe_part("strategy", name="single", provides=[ONE_PROCESS, ONE_VERSION]),)


def open_engine(make: Callable[..., Engine], *, parts: Iterable[Part] = ALONE, **arguments: Any) -> Engine:
    """Build the engine and check that it can do what the run needs.

    Args:
        make: The configured engine.
        parts: The other parts of the run.
        arguments: Arguments of ``make``.

    Raises:
        ValueError: If the engine cannot; the message names the engine, the missing capability and the remedy.
    """
    with name_errors("engine"):
        engine = make(**arguments)
    # what games provide is matched later, once the games have been tried
    match([*parts, describe_engine(type(engine).__name__, engine.capabilities)], undecided={"env"})
    return engine


def check_engine_options(make: Callable[..., Engine]) -> Part | None:
    """Check the options of an engine and describe it, if its class allows it.

    Args:
        make: The configured engine.

    Returns:
        The engine as a part of the run; None if its class cannot tell its capabilities without a network.

    Raises:
        ValueError: If an option is invalid.
    """
    if not (isinstance(make, partial) and isinstance(make.func, CheckedEngine)):
        return None
    with name_errors("engine"):
        capabilities = make.func.check_options(**make.keywords)
    return describe_engine(make.func.__name__, capabilities)


def describe_engine(name: str, capabilities: Capabilities) -> Part:
    """Return an engine as a part of a run."""
    return describe_part("engine", capabilities, name=name)


def check_server(make: Callable[..., Engine]) -> None:
    """Check that the server of an engine answers, if it has one.

    Raises:
        ValueError: If the server does not answer.
    """
    if isinstance(make, partial) and isinstance(make.func, ServedEngine):
        make.func.check_server(**make.keywords)
