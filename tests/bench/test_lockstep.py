"""Training loops that run one iteration at a time, each in a process of its own."""

from __future__ import annotations

from contextlib import ExitStack, closing

import pytest

from scripts.bench import lockstep
from tests.bench import loops


def test_two_loops_take_turns_one_iteration_at_a_time() -> None:
    with ExitStack() as stack:
        sides = [stack.enter_context(closing(lockstep.Lockstep(loops.counting, first))) for first in (0, 100)]
        found = [side(number) for number in range(2) for side in sides]
    assert [measured["doubled"] for measured in found] == [0, 200, 2, 202]
    for measured in found:
        assert 0 <= measured["doubling"] <= measured["whole"] and measured["foreign_share"] >= 0


@pytest.mark.parametrize("name, steps, why", [
    ("failing", 1, "the second iteration is wrong"), ("counting", 3, "ended by itself"),
])  # fmt: skip
def test_a_loop_that_fails_or_ends_says_so(name: str, steps: int, why: str) -> None:
    given = [0] if name == "counting" else []
    with closing(lockstep.Lockstep(getattr(loops, name), *given)) as side:
        for _ in range(steps):
            side()
        with pytest.raises(RuntimeError, match=why):
            side()
