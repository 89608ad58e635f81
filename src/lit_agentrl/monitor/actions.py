"""Actions that follow an alarm of the monitor: their base, ``Warn`` and ``Stop``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lit_agentrl.checks import require


class Action:
    """Base of what follows an alarm, which is the same on all ranks.

    Args:
        rules: whose alarms it follows, by name; null: all.

    Attributes:
        ends: whether the next alarm ends the run, as collapsed.
    """

    ends = False

    def __init__(self, rules: Sequence[str] | None = None) -> None:
        self.rules = None if rules is None else tuple(rules)

    def check_rules(self, names: Collection[str]) -> None:
        """Refuse a rule that is not there.

        Raises:
            ValueError: naming it.
        """
        for name in self.rules or ():
            require(name in names, "rules", name, f"names of rules of the monitor: {', '.join(names)}")

    def is_concerned(self, alarms: Collection[str]) -> bool:
        """Return whether it follows one of these rules, which came true."""
        return any(self.rules is None or name in self.rules for name in alarms)

    def setup(self, trainer: Trainer, module: LightningModule) -> None:
        """Refuse a run in which it cannot act, before anything is played.

        Raises:
            ValueError: says why, and the remedy.
        """

    def start(self, trainer: Trainer, module: LightningModule) -> None:
        """Prepare for training, which starts or resumes from what `load_state_dict` was given."""

    def act(self, trainer: Trainer, module: LightningModule) -> str:
        """Act before the iteration after an alarm; return what was done, in words."""
        return ""

    def note_healthy(self, trainer: Trainer, module: LightningModule) -> None:
        """Note a validated iteration at whose end no rule is beyond its bound."""

    def metrics(self) -> dict[str, float]:
        """Return what it adds to the metrics of each iteration."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain data alone, for checkpoints."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""


class Warn(Action):
    """Report the alarm and do nothing else."""

    def __init__(self) -> None:
        super().__init__()


class Stop(Action):
    """End the run after the iteration, with the status ``collapsed``."""

    ends = True
