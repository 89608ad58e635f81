"""Choose how many iterations lie between two saves from the cost of a save."""

from __future__ import annotations

import math
import time

SHARE = 0.05  # maximum share of the time that saves take


class SavePeriod:
    """The iterations between saves, chosen such that saves take at most `SHARE` of the time.

    The first two iterations are saved.  The second and each later save choose the period again, from the cost of that
    save and the time of the iterations before it.  No result depends on the choice.

    Attributes:
        every: iterations between saves.
        held_s: seconds for which saves have blocked training in this launch.
        skipped: number of saves that were due while the previous one was still being written.
        line: the chosen period and its reason, for the log; None until the period exceeds 1.
    """

    def __init__(self) -> None:
        self.every = 1
        self.held_s = 0.0
        self.skipped = 0
        self.line: str | None = None
        self._saves = 0
        self._launched_at = self._resumed_at = time.perf_counter()

    @property
    def share(self) -> float:
        """Return the share of the time since the launch for which saves have blocked training."""
        return self.held_s / max(time.perf_counter() - self._launched_at, 1e-9)

    def note_save(self, began: float, ended: float, iterations: int, core_s: float) -> None:
        """Record a save, and choose the period again.

        Args:
            began: time at which the save began to block training, by ``time.perf_counter``.
            ended: time at which training continued.
            iterations: number of iterations since the previous save.
            core_s: core-seconds that the writing thread takes from training.
        """
        iteration_s = (began - self._resumed_at) / iterations
        self._resumed_at = ended
        self.held_s += ended - began
        self._saves += 1
        if self._saves == 1:  # not typical: it waits for the disk, and the first iteration warms up
            return
        cost_s = ended - began + core_s
        self.every = max(1, math.ceil(cost_s / (SHARE * max(iteration_s, 1e-9))))
        if self.every > 1 and self.line is None:
            self.line = (
                f"checkpoints: the next after {self.every} iterations, so that they take at most {SHARE:.0%} of the "
                f"time: one takes {cost_s:.2g} s, an iteration {iteration_s:.2g} s (callbacks.last.every=auto)"
            )
