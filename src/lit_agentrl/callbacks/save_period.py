"""Choose how many iterations lie between two saves, from what a save costs."""

from __future__ import annotations

import math
import time

SHARE = 0.05  # of the time that saves may take


class SavePeriod:
    """The iterations between saves, chosen such that saves take at most `SHARE` of the time.

    The first two iterations are saved.  After the second and each later save the period is chosen again from the last
    save and the iterations before it.  Nothing that is computed depends on the choice.

    Attributes:
        every: iterations between saves.
        held_s: seconds for which saves have held training in this launch.
        skipped: saves that were due while the write before was not finished.
        line: what was chosen and why; None until it is other than 1.
    """

    def __init__(self) -> None:
        self.every = 1
        self.held_s = 0.0
        self.skipped = 0
        self.line: str | None = None
        self._saves = 0
        self._launched = self._resumed = time.perf_counter()

    @property
    def share(self) -> float:
        """Return the share of the time since the start for which saves have held training."""
        return self.held_s / max(time.perf_counter() - self._launched, 1e-9)

    def note_save(self, began: float, ended: float, iterations: int, core_s: float) -> None:
        """Take account of a save, and choose.

        Args:
            began: when it began to hold training, by ``time.perf_counter``.
            ended: when training went on.
            iterations: iterations since the save before.
            core_s: seconds of cores that the writing thread takes from training.
        """
        iteration_s = (began - self._resumed) / iterations
        self._resumed = ended
        self.held_s += ended - began
        self._saves += 1
        if self._saves == 1:  # it waits for the disk, and the first iteration warms up
            return
        cost_s = ended - began + core_s
        self.every = max(1, math.ceil(cost_s / (SHARE * max(iteration_s, 1e-9))))
        if self.every > 1 and self.line is None:
            self.line = (
                f"checkpoints: the next after {self.every} iterations, so that they take at most {SHARE:.0%} of the "
                f"time: one takes {cost_s:.2g} s, an iteration {iteration_s:.2g} s (callbacks.last.every=auto)"
            )
