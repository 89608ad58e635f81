"""Actions that follow an alarm of the monitor: their base, ``Warn`` and ``Stop``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lit_agentrl.checks import require


class Action:
    """Base of the actions that follow an alarm; all ranks see the same alarms.

    Args:
        rules: names of the rules whose alarms the action follows; null for all rules.

    Attributes:
        ends: whether the next alarm ends the run, with the status ``collapsed``.
    """

    ends = False

    def __init__(self, rules: Sequence[str] | None = None) -> None:
        self.rules = None if rules is None else tuple(rules)

    def check_rules(self, names: Collection[str]) -> None:
        """Refuse names of rules that the monitor does not have.

        Raises:
            ValueError: a rule is unknown; the message names it.
        """
        for name in self.rules or ():
            require(name in names, "rules", name, f"names of rules of the monitor: {', '.join(names)}")

    def is_concerned(self, alarms: Collection[str]) -> bool:
        """Return whether the action follows one of these rules, which raised an alarm."""
        return any(self.rules is None or name in self.rules for name in alarms)

    def setup(self, trainer: Trainer, module: LightningModule) -> None:
        """Refuse a run in which the action is impossible, before anything is played.

        Raises:
            ValueError: the action is impossible; the message names the reason and the remedy.
        """

    def start(self, trainer: Trainer, module: LightningModule) -> None:
        """Prepare for training; in a resumed run `load_state_dict` was called before."""

    def act(self, trainer: Trainer, module: LightningModule) -> str:
        """Act before the iteration after an alarm; return a sentence that says what was done."""
        return ""

    def note_healthy(self, trainer: Trainer, module: LightningModule) -> None:
        """Note a validated iteration at whose end no rule is beyond its bound."""

    def metrics(self) -> dict[str, float]:
        """Return the action's own metrics of each iteration."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints, as tensors and plain data."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""


class Warn(Action):
    """Report the alarm and do nothing else."""

    def __init__(self) -> None:
        super().__init__()


class Stop(Action):
    """End the run after the iteration, with the status ``collapsed``."""

    ends = True
