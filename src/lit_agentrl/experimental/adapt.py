"""An action that changes the filter ratio or the entropy or KL coefficient at alarms."""

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


class Setting(NamedTuple):
    """Getter and setter of a number of the run."""

    read: Callable[[], float]
    write: Callable[[float], object]


class Adapt(Action):
    """An action that multiplies options of the run by a factor at each alarm.

    An option never moves beyond its bound.

    Args:
        rules: see `Action`.
        filter: ``factor`` and ``bound`` for ``filter.ratio``, the share of groups used for training; None leaves the
            ratio unchanged.
        entropy: ``factor`` and ``bound`` for ``algo.entropy.coef``, or None.
        kl: ``factor`` and ``bound`` for ``algo.kl.coef``, or None.

    Raises:
        ValueError: no option is given, or an entry is invalid; in `setup`, an option is missing in the run or is
            already at its bound.
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
        self._changes = {name: change for name, change in requested.items() if change is not None}
        require(bool(self._changes), "filter", None, "given, or else entropy or kl")
        for name, change in self._changes.items():
            require(
                set(change) == {"factor", "bound"},
                name,
                dict(change),
                "of the form {factor: 0.5, bound: 0.25}",
            )
            require_number(
                f"{name}.factor", change["factor"], "a number > 0 other than 1", lambda x: x > 0 and x != 1
            )
            require_number(f"{name}.bound", change["bound"], "a number > 0", lambda x: x > 0)
        self._settings: dict[str, Setting] = {}
        self._saved: Mapping[str, float] = {}

    def setup(self, trainer: Trainer, module: LightningModule) -> None:
        if self._settings:  # already set up; the values may have changed since
            return
        self._settings = _find_settings(trainer, module)
        for name, change in self._changes.items():
            if name not in self._settings:
                raise ValueError(
                    f"action.{name}={format_value(change)} has no effect: {_OPTIONS[name]} is "
                    f"not an option of this run, or changes by itself; {_REMEDY[name]}, or set it to null"
                )
            now, (factor, bound) = self._settings[name].read(), (change["factor"], change["bound"])
            if not (now < bound if factor > 1 else now > bound):
                raise ValueError(
                    f"action.{name}.bound={bound:g}: {_OPTIONS[name]}={now:g} has already reached it; a factor of "
                    f"{factor:g} needs a bound {'above' if factor > 1 else 'below'} it"
                )

    def start(self, trainer: Trainer, module: LightningModule) -> None:
        """Restore the values from the checkpoint."""
        for name, value in self._saved.items():
            if name in self._changes:
                self._settings[name].write(value)

    def act(self, trainer: Trainer, module: LightningModule) -> str:
        changes = []
        for name, change in self._changes.items():
            before, (factor, bound) = self._settings[name].read(), (change["factor"], change["bound"])
            after = min(before * factor, bound) if factor > 1 else max(before * factor, bound)
            if after != before:
                self._settings[name].write(after)
                changes.append(f"{_OPTIONS[name]} {before:.3g} -> {after:.3g}")
        return ", ".join(changes)

    def metrics(self) -> dict[str, float]:
        """Return the filter ratio; the update already logs the coefficients."""
        return {"collapse/filter_ratio": self._settings["filter"].read()} if "filter" in self._changes else {}

    def state_dict(self) -> dict[str, Any]:
        return {name: self._settings[name].read() for name in self._changes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._saved = dict(state)


def _find_settings(trainer: Trainer, module: LightningModule) -> dict[str, Setting]:
    settings = {}
    for term in as_trained(module).updater.objective.terms():
        if isinstance(term, Held) and term.is_held:
            settings[term.place] = Setting(partial(getattr, term, "coef"), partial(setattr, term, "coef"))
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, RolloutCallback) and "ratio" in constants(callback.collector.select_groups):
            settings["filter"] = Setting(
                partial(_read_ratio, callback.collector), partial(_set_ratio, callback.collector)
            )
    return settings


def _read_ratio(collector: Collector) -> float:
    return float(constants(collector.select_groups)["ratio"])


def _set_ratio(collector: Collector, ratio: float) -> None:
    collector.select_groups = partial(collector.select_groups, ratio=ratio)
