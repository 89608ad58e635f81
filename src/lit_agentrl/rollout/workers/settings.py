"""Options that all pools of workers share."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.workers.base import WorkerSettings
from lit_agentrl.rollout.workers.opener import WorkerOpener
from lit_agentrl.rollout.workers.options import check_processes
from lit_agentrl.rollout.workers.pool import Pool

_PATIENCE_S = 600.0
_START_S = 300.0  # a new process needs time for its imports


@dataclass(frozen=True, kw_only=True)
class PoolSettings(WorkerSettings):
    """Options that all pools of workers share.

    Args:
        count: Number of workers.
        share: Prompts of one unit of work; None for a whole wave, which one worker plays.
        threads: Torch threads in each worker; None for 1 if there are shares, otherwise as many as the trainer has, or
            half of them if the worker plays ahead.
        patience: Seconds without a finished reply after which a worker counts as hung; None for 600.
        start_patience: Seconds in which a new worker must start before it is replaced; None for 300.  Its replacement
            gets twice as long.
        attempts: How often the same episodes may be lost with their worker before the run ends.

    Raises:
        ValueError: A value is out of range, or there are several workers without shares.
    """

    count: int = 1
    share: int | None = None
    threads: int | None = None
    patience: float | None = None
    start_patience: float | None = None
    attempts: int = 3

    def __post_init__(self) -> None:
        check_processes(
            count=self.count, share=self.share, threads=self.threads, patience=self.patience,
            start_patience=self.start_patience, attempts=self.attempts,
        )  # fmt: skip

    def choose_threads(self, *, is_ahead: bool) -> int:
        """Return the threads that play a share; with shares they depend only on the config."""
        if self.threads is not None:
            return self.threads
        if self.share is not None:
            return 1
        return halve_threads() if is_ahead else torch.get_num_threads()

    def make_pool(self, opener: WorkerOpener, rules: Rules, *, is_ahead: bool) -> Pool:
        """Create the pool of the workers that an opener starts."""
        threads = self.choose_threads(is_ahead=is_ahead)
        return Pool(
            opener, share=self.share, seed=rules.seed,
            # not a function of count, because the threads left to training change its bits
            threads=threads if self.share is None else halve_threads(),
            patience=self.patience or _PATIENCE_S, start_patience=self.start_patience or _START_S,
            attempts=self.attempts,
        )  # fmt: skip


def halve_threads() -> int:
    """Return the number of threads that the trainer leaves to workers."""
    return max(1, torch.get_num_threads() // 2)
