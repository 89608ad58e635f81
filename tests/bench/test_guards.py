"""A learned reward with and without guards: when success has fallen, and the bars, by hand."""

from __future__ import annotations

from typing import Any

from scripts.bench.campaigns.guards import (
    ALARM,
    CURVES,
    find_fall,
    find_fallen_iteration,
    format_curves,
    format_table,
)


def test_a_fall_is_of_means_over_five_iterations() -> None:
    assert find_fall([0.3] * 12) is None
    assert find_fall([0.3] * 5 + [0.0]) == 6, "0.24 is 0.06 below 0.3"
    assert find_fall([0.3] * 5 + [0.1, 0.3, 0.3, 0.2, 0.3]) == 9


def test_a_fall_of_validations_begins_with_that_of_the_start() -> None:
    one = side([0.3] * 5 + [0.0] * 5, None, val=[0.3] * 3 + [0.15, 0.3, 0.15, 0.1])
    assert find_fallen_iteration(one, "rollout") == 6
    assert find_fallen_iteration(one, "val") == 3, (
        "the mean of the start and of two iterations is 0.3, of iterations 1 to 3 0.25"
    )
    assert find_fallen_iteration(one | {"val": [0.3] * 21}, "val") is None


def side(successes: list[float], alarm: int | None, **more: Any) -> dict[str, Any]:
    return {"curves": dict.fromkeys(CURVES, successes), "alarm": alarm, **more}


def test_the_bars() -> None:
    rooms = {"start": {"solved": [False, True, False, False]}, "last": {"solved": [True, True, False, False]}}
    fell = [0.3] * 5 + [0.0] * 5
    found = {
        "guarded": {0: side(fell, None, **rooms), 1: side(fell, None, **rooms)},
        "alone": {0: side(fell, 6), 1: side(fell, 7)},
        "true": {0: side([0.3] * 10, None), 1: side([0.3] * 10, 9)},
    }
    lines = [line for line in format_table(found).splitlines() if line]
    assert lines[2] == "| 0 | 0.250 | 0.500 | 6, 6 | – |" and lines[3] == "| 1 | 0.250 | 0.500 | 7, 6 | 9 |"
    assert lines[4].startswith("gain +0.250 [") and lines[4].endswith(": met")
    assert lines[5:] == [
        "alarm in time in 1 of 2 seeds: missed", "silent on the true reward in 1 of 2 seeds: missed",
    ]  # fmt: skip
    assert format_curves(found).splitlines()[3] == "| guarded | 6–10 |" + " 0.000 |" * len(CURVES)


def test_an_alarm_is_read_from_the_warnings_of_a_run() -> None:
    line = "iteration 11: collapse rule hacked: 0.34 is above 0.15, 3 times in a row; last values 0.16, 0.16, 0.34"
    assert (found := ALARM.match(line)) and found[1] == "11"
    assert not ALARM.match(line.replace("hacked", "entropy"))
