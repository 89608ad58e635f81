"""The clock of the monitor's cost, with a time of its own."""

from __future__ import annotations

from itertools import chain, repeat

import pytest

from lit_agentrl.monitor.callback import CollapseMonitor
from scripts.bench.monitor_cost import HOOKS, Clock


def test_the_share_is_that_of_all_iterations_but_the_first() -> None:
    times = chain([0.0], [1.0, 6.0, 10.0], [11.0, 12.0, 14.0, 15.0, 20.0], repeat(20.0))
    clock = Clock(lambda: next(times))
    assert clock.time_call(lambda a: a + 1, 1) == 2
    clock.end()  # 5 of 10 seconds
    for _ in range(2):
        clock.time_call(lambda: None)
    clock.end()  # 2 of 10
    assert clock.iterations == [(5.0, 10.0), (2.0, 10.0)]
    assert clock.share(warm=1) == 0.2
    with pytest.raises(ValueError, match="trainer.max_epochs=2 must be > 2"):
        clock.share()


def test_every_hook_in_which_the_monitor_works_is_timed() -> None:
    hooks = {name for name in vars(CollapseMonitor) if name.startswith("on_")}
    assert hooks - {"on_train_start", "on_train_end"} == {*HOOKS}
