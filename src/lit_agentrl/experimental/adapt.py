"""An action that changes the filter ratio, entropy bonus or KL coefficient at alarms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from lightning.pytorch import LightningModule, Trainer

from lit_agentrl.callbacks.rollout import RolloutCallback
from lit_agentrl.checks import format_value, require, require_number
from lit_agentrl.modules.contract import as_trained
from lit_agentrl.monitor.actions import Action
from lit_agentrl.rl.binding import constants
from lit_agentrl.rl.objective import Held
from lit_agentrl.rollout.collector import Collector

_OPTIONS = {"filter": "filter.ratio", "entropy": "algo.entropy.coef", "kl": "algo.kl.coef"}
_REMEDY = {
    "filter": "choose filter=top_std",
    "entropy": "choose algo/entropy=bonus",
    "kl": "choose a KL term, such as algo/kl=loss_k3, with algo/kl_controller=fixed",
}


class Dial(NamedTuple):
    """Getter and setter of a number of the run that the action may change."""

    read: Callable[[], float]
    write: Callable[[float], object]


class Adapt(Action):
    """An action that multiplies options of the run by a factor at each alarm.

    An option never moves beyond its bound.

    Args:
        rules: see `Action`.
        filter: ``factor`` and ``bound`` for ``filter.ratio``, the share of groups used for training; None leaves the
            ratio unchanged.
        entropy: the same for ``algo.entropy.coef``.
        kl: the same for ``algo.kl.coef``.

    Raises:
        ValueError: there is nothing to change, or a factor leads away from its bound.
    """

    def __init__(
        self,
        rules: Sequence[str] | None = None,
        filter: Mapping[str, float] | None = None,
        entropy: Mapping[str, float] | None = None,
        kl: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(rules)
        requested = {"filter": filter, "entropy": entropy, "kl": kl}
        self.turns = {name: turn for name, turn in requested.items() if turn is not None}
        require(bool(self.turns), "filter", None, "given, or else entropy or kl")
        for name, turn in self.turns.items():
            require(
                set(turn) == {"factor", "bound"}, name, dict(turn), "of the form {factor: 0.5, bound: 0.25}"
            )
            require_number(
                f"{name}.factor", turn["factor"], "a number > 0 other than 1", lambda x: x > 0 and x != 1
            )
            require_number(f"{name}.bound", turn["bound"], "a number > 0", lambda x: x > 0)
        self._dials: dict[str, Dial] = {}
        self._saved: Mapping[str, float] = {}

    def setup(self, trainer: Trainer, module: LightningModule) -> None:
        if self._dials:  # already set up; the values may have changed since
            return
        self._dials = _find_dials(trainer, module)
        for name, turn in self.turns.items():
            if name not in self._dials:
                raise ValueError(
                    f"action.{name}={format_value(turn)} has no effect: {_OPTIONS[name]} is "
                    f"not an option of this run, or changes by itself; {_REMEDY[name]}, or set it to null"
                )
            now, (factor, bound) = self._dials[name].read(), (turn["factor"], turn["bound"])
            if not (now < bound if factor > 1 else now > bound):
                raise ValueError(
                    f"action.{name}.bound={bound:g}: {_OPTIONS[name]}={now:g} has already reached it; a factor of "
                    f"{factor:g} needs a bound {'above' if factor > 1 else 'below'} it"
                )

    def start(self, trainer: Trainer, module: LightningModule) -> None:
        """Restore the values from the checkpoint."""
        for name, value in self._saved.items():
            if name in self.turns:
                self._dials[name].write(value)

    def act(self, trainer: Trainer, module: LightningModule) -> str:
        changes = []
        for name, turn in self.turns.items():
            before, (factor, bound) = self._dials[name].read(), (turn["factor"], turn["bound"])
            after = min(before * factor, bound) if factor > 1 else max(before * factor, bound)
            if after != before:
                self._dials[name].write(after)
                changes.append(f"{_OPTIONS[name]} {before:.3g} -> {after:.3g}")
        return ", ".join(changes)

    def metrics(self) -> dict[str, float]:
        """Return the filter ratio; the update already logs the coefficients."""
        return {"collapse/filter_ratio": self._dials["filter"].read()} if "filter" in self.turns else {}

    def state_dict(self) -> dict[str, Any]:
        return {name: self._dials[name].read() for name in self.turns}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._saved = dict(state)


def _find_dials(trainer: Trainer, module: LightningModule) -> dict[str, Dial]:
    dials = {}
    for term in as_trained(module).updater.objective.terms():
        if isinstance(term, Held) and term.is_held:
            dials[term.place] = Dial(partial(getattr, term, "coef"), partial(setattr, term, "coef"))
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, RolloutCallback) and "ratio" in constants(callback.collector.select_groups):
            dials["filter"] = Dial(
                partial(_read_ratio, callback.collector), partial(_set_ratio, callback.collector)
            )
    return dials


def _read_ratio(collector: Collector) -> float:
    return float(constants(collector.select_groups)["ratio"])


def _set_ratio(collector: Collector, ratio: float) -> None:
    collector.select_groups = partial(collector.select_groups, ratio=ratio)
