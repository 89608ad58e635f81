"""What a run needs of its engine, held against what the engine promises before anything is played."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from lit_agentrl.checks import named
from lit_agentrl.engines.base import Engine


def open_engine(
    make: Callable[..., Engine],
    *,
    structure: Collection[str] = (),
    trains: bool = True,
    trusts_log_probs: bool,
    reads_entropies: bool = False,
    **given: Any,
) -> Engine:
    """The engine that ``make`` builds of what it is given, if it can do what the run asks for.

    Args:
        make: the configured engine.
        structure: what the rollout structure needs, such as ``fork``.
        trains: what it writes is trained on.
        trusts_log_probs: the update takes recorded log-probs for those of the trainer's own weights.
        reads_entropies: a part of the algorithm reads the recorded entropies.
        given: handed to ``make``.

    Raises:
        ValueError: it cannot; names the engine, what it lacks and the remedy.
    """
    with named("engine"):
        engine = make(**given)
    name, promised = type(engine).__name__, engine.capabilities
    if trains and not promised.token_ids:
        raise ValueError(
            f"engine={name} writes texts and no token ids, and training is on the tokens that were sampled; use "
            "engine=native, or engine=openai engine.mode=tokens"
        )
    if trains and promised.weights == "none":
        raise ValueError(
            f"engine={name} keeps weights of its own, so that what is trained would never be played; use an engine "
            "that takes weights, such as engine=native, or engine=openai with engine.weights_folder"
        )
    if reads_entropies and not promised.entropies:
        raise ValueError(
            f"engine={name} records no entropies, which a part of algo reads; use algo/tokens=none, no adaptive "
            "algo/entropy and algo/structure=independent, or engine=native"
        )
    if "fork" in structure and not promised.fork:
        raise ValueError(
            f"engine={name} cannot fork episodes, which algo/structure needs; use engine=native, or "
            "algo/structure=independent"
        )
    if trusts_log_probs and not promised.exact_log_probs:
        raise ValueError(
            f"engine={name} does not record the log-probs of the trainer's own weights, and algo/correction=none takes "
            "them for these; use algo/correction=truncated, or engine=native"
        )
    return engine
