"""What all pools of workers are told."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lit_agentrl.checks import require_number, require_whole
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.workers.base import WorkerSettings
from lit_agentrl.rollout.workers.crew import Crew
from lit_agentrl.rollout.workers.pool import Pool
from lit_agentrl.rollout.workers.shares import check_shares

_PATIENCE_S = 600.0
_START_S = 300.0  # a new process imports much
_MOST = 256  # processes of one machine


@dataclass(frozen=True, kw_only=True)
class PoolSettings(WorkerSettings):
    """What all pools of workers share.

    Args:
        count: workers.
        share: prompts of the unit of work; None: a whole wave, which one worker plays.
        threads: of torch in each worker; None for 1 where there are shares, else for the trainer's, or half of them
            where it plays ahead.
        patience: seconds without a finished reply after which a worker counts as hung; None for 600.
        start_patience: seconds in which a new worker must have started, or it is replaced; None for 300.  The
            next one at its place is given twice as long.
        attempts: times that the same episodes may be lost with their worker before the run ends.

    Raises:
        ValueError: a value out of range, or several workers without shares.
    """

    count: int = 1
    share: int | None = None
    threads: int | None = None
    patience: float | None = None
    start_patience: float | None = None
    attempts: int = 3

    def __post_init__(self) -> None:
        self.check_pool()
        require_whole("count", self.count, 1, _MOST)
        if self.count > 1 and self.share is None:
            raise ValueError(
                f"count={self.count} needs shares to deal, and worker.share=null is one worker's whole wave; set "
                "worker.share, such as worker.share=2"
            )

    def check_pool(self) -> None:
        """Check what is alike for all kinds of workers."""
        check_shares(self.share, self.threads)
        require_whole("attempts", self.attempts, 1)
        for name, seconds in (("patience", self.patience), ("start_patience", self.start_patience)):
            if seconds is not None:
                require_number(name, seconds, "a number > 0, in seconds", lambda s: s > 0)

    def threads_of_worker(self, *, is_ahead: bool) -> int:
        """Threads with which a share is played: where there are shares, a number of the config alone."""
        if self.threads is not None:
            return self.threads
        if self.share is not None:
            return 1
        return half_the_threads() if is_ahead else torch.get_num_threads()

    def pool(self, crew: Crew, rules: Rules, *, is_ahead: bool) -> Pool:
        """The workers of a crew."""
        threads = self.threads_of_worker(is_ahead=is_ahead)
        return Pool(
            crew, share=self.share, seed=rules.seed,
            # what training leaves to them: it changes the bits of training, so their number must not matter
            threads=threads if self.share is None else half_the_threads(),
            patience=self.patience or _PATIENCE_S, start_patience=self.start_patience or _START_S,
            attempts=self.attempts,
        )  # fmt: skip


def half_the_threads() -> int:
    """Those that the trainer does not use while others play."""
    return max(1, torch.get_num_threads() // 2)
