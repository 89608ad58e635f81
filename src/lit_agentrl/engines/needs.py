"""What a run needs of its engine, held against what the engine promises before anything is played."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from lit_agentrl.checks import named
from lit_agentrl.engines.base import Engine


def open_engine(
    make: Callable[..., Engine], *, structure: Collection[str] = (), trusts_log_probs: bool, **given: Any
) -> Engine:
    """The engine that ``make`` builds of what it is given, if it can do what the run asks for.

    Args:
        make: the configured engine.
        structure: what the rollout structure needs, such as ``fork``.
        trusts_log_probs: the update takes recorded log-probs for those of the trainer's own weights.
        given: handed to ``make``.

    Raises:
        ValueError: it cannot; names the engine, what it lacks and the remedy.
    """
    with named("engine"):
        engine = make(**given)
    name = type(engine).__name__
    if "fork" in structure and not engine.capabilities.fork:
        raise ValueError(
            f"engine={name} cannot fork episodes, which algo/structure needs; use engine=native, or "
            "algo/structure=independent"
        )
    if trusts_log_probs and not engine.capabilities.exact_log_probs:
        raise ValueError(
            f"engine={name} does not record the log-probs of the trainer's own weights, and algo/correction=none takes "
            "them for these; use algo/correction=truncated, or engine=native"
        )
    return engine
