"""The cost of the collapse monitor: its hooks' share of an iteration's time.

    python -m scripts.bench.monitor_cost [--repeats 3] [--run env=frozen_lake rollout.prompts=4 …]

It trains in this process, with the options of ``train.py`` after ``--run`` overriding those of `DEFAULTS`.  The hooks
of the monitor are timed at each call, so both sides of the ratio come from one run, and other load on the machine
affects both.  An iteration lasts from the end of the one before to its own end; the first `WARM` are left out.  The
figure of a repetition is the share over all other iterations together, including validations.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lit_agentrl.api import train
from lit_agentrl.callbacks.iteration_log import IterationLog
from lit_agentrl.monitor.callback import CollapseMonitor
from scripts.bench.common import Summary, format_table, keep_last, make_parser, parse, write_json

HOOKS = ("on_train_epoch_start", "on_train_batch_end", "on_validation_end", "on_train_epoch_end")
WARM = 2  # number of first iterations left out
MOST = 0.01  # share of an iteration that the monitor may cost
DEFAULTS = ("trainer.max_epochs=12", "val.every=10", "test.episodes=0")


class Clock:
    """A clock that sums the seconds in hooks for each iteration.

    Attributes:
        iterations: (seconds in hooks, all seconds) of each iteration.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now, self._inside, self._ended = now, 0.0, now()
        self.iterations: list[tuple[float, float]] = []

    def time_call(self, hook: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Call a hook, add its seconds, and return its result."""
        started = self._now()
        try:
            return hook(*given, **named)
        finally:
            self._inside += self._now() - started

    def end(self) -> None:
        """Record the end of an iteration."""
        now = self._now()
        self.iterations.append((self._inside, now - self._ended))
        self._inside, self._ended = 0.0, now

    def share(self, warm: int = WARM) -> float:
        """Compute the share of time in hooks, without the first ``warm`` iterations.

        Raises:
            ValueError: there are no other iterations.
        """
        rest = self.iterations[warm:]
        if not rest:
            raise ValueError(
                f"trainer.max_epochs={len(self.iterations)} must be > {warm}, which are left out"
            )
        return sum(inside for inside, _ in rest) / sum(seconds for _, seconds in rest)


def train_timed(options: Sequence[str]) -> Clock:
    """Run one training with timed hooks."""
    clock = Clock()
    log_row = IterationLog.on_train_epoch_end

    def log_and_end(self: IterationLog, *where: Any) -> None:
        log_row(self, *where)
        clock.end()

    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(IterationLog, "on_train_epoch_end", log_and_end),
    ):
        hooks = {name: _wrap_hook(clock, vars(CollapseMonitor)[name]) for name in HOOKS}
        with patch.multiple(CollapseMonitor, **hooks):
            train(*options, folder=Path(folder) / "run")
    return clock


def _wrap_hook(clock: Clock, hook: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a hook as a real method, which an object of `functools.partial` is not."""

    def call(self: CollapseMonitor, *given: Any, **named: Any) -> Any:
        return clock.time_call(partial(hook, self), *given, **named)

    return call


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__file__, __doc__, repeats=3)
    parser.add_argument("--run", nargs=argparse.REMAINDER, default=[], help="options of train.py")
    options = parse(parser, arguments)
    job = keep_last([*DEFAULTS, *options.run])
    clocks = [train_timed([*job, f"seed={seed}"]) for seed in range(options.repeats)]
    shares = [clock.share() for clock in clocks]
    rows = [
        (seed, f"{1e3 * sum(a for a, _ in rest) / len(rest):.2f}", f"{sum(b for _, b in rest) / len(rest):.2f}",
         f"{100 * share:.3f} %")
        for seed, (clock, share) in enumerate(zip(clocks, shares, strict=True))
        for rest in [clock.iterations[WARM:]]
    ]  # fmt: skip
    print(format_table(("seed", "monitor, ms an iteration", "iteration, s", "share"), rows))
    found = Summary.of(100 * share for share in shares)
    verdict = "within" if max(shares) <= MOST else "ABOVE"
    print(f"share of an iteration: {found.show(3)} %, {verdict} the bound of {100 * MOST:g} %")
    write_json(options.out, {"shares": shares, "iterations": [c.iterations for c in clocks]}, options)


if __name__ == "__main__":
    main()
