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
    """An alarm of a rule.

    Attributes:
        rule: name of the rule.
        value: current value of the signal.
        bound: the bound that the value has crossed.
        recent: last values of the signal, the newest last.
    """

    rule: str
    value: float
    bound: float
    recent: tuple[float, ...]


class Rule:
    """A rule that raises an alarm when a signal stays beyond its bound.

    The bound is a multiple of a reference.  After an alarm, the rule is silent until the signal has been within the
    bound again.

    With ``standard_errors`` = z, the signal is a share (of successes) and must also be below its peak by more than
    chance explains: peak - value > z sqrt(p(1-p)/n + q(1-q)/m), where p = (n value + 1) / (n + 2) of n episodes, and q
    is the same of the m episodes of the peak.  The root is the error of the difference of two independent draws; if
    both draws have the same tasks, the true error is smaller.

    Args:
        signal: the name of a metric, or a function of an iteration's metrics.  The rule skips iterations in which the
            signal was not measured (None).
        below: the bound of a signal that must not fall, as a multiple of the reference; give this or ``above``.
        above: the bound of a signal that must not rise, as a multiple of the reference.
        reference: ``one``: the bound is the number itself.  ``first``: mean of the first ``window`` values;
            ``first_plus``: this mean and the number are added, for signals whose level says nothing.
            ``median``: of the ``window`` values before this one.  ``peak``: the largest value before.
        window: number of values from which a reference is computed; the rule is silent until it has them.
        patience: number of values in a row that must be beyond the bound.
        smooth: number of values whose mean the rule reads; the rule is silent until it has them.
        standard_errors: z, for ``below`` with ``reference=peak``; None leaves chance out of account.
        count: with ``standard_errors``, the metric that counts the episodes of a value, by name or as a function.  The
            rule skips iterations in which the count was not measured.
        advice: a sentence that says what may help; alarms show it.

    Raises:
        ValueError: an option has an invalid value.
    """

    def __init__(
        self,
        signal: str | Callable[[Row], float | None],
        below: float | None = None,
        above: float | None = None,
        reference: str = "one",
        window: int = 10,
        patience: int = 1,
        smooth: int = 1,
        standard_errors: float | None = None,
        count: str | Callable[[Row], float | None] | None = None,
        advice: str = "",
    ) -> None:
        require_one_of("reference", reference, REFERENCES)
        require_whole("window", window, 1)
        require_whole("patience", patience, 1)
        require((below is None) != (above is None), "below", below, "given, or else above, not both")
        name, bound = ("below", below) if above is None else ("above", above)
        require_number(name, bound, "a number")
        require_whole("smooth", smooth, 1)
        if standard_errors is not None:
            require_number("standard_errors", standard_errors, "a number >= 0", lambda errors: errors >= 0)
            is_complete = below is not None and reference == "peak" and count is not None
            require(
                is_complete,
                "standard_errors",
                standard_errors,
                "null, or given with below, reference=peak and count",
            )
        self.signal, self.below, self.above = signal, below, above
        self.reference, self.window, self.patience, self.advice = reference, window, patience, advice
        self.smooth, self.standard_errors, self.count = smooth, standard_errors, count
        self._recent: list[tuple[float, float]] = []  # values and their episodes, before they are averaged
        self._first: list[float] = []
        self._last: list[float] = []
        self._peak: float | None = None
        self._peak_count = math.inf
        self._streak = 0

    def look(self, name: str, row: Row) -> Alarm | None:
        """Check an iteration's metrics; return the alarm if there is one."""
        measured = _read(self.signal, row)
        count = math.inf if self.standard_errors is None else _read(self.count, row)
        if measured is None or not math.isfinite(measured) or not count:
            return None
        self._recent = [*self._recent, (measured, count)][-self.smooth :]
        if len(self._recent) < self.smooth:
            return None
        value, count = fmean(value for value, _ in self._recent), sum(count for _, count in self._recent)
        bound = self._compute_bound(value, count)
        alarm = None
        if bound is not None:
            is_beyond = value < bound if self.above is None else value > bound
            self._streak = self._streak + 1 if is_beyond else 0
            if self._streak == self.patience:
                alarm = Alarm(name, value, bound, (*self._last[-4:], value))
        if len(self._first) < self.window:
            self._first.append(value)
        self._last = [*self._last, value][-max(self.window, 4) :]
        if self._peak is None or value > self._peak:
            self._peak, self._peak_count = value, count
        return alarm

    @property
    def is_quiet(self) -> bool:
        """Return whether the last value was within the bound."""
        return self._streak == 0

    def reset_streak(self) -> None:
        """Forget the values beyond the bound, because their cause was undone."""
        self._streak = 0

    def _compute_bound(self, value: float, count: float) -> float | None:
        number, reference = (self.below if self.above is None else self.above), self._compute_reference()
        if reference is None or number is None:
            return None
        bound = reference + number if self.reference == "first_plus" else reference * number
        if self.standard_errors is None:
            return bound
        variance = _compute_variance(value, count) + _compute_variance(reference, self._peak_count)
        return min(bound, reference - self.standard_errors * math.sqrt(variance))

    def _compute_reference(self) -> float | None:
        if self.reference == "one":
            return 1.0
        if self.reference == "peak":
            return self._peak
        if self.reference in ("first", "first_plus"):
            return fmean(self._first) if len(self._first) == self.window else None
        return median(self._last[-self.window :]) if len(self._last) >= self.window else None

    def state_dict(self) -> dict[str, Any]:
        """Return the values that the rule has seen, for checkpoints."""
        return {
            "first": list(self._first),
            "last": list(self._last),
            "peak": self._peak,
            "peak_count": self._peak_count,
            "recent": list(self._recent),
            "streak": self._streak,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self._first, self._last = list(state["first"]), list(state["last"])
        self._peak, self._streak = state["peak"], state["streak"]
        self._peak_count = state.get("peak_count", math.inf)  # earlier versions counted no episodes
        self._recent = list(state.get("recent", ()))


def _read(metric: str | Callable[[Row], float | None] | None, row: Row) -> float | None:
    """Return a metric of an iteration, by its name or function."""
    return row.get(metric) if isinstance(metric, str) else None if metric is None else metric(row)


def _compute_variance(share: float, count: float) -> float:
    """Compute the variance of a share of ``count`` episodes; it is never 0."""
    if math.isinf(count):
        return 0.0
    smoothed = (share * count + 1) / (count + 2)
    return smoothed * (1 - smoothed) / count


def collapse() -> Rule:
    """Make the rule for a collapse: validation success below half its peak, three times."""
    return Rule("val/success", below=0.5, reference="peak", patience=3)


def find_alarms(rule: Rule, rows: Sequence[Mapping[str, float | None]]) -> list[int]:
    """Return the iterations in which the rule, not used before, raises an alarm."""
    measured = ({name: value for name, value in row.items() if value is not None} for row in rows)
    return [int(row["iteration"]) for row in measured if rule.look("rule", row) is not None]
