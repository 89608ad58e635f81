"""The interface of modules for callbacks; `base.AgentModule` implements all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from lightning.pytorch import LightningModule

from lit_agentrl.models.policy import Policy
from lit_agentrl.report.episodes import EpisodeMetrics
from lit_agentrl.update.updater import Updater


@runtime_checkable
class Measured(Protocol):
    """A module with metrics.

    Attributes:
        row: Metrics of the current iteration by name; the module and callbacks add metrics, and the iteration log
            empties the row.
        last_row: The row that the iteration log last read.
    """

    row: dict[str, float]
    last_row: dict[str, float]


@runtime_checkable
class Agent(Measured, Protocol):
    """A module that trains a policy.

    Attributes:
        policy: Network and tokenizer of the policy.
    """

    policy: Policy

    @property
    def version(self) -> int:
        """The version of the policy's weights: the number of optimizer steps taken."""

    def export(self, folder: str | Path, network: Any = None) -> None:
        """Write the policy as a loadable folder.

        ``network`` is the policy's complete network, if this rank holds only a shard of it.
        """


@runtime_checkable
class Evaluated(Protocol):
    """A module whose evaluations play episodes.

    Attributes:
        eval_metrics: Metrics of the last evaluation, by game.
    """

    eval_metrics: dict[str, EpisodeMetrics]


@runtime_checkable
class Trained(Protocol):
    """A module with an updater.

    Attributes:
        updater: The updater, which knows the trained networks and the steps taken.
    """

    updater: Updater


def as_trained(module: LightningModule) -> Trained:
    """Return the module as one with an updater.

    Raises:
        ValueError: If the module has no updater.
    """
    if isinstance(module, Trained):
        return module
    raise ValueError(f"{type(module).__name__} needs an updater (modules.contract.Trained)")


def as_measured(module: LightningModule) -> Measured:
    """Return the module as one with metrics.

    Raises:
        ValueError: If the module has no metrics.
    """
    if isinstance(module, Measured):
        return module
    raise ValueError(
        f"{type(module).__name__} needs row and last_row, dicts of metrics (modules.contract.Measured)"
    )


def as_agent(module: LightningModule) -> Agent:
    """Return the module as one that trains a policy.

    Raises:
        ValueError: If the module trains no policy.
    """
    if isinstance(module, Agent):
        return module
    raise ValueError(
        f"{type(module).__name__} needs row, last_row, policy, version and export (modules.contract.Agent)"
    )
