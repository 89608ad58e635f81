"""The collapse monitor: rules about the metrics of an iteration, and an action."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from lit_agentrl.batch import StepBatch
from lit_agentrl.checks import name_errors
from lit_agentrl.modules.contract import Agent, Evaluated, as_measured
from lit_agentrl.monitor.actions import Action, Warn
from lit_agentrl.monitor.rules import Alarm, Rule
from lit_agentrl.monitor.signals import Row, compute_uniformity, measure_replies

_log = logging.getLogger(__name__)


class CollapseMonitor(Callback):
    """Warn when a run collapses, and act; without an action no other number changes.

    The callback adds ``collapse/…`` to the iteration's metrics (`signals.measure_replies`,
    `signals.compute_uniformity`), and ``collapse/alarms`` in an iteration with alarms.  It must be listed before the
    iteration log, which writes the metrics, and before the checkpoints.

    Args:
        rules: the rules by name; null entries are left out.
        action: what follows an alarm.  It acts before the next iteration, after the weights that caused the alarm are
            measured and perhaps saved as best.  None: alarms are only printed.

    Attributes:
        warnings: a line for each alarm, with its evidence, and for each act of the action, earlier launches included.
        has_stopped: whether the monitor has ended the run.
        only_for_resuming: True: ``best.ckpt`` lacks the state, because an action may keep weights and moments in it.
    """

    only_for_resuming = True

    def __init__(self, rules: Mapping[str, Rule | None], action: Action | None = None) -> None:
        self.rules = {name: rule for name, rule in rules.items() if rule is not None}
        self.action = Warn() if action is None else action
        with name_errors("action"):
            self.action.check_rules(self.rules)
        self.warnings: list[str] = []
        self.has_stopped = False
        self._is_due = False  # whether the action must act before the next iteration
        self._is_over = False
        self._replies: dict[str, float] = {}
        self._evaluated: list[float | None] = []
        self._start: dict[str, float] = {}  # validation before training

    def state_dict(self) -> dict[str, Any]:
        """Return what the rules have seen, the warnings and the state of the action."""
        seen = {name: rule.state_dict() for name, rule in self.rules.items()}
        return {
            "rules": seen, "warnings": list(self.warnings), "has_stopped": self.has_stopped, "is_due": self._is_due,
            "action": self.action.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state; new rules start empty, and after training nothing changes."""
        if self._is_over:  # loading the best checkpoint to measure it would also load its older state
            return
        self.warnings += [line for line in state_dict["warnings"] if line not in self.warnings]
        self.has_stopped = state_dict["has_stopped"]
        self._is_due = state_dict.get("is_due", False)  # earlier versions had no action that waits
        if action_state := state_dict.get("action"):
            self.action.load_state_dict(action_state)
        for name, seen in state_dict["rules"].items():
            if name in self.rules:
                with name_errors(f"rules.{name}"):
                    self.rules[name].load_state_dict(seen)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let the action refuse a run in which it cannot act."""
        with name_errors("callbacks.collapse"):
            self.action.setup(trainer, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the validation before training; stop a stopped run again if the action ends runs."""
        self.action.start(trainer, pl_module)
        self.has_stopped = self.has_stopped and self.action.ends
        if trainer.current_epoch == 0:
            self._check_rules(trainer, self._start, 0)
        if self.has_stopped:
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._is_over = True

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Perform the action for alarms of the last iteration."""
        if not self._is_due:
            return
        self._is_due = False
        if done := self.action.act(trainer, pl_module):
            for rule in self.rules.values():
                rule.reset_streak()
            self._warn(trainer, f"before iteration {trainer.current_epoch + 1}: {done}")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: StepBatch, batch_idx: int
    ) -> None:
        """Measure the replies now, since only the batch holds them."""
        self._replies = measure_replies(batch.own_episodes)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the entropy of each game's validation, and the metrics before training."""
        played = pl_module.eval_metrics.values() if isinstance(pl_module, Evaluated) else ()
        self._evaluated = [metrics.compute().get("entropy") for metrics in played]
        if trainer.state.fn == TrainerFn.VALIDATING:
            measured = as_measured(pl_module).row
            self._start = {name: value for name, value in measured.items() if name.startswith("val/")}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the metrics of the iteration, which are equal on all ranks."""
        module = as_measured(pl_module)
        module.row |= self._replies | self._compute_uniformity(pl_module)
        self._replies, self._evaluated = {}, []
        metrics = dict(module.row)
        alarms = self._check_rules(trainer, metrics, trainer.current_epoch + 1)
        module.row |= self.action.metrics()
        if alarms:
            module.row["collapse/alarms"] = float(alarms)
        elif all(rule.is_quiet for rule in self.rules.values()) and any(
            key.startswith("val/") for key in metrics
        ):
            self.action.note_healthy(trainer, pl_module)

    def _check_rules(self, trainer: Trainer, row: Row, iteration: int) -> int:
        """Check the rules with an iteration's metrics; return the number of alarms."""
        alarms = [alarm for name, rule in self.rules.items() if (alarm := rule.look(name, row)) is not None]
        for alarm in alarms:
            self._warn(trainer, _format_alarm(alarm, self.rules[alarm.rule], iteration))
        if self.action.is_concerned([alarm.rule for alarm in alarms]):
            self._is_due = not self.action.ends
            if self.action.ends:
                self.has_stopped = trainer.should_stop = True
        return len(alarms)

    def _warn(self, trainer: Trainer, line: str) -> None:
        self.warnings.append(line)
        if trainer.is_global_zero:
            _log.warning("warning: %s", line)

    def _compute_uniformity(self, pl_module: LightningModule) -> dict[str, float]:
        """Compute the uniformity of a policy that has a network."""
        network = pl_module.policy.network if isinstance(pl_module, Agent) else None
        if network is None:
            return {}
        played = as_measured(pl_module).row.get("rollout/entropy")
        return compute_uniformity([played, *self._evaluated], network.config.get_text_config().vocab_size)


def _format_alarm(alarm: Alarm, rule: Rule, iteration: int) -> str:
    side = "below" if rule.above is None else "above"
    relation = {"one": "", "first": f" of its first {rule.window}", "peak": " of its peak"}
    relation |= {"first_plus": f" beyond the mean of its first {rule.window}"}
    relation |= {"median": f" of the median of the {rule.window} before"}
    factor = rule.below if rule.above is None else rule.above
    share = f" ({factor:g}{relation[rule.reference]})" if relation[rule.reference] else ""
    if rule.standard_errors is not None:
        share = f" ({factor:g} of its peak, and {rule.standard_errors:g} standard errors below it)"
    recent = ", ".join(f"{value:.3g}" for value in alarm.recent)
    times = f", {rule.patience} times in a row" if rule.patience > 1 else ""
    return (
        f"iteration {iteration}: collapse rule {alarm.rule}: {alarm.value:.3g} is {side} {alarm.bound:.3g}{share}"
        f"{times}; last values {recent}{f'; {rule.advice}' if rule.advice else ''}"
    )
