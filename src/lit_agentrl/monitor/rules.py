"""Rules about a signal: bound, reference and patience."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from lit_agentrl.checks import require, require_number, require_one_of, require_whole
from lit_agentrl.monitor.signals import Row

REFERENCES = ("one", "first", "first_plus", "median", "peak")


@dataclass(frozen=True)
class Alarm:
    """A rule that has come true.

    Attributes:
        rule: its name.
        value: of the signal now.
        bound: that it has crossed.
        recent: its last values, the newest last.
    """

    rule: str
    value: float
    bound: float
    recent: tuple[float, ...]


class Rule:
    """Alarm when a signal stays beyond a multiple of a reference, several times.

    It comes true once; then again only after the signal has been back.

    Args:
        signal: a metric, by name; or a function of an iteration's metrics. Where it was not measured (None), the rule
            takes no notice.
        below: multiple of the reference; or else ``above``.
        above: the same of a signal that rises.
        reference: ``one``: the bound is the number itself.  ``first``: mean of the first ``window`` values;
            ``first_plus``: this mean and the number are added, for signals whose level says nothing.
            ``median``: of the ``window`` values before this one.  ``peak``: the largest value before.
        window: values that a reference rests on; the rule is silent until it has them.
        patience: how many values in a row are beyond the bound.
        advice: what may help, in words; told with its alarms.

    Raises:
        ValueError: an option that makes no sense.
    """

    def __init__(
        self,
        signal: str | Callable[[Row], float | None],
        below: float | None = None,
        above: float | None = None,
        reference: str = "one",
        window: int = 10,
        patience: int = 1,
        advice: str = "",
    ) -> None:
        require_one_of("reference", reference, REFERENCES)
        require_whole("window", window, 1)
        require_whole("patience", patience, 1)
        require((below is None) != (above is None), "below", below, "given, or else above, not both")
        name, bound = ("below", below) if above is None else ("above", above)
        require_number(name, bound, "a number")
        self.signal, self.below, self.above = signal, below, above
        self.reference, self.window, self.patience, self.advice = reference, window, patience, advice
        self._first: list[float] = []
        self._last: list[float] = []
        self._peak: float | None = None
        self._streak = 0

    def look(self, name: str, row: Row) -> Alarm | None:
        """Check an iteration's metrics; return the alarm if the rule comes true."""
        value = row.get(self.signal) if isinstance(self.signal, str) else self.signal(row)
        if value is None or not math.isfinite(value):
            return None
        bound = self._bound()
        alarm = None
        if bound is not None:
            is_beyond = value < bound if self.above is None else value > bound
            self._streak = self._streak + 1 if is_beyond else 0
            if self._streak == self.patience:
                alarm = Alarm(name, value, bound, (*self._last[-4:], value))
        if len(self._first) < self.window:
            self._first.append(value)
        self._last = [*self._last, value][-max(self.window, 4) :]
        self._peak = value if self._peak is None else max(self._peak, value)
        return alarm

    @property
    def is_quiet(self) -> bool:
        """Return whether the last value was within the bound."""
        return self._streak == 0

    def reset_streak(self) -> None:
        """Forget that values are beyond the bound, since their cause was undone."""
        self._streak = 0

    def _bound(self) -> float | None:
        number, reference = (self.below if self.above is None else self.above), self._compute_reference()
        if reference is None or number is None:
            return None
        return reference + number if self.reference == "first_plus" else reference * number

    def _compute_reference(self) -> float | None:
        if self.reference == "one":
            return 1.0
        if self.reference == "peak":
            return self._peak
        if self.reference in ("first", "first_plus"):
            return fmean(self._first) if len(self._first) == self.window else None
        return median(self._last[-self.window :]) if len(self._last) >= self.window else None

    def state_dict(self) -> dict[str, Any]:
        """Return what it has seen, for checkpoints."""
        return {
            "first": list(self._first),
            "last": list(self._last),
            "peak": self._peak,
            "streak": self._streak,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._first, self._last = list(state["first"]), list(state["last"])
        self._peak, self._streak = state["peak"], state["streak"]


def collapse() -> Rule:
    """Make the rule for a collapse: validation success below half its peak, three times."""
    return Rule("val/success", below=0.5, reference="peak", patience=3)


def find_alarms(rule: Rule, rows: Sequence[Mapping[str, float | None]]) -> list[int]:
    """Return the iterations in which a new rule comes true; None is skipped."""
    measured = ({name: value for name, value in row.items() if value is not None} for row in rows)
    return [int(row["iteration"]) for row in measured if rule.look("rule", row) is not None]
