"""The critic of a run: made where the advantage asks for values, and checked against what it asks for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from lit_agentrl.checks import name_errors, require_number
from lit_agentrl.config.errors import UserError
from lit_agentrl.models.heads import StateValues
from lit_agentrl.models.policy import Policy
from lit_agentrl.rl.objective import Objective
from lit_agentrl.update.critic import Critic, separate_if_needed

# what a critic may have beside V of states: its column, in words, and the option that has it
_BESIDE = (
    ("q_BT", "Q of every token", "conservative"),
    ("implicit_q_BT", "Q of every token beside V", "implicit"),
    ("cost_value_BT", "values of costs", "costs"),
)


def build_critic(cfg: DictConfig, algorithm: Objective) -> Callable[[Policy], Critic] | None:
    """What makes the critic; a critic is there if and only if the advantage asks for values.

    Raises:
        ValueError: naming part, need and remedy.
    """
    critic: partial[Critic] | None = instantiate(cfg.critic) if cfg.get("critic") else None
    if critic is not None and not isinstance(critic, partial):
        raise ValueError("critic has no _partial_; write _partial_: true into its YAML")
    if algorithm.needs("value_BT") and critic is None:
        raise ValueError(
            f"{_asking(algorithm)} of {algorithm.name} needs the values of a critic: critic=none has none; "
            "set critic=separate or critic=shared"
        )
    if critic is None:
        return None
    if algorithm.needs("value_BT"):
        check_values(algorithm, critic)
        return partial(_made_at, "critic", critic)
    if critic.func is separate_if_needed:
        return None
    raise ValueError(
        f"critic: {_asking(algorithm)} of {algorithm.name} asks for no values; set critic=none, or "
        + (
            "algo/targets=tree"
            if hasattr(algorithm, "targets")
            else "an estimator such as algo/advantage=gae_token"
        )
    )


def beta_of(cfg: DictConfig) -> float:
    """By which the values of the critic reweigh what evaluations play; 0: they do not.

    Raises:
        ValueError: it is no number >= 0.
    """
    beta = OmegaConf.select(cfg, "critic.beta", default=0.0)
    require_number("critic.beta", beta, "finite and >= 0; 0 plays the policy alone", lambda value: value >= 0)
    return float(beta)


def told_of_play(cfg: DictConfig) -> str:
    """A line about a policy that is evaluated with the values of its critic; else empty."""
    if not (beta := beta_of(cfg)):
        return ""
    return (
        f"critic.beta={beta:g}: val and test play the policy reweighed by exp({beta:g} Q), as evaluate.py run= does; "
        "hf/ holds the policy without Q"
    )


def set_beta(beta: float, saved: DictConfig) -> None:
    """Evaluate a run with another ``critic.beta``.

    Raises:
        UserError: the run has no critic that can reweigh.
    """
    require_number("beta", beta, "finite and >= 0; 0 plays the policy alone", lambda value: value >= 0)
    if OmegaConf.select(saved, "critic.beta") is None:
        raise UserError(
            f"beta={beta:g} would be ignored: the run has no critic that reweighs what is played, as that of "
            "algo=ilql does; leave it out"
        )
    saved.critic.beta = beta


def check_values(algorithm: Objective, critic: partial[Critic]) -> None:
    """Refuse a critic that lacks what the advantage asks for, or has what it does not ask for.

    Raises:
        ValueError: naming part, need and remedy.
    """
    given, name = critic.keywords, f"{_asking(algorithm)} of {algorithm.name}"
    columns = getattr(given.get("head"), "columns", StateValues.columns)
    for column, what, remedy in _BESIDE:
        if algorithm.needs(column) and column not in columns:
            raise ValueError(f"{name} needs {what}, and this critic has none: set critic={remedy}")
    for column, what, _ in _BESIDE:
        if column in columns and not algorithm.needs(column):
            raise ValueError(f"{name} asks for no {what}, which this critic has: set critic=separate")
    rate = given.get("target_rate", 1.0)
    if rate != 1 and not any(algorithm.needs(f"target_{column}") for column in columns):
        raise ValueError(
            f"critic.target_rate={rate} has no effect: targets of {name} are no temporal differences; set it to 1"
        )


def _asking(algorithm: Objective) -> str:
    """The axis that may ask for values."""
    return "algo.targets" if hasattr(algorithm, "targets") else "algo.advantage"


def _made_at(key: str, make: Callable[..., Critic], policy: Policy) -> Critic:
    with name_errors(key):
        found = make(policy)
        if not isinstance(found, Critic):
            raise ValueError(f"it makes a {type(found).__name__}, and must make a Critic")
        return found
