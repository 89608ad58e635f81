"""Training loops for :mod:`test_lockstep`; a process of its own must be able to import them."""

from __future__ import annotations

from typing import Any


def counting(meter: Any, first: int) -> None:
    """Notes the number of the iteration; ends by itself after three."""
    double = meter.add_timer("doubling", lambda x: 2 * x)
    for number in range(first, first + 4):
        meter.mark_boundary()
        meter.note(doubled=double(number))


def failing(meter: Any) -> None:
    """Fails in the second iteration."""
    meter.mark_boundary()
    meter.mark_boundary()
    raise ValueError("the second iteration is wrong")
