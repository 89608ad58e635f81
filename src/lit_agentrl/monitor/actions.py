"""What is done about alarms of the monitor: the base of all actions, and the two that touch no weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lit_agentrl.checks import require


class Action:
    """What follows an alarm; an own one inherits this and says what differs.  It does the same on all ranks.

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

    def follows(self, alarms: Collection[str]) -> bool:
        """Whether one of these rules, which came true, concerns it."""
        return any(self.rules is None or name in self.rules for name in alarms)

    def setup(self, trainer: Trainer, module: LightningModule) -> None:
        """Refuse a run in which it cannot act, before anything is played.

        Raises:
            ValueError: says why, and the remedy.
        """

    def start(self, trainer: Trainer, module: LightningModule) -> None:
        """Training begins, or goes on with what `load_state_dict` was given."""

    def act(self, trainer: Trainer, module: LightningModule) -> str:
        """Called before the iteration after an alarm; what was done, in words, or nothing."""
        return ""

    def note_healthy(self, trainer: Trainer, module: LightningModule) -> None:
        """Called at the end of an iteration that was validated and after which no rule is beyond its bound."""

    def metrics(self) -> dict[str, float]:
        """What it adds to the metrics of each iteration."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain data alone, for checkpoints."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse."""


class Warn(Action):
    """The alarm is told, and that is all."""

    def __init__(self) -> None:
        super().__init__()


class Stop(Action):
    """The run ends after the iteration, with the status ``collapsed``."""

    ends = True
