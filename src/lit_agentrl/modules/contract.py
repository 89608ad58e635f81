"""What callbacks ask of a module; `base.AgentModule` offers all of it."""

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
        row: of the iteration under way, by name; the module and callbacks add to it, the iteration log empties it.
        last_row: as the iteration log last found it.
    """

    row: dict[str, float]
    last_row: dict[str, float]


@runtime_checkable
class Agent(Measured, Protocol):
    """A module that trains a policy.

    Attributes:
        policy: its network and tokenizer.
    """

    policy: Policy

    @property
    def version(self) -> int:
        """Optimizer steps taken: the version of the policy's weights."""

    def export(self, folder: str | Path, network: Any = None) -> None:
        """Write the policy as a folder that others load; ``network`` is its own, put together again."""


@runtime_checkable
class Evaluated(Protocol):
    """A module whose evaluations are played.

    Attributes:
        eval_metrics: of the last evaluation, by game.
    """

    eval_metrics: dict[str, EpisodeMetrics]


@runtime_checkable
class Trained(Protocol):
    """A module with an updater.

    Attributes:
        updater: what it trains, and the steps behind it.
    """

    updater: Updater


def as_trained(module: LightningModule) -> Trained:
    """The module, as what has an updater.

    Raises:
        ValueError: it has none.
    """
    if isinstance(module, Trained):
        return module
    raise ValueError(f"{type(module).__name__} needs an updater (modules.contract.Trained)")


def as_measured(module: LightningModule) -> Measured:
    """The module, as what has metrics.

    Raises:
        ValueError: it has none.
    """
    if isinstance(module, Measured):
        return module
    raise ValueError(
        f"{type(module).__name__} needs row and last_row, dicts of metrics (modules.contract.Measured)"
    )


def as_agent(module: LightningModule) -> Agent:
    """The module, as what trains a policy.

    Raises:
        ValueError: it does not.
    """
    if isinstance(module, Agent):
        return module
    raise ValueError(
        f"{type(module).__name__} needs row, last_row, policy, version and export (modules.contract.Agent)"
    )
