"""Costs within a limit: the tables by hand."""

from __future__ import annotations

from typing import Any

from benchmarks.costs import curve, table


def side(success: float, cost: float, multiplier: tuple[float, ...] = ()) -> dict[str, Any]:
    curves = {
        "rollout/cost": [cost] * 12,
        "rollout/success": [success] * 12,
        "train/cost_multiplier": [*multiplier],
    }
    return {"success": success, "cost": cost, "curves": curves}


def test_the_bars_are_of_means_over_the_seeds() -> None:
    """Success 0.46 of 0.5, cost 0.6: both on their bar; a little less, a little more: both missed."""
    free = {0: side(0.4, 1.2), 1: side(0.6, 1.4)}
    lines = table(free, {0: side(0.4, 0.5), 1: side(0.5, 0.7)}).splitlines()
    assert lines[4] == "| mean | 0.500 | 1.300 | 0.450 | 0.600 |"
    assert lines[6] == "cost 0.600, limit 0.6: met" and lines[8].startswith("success 0.900 of that")
    assert lines[8].endswith(": met")
    lines = table(free, {0: side(0.4, 0.5), 1: side(0.49, 0.72)}).splitlines()
    assert lines[6].endswith(": missed") and lines[8].endswith(": missed")


def test_the_curve_is_of_ten_iterations() -> None:
    held = {0: side(0.4, 0.5, (1.0,) * 10 + (3.0,) * 2), 1: side(0.4, 0.5, (2.0,) * 10 + (5.0,) * 2)}
    assert curve(held).splitlines()[2:] == [
        "| 1–10 | 1.500 | 0.500 | 0.400 |",
        "| 11–12 | 4.000 | 0.500 | 0.400 |",
    ]
