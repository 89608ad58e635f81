"""Open an engine, and match it with what the other parts of the run require."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from lit_agentrl.checks import name_errors
from lit_agentrl.engines.base import Capabilities, Engine, Foretelling, ServedEngine
from lit_agentrl.facts import ONE_PROCESS, ONE_VERSION
from lit_agentrl.requirements import Part, describe_part, match

# what surrounds an engine that plays on its own, without training
ALONE = (describe_part("strategy", name="single", provides=[ONE_PROCESS, ONE_VERSION]),)


def open_engine(make: Callable[..., Engine], *, parts: Iterable[Part] = ALONE, **given: Any) -> Engine:
    """Return the engine that ``make`` builds, if it can do what the run asks for.

    Args:
        make: the configured engine.
        parts: the others of the run.
        given: handed to ``make``.

    Raises:
        ValueError: it cannot; names the engine, what it lacks and the remedy.
    """
    with name_errors("engine"):
        engine = make(**given)
    match([*parts, describe_engine(type(engine).__name__, engine.capabilities)])
    return engine


def foretell(make: Callable[..., Engine]) -> Part | None:
    """Check and describe an engine whose class can tell its capabilities without a network.

    Args:
        make: the configured engine.

    Raises:
        ValueError: an option makes no sense.
    """
    if not (isinstance(make, partial) and isinstance(make.func, Foretelling)):
        return None
    with name_errors("engine"):
        promised = make.func.foretold(**make.keywords)
    return describe_engine(make.func.__name__, promised)


def describe_engine(name: str, promised: Capabilities) -> Part:
    """Return an engine as a part of a run."""
    return describe_part("engine", promised, name=name)


def reach(make: Callable[..., Engine]) -> None:
    """Ask the server of an engine that has one whether it is there.

    Raises:
        ValueError: it is not.
    """
    if isinstance(make, partial) and isinstance(make.func, ServedEngine):
        make.func.reach(**make.keywords)
