"""Build the critic of a run if the algorithm needs values, and describe it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from lit_agentrl.checks import name_errors, require_number
from lit_agentrl.config.errors import UserError
from lit_agentrl.facts import READS_TARGETS, READS_VALUES, VALUE_COLUMNS, VALUE_READERS, VALUES
from lit_agentrl.models.heads import StateValues
from lit_agentrl.models.policy import Policy
from lit_agentrl.requirements import Part, Requirement, describe_part
from lit_agentrl.rl.objective import Objective
from lit_agentrl.update.critic import Critic, separate_if_needed


def build_critic(cfg: DictConfig, algorithm: Objective) -> Callable[[Policy], Critic] | None:
    """Return a function that makes the critic of a policy, or None.

    The result is None if ``critic`` is none, or ``separate_if_needed`` with an algorithm that needs no values.

    Raises:
        ValueError: the config is not a partial; or the returned function makes something other than a `Critic`.
    """
    critic: partial[Critic] | None = instantiate(cfg.critic) if cfg.get("critic") else None
    if critic is not None and not isinstance(critic, partial):
        raise ValueError("critic has no _partial_; write _partial_: true into its YAML")
    if critic is None or (critic.func is separate_if_needed and not algorithm.needs("value_BT")):
        return None
    return partial(_make_critic, "critic", critic)


def describe_critic(critic: Callable[[Policy], Critic] | None) -> Part:
    """Describe the critic for matching.

    It provides the columns of its head, and requires that some other part reads each of them.
    """
    if critic is None:
        return describe_part("critic", name="none")
    options = critic.args[1].keywords  # type: ignore[attr-defined]
    columns = getattr(options.get("head"), "columns", StateValues.columns)
    requires = [Requirement(READS_VALUES, remedy="critic=none")]
    by = f"critic.head={type(options.get('head')).__name__}"
    requires += [
        Requirement(VALUE_READERS[c], by=by, remedy="critic=separate") for c in VALUE_READERS if c in columns
    ]
    rate = options.get("target_rate", 1.0)
    if rate != 1:
        by = f"critic.target_rate={rate}"
        requires.append(Requirement(READS_TARGETS, by=by, remedy="critic.target_rate=1"))
    provides = [VALUES, *(VALUE_COLUMNS[c] for c in VALUE_COLUMNS if c in columns)]
    name = critic.args[1].func.__name__  # type: ignore[attr-defined]
    return describe_part("critic", name=name, requires=requires, provides=provides)


def read_beta(cfg: DictConfig) -> float:
    """Return ``critic.beta``: evaluations reweight the policy by exp(beta Q); 0 turns it off.

    Raises:
        ValueError: ``critic.beta`` is not a finite number >= 0.
    """
    beta = OmegaConf.select(cfg, "critic.beta", default=0.0)
    require_number(
        "critic.beta", beta, "finite and >= 0; 0 plays the policy without Q", lambda value: value >= 0
    )
    return float(beta)


def describe_reweighting(cfg: DictConfig) -> str:
    """Return a line about evaluations that reweight the policy by its critic; may be empty."""
    if not (beta := read_beta(cfg)):
        return ""
    return (
        f"critic.beta={beta:g}: val and test play the policy reweighted by exp({beta:g} Q), as evaluate.py run= does; "
        "hf/ holds the policy without Q"
    )


def set_beta(beta: float, saved: DictConfig) -> None:
    """Set ``critic.beta`` of a saved config, to evaluate the run with another value.

    Raises:
        UserError: the run has no critic that can reweight the policy.
    """
    require_number("beta", beta, "finite and >= 0; 0 plays the policy without Q", lambda value: value >= 0)
    if OmegaConf.select(saved, "critic.beta") is None:
        raise UserError(
            f"beta={beta:g} would be ignored: the run has no critic that reweights the policy, as algo=ilql "
            "has; leave it out"
        )
    saved.critic.beta = beta


def _make_critic(key: str, make: Callable[..., Critic], policy: Policy) -> Critic:
    with name_errors(key):
        critic = make(policy)
        if not isinstance(critic, Critic):
            raise ValueError(f"it makes a {type(critic).__name__}, but must make a Critic")
        return critic
