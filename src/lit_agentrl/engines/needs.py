"""What a run needs of its engine, held against what the engine promises before anything is played."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from lit_agentrl.checks import name_errors
from lit_agentrl.engines.base import Capabilities, Engine, Foretelling, ServedEngine


def open_engine(make: Callable[..., Engine], *, asked: Mapping[str, Any], **given: Any) -> Engine:
    """The engine that ``make`` builds of what it is given, if it can do what the run asks for.

    Args:
        make: the configured engine.
        asked: by the run, as of `require_promised`.
        given: handed to ``make``.

    Raises:
        ValueError: it cannot; names the engine, what it lacks and the remedy.
    """
    with name_errors("engine"):
        engine = make(**given)
    require_promised(type(engine).__name__, engine.capabilities, **asked)
    return engine


def foretell(make: Callable[..., Engine], asked: Mapping[str, Any]) -> None:
    """Check the options of an engine, and what it will promise, where its class can tell without a network.

    Args:
        make: the configured engine.
        asked: as of `require_promised`.

    Raises:
        ValueError: an option makes no sense, or the engine will lack something.
    """
    if isinstance(make, partial) and isinstance(make.func, Foretelling):
        with name_errors("engine"):
            promised = make.func.foretold(**make.keywords)
        require_promised(make.func.__name__, promised, **asked)


def reach(make: Callable[..., Engine]) -> None:
    """Ask the server of an engine that has one whether it is there.

    Raises:
        ValueError: it is not.
    """
    if isinstance(make, partial) and isinstance(make.func, ServedEngine):
        make.func.reach(**make.keywords)


def require_promised(
    name: str,
    promised: Capabilities,
    *,
    structure: Collection[str] = (),
    trains: bool = True,
    trusts_log_probs: bool,
    reads_entropies: bool = False,
    processes: int = 1,
    has_workers: bool = False,
    is_ahead: bool = False,
    beta: float = 0.0,
) -> None:
    """Refuse an engine that lacks what the run asks for.

    Args:
        name: of its class.
        promised: by it.
        structure: what the rollout structure needs, such as ``fork``.
        trains: what it writes is trained on.
        trusts_log_probs: the update takes recorded log-probs for those of the trainer's own weights.
        reads_entropies: a part of the algorithm reads the recorded entropies.
        processes: that train.
        has_workers: others play training episodes, for each of these processes.
        is_ahead: they play while it trains.
        beta: by which the values of a critic reweigh what evaluations play.

    Raises:
        ValueError: naming the engine, what it lacks and the remedy.
    """
    if trains and not promised.token_ids:
        raise ValueError(
            f"engine={name} writes texts and no token ids, and training is on the tokens that were sampled; use "
            "engine=native, or engine=openai engine.mode=tokens; texts can be evaluated (lit-agentrl evaluate)"
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
    _require_of_structure(name, promised, structure)
    if beta and promised.weights != "shared":
        _refuse_beta(name, beta)
    _require_together(name, promised, processes=processes, has_workers=has_workers, is_ahead=is_ahead)
    if trusts_log_probs and not promised.exact_log_probs:
        raise ValueError(
            f"engine={name} does not record the log-probs of the trainer's own weights, and algo/correction=none takes "
            "them for these; use algo/correction=truncated, or engine=native"
        )


def _require_of_structure(name: str, promised: Capabilities, structure: Collection[str]) -> None:
    if "fork" in structure and not promised.fork:
        raise ValueError(
            f"engine={name} cannot fork episodes, which algo/structure needs; use engine=native, or "
            "algo/structure=independent"
        )
    if "opponent" in structure and not promised.opponent:
        raise ValueError(
            f"engine={name} cannot play with the reference, whose episodes algo/structure=opponent asks for; use "
            "engine=native"
        )


def _refuse_beta(name: str, beta: float) -> None:
    raise ValueError(
        f"engine={name} computes without the critic, by whose values critic.beta={beta:g} reweighs what "
        "evaluations play; use engine=native, or critic.beta=0 (beta=0 where a run is evaluated)"
    )


def _require_together(
    name: str, promised: Capabilities, *, processes: int, has_workers: bool, is_ahead: bool
) -> None:
    if promised.is_alone and processes > 1:
        raise ValueError(
            f"engine={name} cannot play in one of several training processes; use strategy=single, or engine=native"
        )
    if promised.is_server and (is_ahead or (has_workers and processes > 1)):
        raise ValueError(
            f"engine={name} is one server with the weights of one version, which rollout.overlap=true, or a worker of "
            "each of several processes, would change under episodes that are being played; use worker=none "
            "rollout.overlap=false"
        )
