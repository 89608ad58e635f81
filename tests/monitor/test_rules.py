"""Rules on constructed curves: when they come true, when they do not, and that an interrupt changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from lit_agentrl.monitor.rules import Rule
from lit_agentrl.monitor.signals import reward_gap

STEADY = [1.0, 1.2, 0.8, 1.1, 0.9] * 12


def fired(rule: Rule, values: Sequence[float | None]) -> list[int]:
    """Iterations in which it comes true."""
    rows = [{} if value is None else {"x": value} for value in values]
    return [number for number, row in enumerate(rows) if rule.look("r", row) is not None]


@pytest.mark.parametrize(
    ("options", "bad", "at"),
    [
        ({"below": 0.1, "reference": "first", "patience": 10}, [0.05] * 20, 9),  # spread
        (
            {"above": 0.95, "patience": 10},
            [1.0] * 20,
            None,
        ),  # dead groups; the steady curve is above, see below
        ({"below": 0.5, "reference": "peak", "patience": 3}, [0.3, 0.7, 0.3, 0.3, 0.3], 4),  # validation
        ({"above": 10.0, "reference": "median", "window": 20, "patience": 3}, [20.0] * 3, 2),  # gradient
        ({"above": 10.0, "reference": "median", "window": 20, "patience": 3}, [20.0, 20.0, 1.0, 20.0], None),
        ({"below": 0.1, "reference": "first", "patience": 10}, [0.05] * 9 + [1.0], None),
    ],
)
def test_a_rule_comes_true_on_a_collapse_and_not_on_noise(
    options: dict[str, Any], bad: list[float], at: int | None
) -> None:
    curve = STEADY if options["patience"] != 10 or "below" in options else [0.5] * 60
    rule = Rule("x", **options)
    assert fired(rule, curve) == []
    expected = [9] if "reference" not in options else [] if at is None else [at]
    assert fired(rule, bad) == expected


def test_it_comes_true_once_and_again_after_the_signal_has_been_back() -> None:
    rule = Rule("x", above=2.0, patience=2)
    assert fired(rule, [3, 3, 3, 3, 1, 3, 3]) == [1, 6]
    assert not rule.is_quiet


def test_what_is_not_measured_is_no_value() -> None:
    rule = Rule("x", above=2.0, patience=2)
    assert fired(rule, [3, None, float("nan"), 3]) == [3]


def test_a_number_beyond_the_first_values_is_added_to_their_mean() -> None:
    """Mean -0.1: beyond it by more than 0.5 from the fifth value on; a mean of 0 would have no multiple."""
    rule = Rule("x", above=0.5, reference="first_plus", window=2, patience=2)
    assert fired(rule, [-0.2, 0.0, 0.4, 0.4, 0.41, 0.6]) == [5]
    fallen = Rule("x", below=-0.5, reference="first_plus", window=1)
    assert fired(fallen, [0.2, -0.3, -0.31]) == [2]


def test_a_reference_waits_for_its_window() -> None:
    rule = Rule("x", below=0.5, reference="first", window=2)
    assert fired(rule, [8, 8, 8, 3]) == [3]
    alarm = Rule("x", below=0.5, reference="peak").look("r", {"x": 1.0})
    assert alarm is None  # a first value has no peak before it


def test_the_evidence_is_told() -> None:
    rule = Rule("x", below=0.5, reference="peak")
    assert fired(rule, [8, 9]) == []
    alarm = rule.look("validation", {"x": 4.0})
    assert alarm is not None and (alarm.rule, alarm.value, alarm.bound, alarm.recent) == (
        "validation",
        4.0,
        4.5,
        (8, 9, 4.0),
    )


def test_an_interrupted_rule_goes_on_as_if_it_was_not() -> None:
    curve = [*STEADY[:20], *[0.05] * 12]
    for cut in range(0, len(curve), 3):
        rule, again = (Rule("x", below=0.1, reference="first", patience=10) for _ in range(2))
        before = fired(rule, curve[:cut])
        again.load_state_dict(rule.state_dict())
        assert before + [cut + at for at in fired(again, curve[cut:])] == [29]
        assert again.state_dict() == again.state_dict()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "below=null must be given, or else above, not both"),
        ({"below": 1, "above": 1}, "below=1 must be given, or else above, not both"),
        ({"below": "x"}, "below=x must be a number"),
        (
            {"below": 1, "reference": "last"},
            "reference=last must be one of one, first, first_plus, median, peak",
        ),
        ({"below": 1, "patience": 0}, "patience=0 must be a whole number >= 1"),
    ],
)
def test_bad_options_are_one_line(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}$"):
        Rule("x", **options)


def test_a_signal_may_be_a_function() -> None:
    assert reward_gap({"reward/total": 3.0, "rollout/return_mean": 1.0, "rollout/success": 0.5}) == 2.5
    assert reward_gap({"rollout/return_mean": 1.0, "rollout/success": 0.5}) == 0.5 and reward_gap({}) is None
    assert Rule(reward_gap, above=2.0).look("gap", {"reward/total": 3.0, "rollout/success": 0.5}) is not None
