"""Match the needs of a run with the capabilities of its engine before play."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from lit_agentrl.checks import name_errors
from lit_agentrl.engines.base import Capabilities, CheckedEngine, Engine, ServedEngine


def open_engine(make: Callable[..., Engine], *, asked: Mapping[str, Any], **given: Any) -> Engine:
    """Build the engine and check that it can do what the run needs.

    Args:
        make: The configured engine.
        asked: The needs of the run, as arguments of `require_capabilities`.
        given: Arguments of ``make``.

    Raises:
        ValueError: If it cannot; names the engine, the missing capability and the remedy.
    """
    with name_errors("engine"):
        engine = make(**given)
    require_capabilities(type(engine).__name__, engine.capabilities, **asked)
    return engine


def check_engine_options(make: Callable[..., Engine], asked: Mapping[str, Any]) -> None:
    """Check the options and capabilities of an engine if its class allows it.

    Args:
        make: The configured engine.
        asked: The needs of the run, as in `require_capabilities`.

    Raises:
        ValueError: If an option is invalid, or the engine will lack a capability.
    """
    if isinstance(make, partial) and isinstance(make.func, CheckedEngine):
        with name_errors("engine"):
            promised = make.func.check_options(**make.keywords)
        require_capabilities(make.func.__name__, promised, **asked)


def check_server(make: Callable[..., Engine]) -> None:
    """Check that the server of an engine answers, if it has one.

    Raises:
        ValueError: If it does not.
    """
    if isinstance(make, partial) and isinstance(make.func, ServedEngine):
        make.func.check_server(**make.keywords)


def require_capabilities(
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
    """Refuse an engine that lacks a capability that the run needs.

    Args:
        name: Name of the engine's class.
        promised: Its capabilities.
        structure: Capabilities that the rollout structure needs, such as ``fork``.
        trains: Whether the replies are trained on.
        trusts_log_probs: Whether the update takes recorded log-probs as those of the trainer's own weights.
        reads_entropies: Whether a part of the algorithm reads the recorded entropies.
        processes: Number of training processes.
        has_workers: Whether each of these processes has workers that play training episodes.
        is_ahead: Whether episodes are played during training.
        beta: Coefficient with which critic values reweight the policy in evaluations.

    Raises:
        ValueError: If a capability is missing; names the engine, the capability and the remedy.
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
