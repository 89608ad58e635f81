"""Costs within a limit: the tables by hand."""

from __future__ import annotations

from typing import Any

from scripts.bench.campaigns.costs import format_curve, format_table


def side(success: float, cost: float, multiplier: tuple[float, ...] = ()) -> dict[str, Any]:
    curves = {
        "rollout/cost": [cost] * 30,
        "rollout/success": [success] * 30,
        "train/cost_multiplier": [*multiplier],
    }
    return {"success": success, "cost": cost, "curves": curves}


def test_the_bars_are_of_means_over_the_seeds() -> None:
    """Success 0.46 of 0.5, cost 0.8: both on their bar; a little less, a little more: both missed."""
    free = {0: side(0.4, 1.2), 1: side(0.6, 1.4)}
    lines = format_table(free, {0: side(0.4, 0.7), 1: side(0.5, 0.9)}).splitlines()
    assert lines[4] == "| mean | 0.500 | 1.300 | 0.450 | 0.800 |"
    assert lines[6] == "cost 0.800, limit 0.8: met" and lines[8].startswith("success 0.900 of that")
    assert lines[8].endswith(": met")
    lines = format_table(free, {0: side(0.4, 0.7), 1: side(0.49, 0.92)}).splitlines()
    assert lines[6].endswith(": missed") and lines[8].endswith(": missed")


def test_the_curve_is_of_twenty_five_iterations() -> None:
    held = {0: side(0.4, 0.5, (1.0,) * 25 + (3.0,) * 5), 1: side(0.4, 0.5, (2.0,) * 25 + (5.0,) * 5)}
    assert format_curve(held).splitlines()[2:] == [
        "| 1–25 | 1.500 | 0.500 | 0.400 |",
        "| 26–30 | 4.000 | 0.500 | 0.400 |",
    ]
