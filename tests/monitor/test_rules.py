"""Rules on constructed curves: when they come true, when they do not, and that an interrupt changes nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import DictConfig

from lit_agentrl.monitor.rules import Rule
from lit_agentrl.monitor.signals import reward_gap
from tests.conftest import load_option

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


def play(successes: Sequence[float], episodes: int, seed: int) -> list[dict[str, float]]:
    """Draw validations of policies that succeed with these probabilities."""
    shares = np.random.default_rng(seed).binomial(episodes, successes) / episodes
    return [{"val/success": float(share), "val/episodes": float(episodes)} for share in shares]


@cache  # read from disk once
def shipped_rules() -> DictConfig:
    rules: DictConfig = load_option("callbacks/collapse", "default").rules
    return rules


def find_first(name: str, rows: Sequence[Mapping[str, float]]) -> int | None:
    """Return where a rule of ``conf`` comes true first."""
    rule = instantiate(shipped_rules()[name])
    return next((at for at, row in enumerate(rows) if rule.look(name, row) is not None), None)


def test_a_slow_fall_of_validation_comes_true() -> None:
    """The 1,000 iterations of docs/findings/learning.md: validation every 50 of 256 rooms, from 0.844 to 0.562."""
    fall = [
        0.793,
        0.81,
        0.82,
        0.83,
        0.844,
        0.84,
        0.83,
        0.82,
        0.81,
        0.80,
        0.793,
        0.76,
        0.73,
        0.703,
        0.66,
        0.62,
        0.59,
    ]
    fall += [0.574, 0.57, 0.565, 0.562]
    alone = [{"val/success": share, "val/episodes": 256.0} for share in fall]
    assert find_first("slow_fall", alone) == 13 and find_first("validation", alone) is None
    found = [find_first("slow_fall", play(fall, 256, seed)) for seed in range(20)]
    assert all(at is not None and 11 <= at <= 17 for at in found)


@pytest.mark.slow
@pytest.mark.parametrize("episodes", [32, 256])
@pytest.mark.parametrize("success", [0.05, 0.3, 0.8, 0.98])
def test_noise_of_validation_is_no_fall(success: float, episodes: int) -> None:
    for seed in range(20):
        rows = play([success] * 50, episodes, seed)
        assert find_first("slow_fall", rows) is None and find_first("validation", rows) is None


def test_a_collapse_is_told_from_a_few_episodes_that_failed() -> None:
    """0.0312 of 32 is below half of 0.0938: one success instead of three; of 512 it is a collapse."""
    for episodes, at in ((32, None), (512, 3)):
        rows = [
            {"val/success": share, "val/episodes": episodes} for share in (3 / 32, 1 / 32, 1 / 32, 1 / 32)
        ]
        assert find_first("validation", rows) == at
    assert (
        find_first("validation", [{"val/success": 1.0}, *[{"val/success": 0.0}] * 5]) is None
    )  # of how many?
    pairs = [{"val/success": share, "val/pairs": 500.0} for share in (0.9, 0.1, 0.1, 0.1)]
    assert find_first("validation", pairs) == 3


def test_the_standard_error_is_that_of_two_shares() -> None:
    """(50 + 1) / 102 and (25 + 1) / 102 of 100: sqrt(0.0025 + 0.00190) = 0.0663, three of it below 0.5."""
    rule = Rule("x", below=1.0, reference="peak", standard_errors=3.0, count="n")
    rule.look("r", {"x": 0.5, "n": 100.0})
    alarm = rule.look("r", {"x": 0.25, "n": 100.0})
    errors = math.sqrt((51 / 102) * (51 / 102) / 100 + (26 / 102) * (76 / 102) / 100)
    assert alarm is not None and alarm.bound == pytest.approx(0.5 - 3 * errors)


def test_values_are_averaged_before_they_are_looked_at() -> None:
    assert fired(Rule("x", below=3.0, smooth=3), [9, 1, 1, 1, 9]) == [3]


def test_each_rule_of_a_run_gives_advice() -> None:
    assert all(rule.advice for rule in shipped_rules().values())


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
    fall = play([0.9] * 6 + [0.3] * 6, 64, 0)
    options: dict[str, Any] = {"below": 1.0, "reference": "peak", "smooth": 3, "standard_errors": 5.0}
    for cut in range(len(fall)):
        rule, again = (Rule("val/success", **options, count="val/episodes") for _ in range(2))
        before = [at for at, row in enumerate(fall[:cut]) if rule.look("r", row) is not None]
        again.load_state_dict(rule.state_dict())
        assert before + [at for at, row in enumerate(fall[cut:], cut) if again.look("r", row)] == [6]


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
        ({"below": 1, "smooth": 0}, "smooth=0 must be a whole number >= 1"),
        (
            {"above": 1, "standard_errors": 2.0},
            "standard_errors=2.0 must be null, or given with below, reference=peak and count",
        ),
    ],
)
def test_bad_options_are_one_line(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}$"):
        Rule("x", **options)


def test_a_signal_may_be_a_function() -> None:
    assert reward_gap({"reward/total": 3.0, "rollout/return_mean": 1.0, "rollout/success": 0.5}) == 2.5
    assert reward_gap({"rollout/return_mean": 1.0, "rollout/success": 0.5}) == 0.5 and reward_gap({}) is None
    assert Rule(reward_gap, above=2.0).look("gap", {"reward/total": 3.0, "rollout/success": 0.5}) is not None
