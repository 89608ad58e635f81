"""Placement of a game's environments (inline, threads, processes), with limits on time and memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lit_agentrl.checks import require, require_number, require_one_of, require_whole

Where = Literal["inline", "thread", "process"]
_MOST_WORKERS = 1024
_PLACES: tuple[Where, ...] = ("inline", "thread", "process")


@dataclass(frozen=True)
class Hosting:
    """Placement and limits of a game's environments.

    ``inline`` runs them in the scheduler's own thread, for games that answer at once.  ``thread`` is for games that
    wait (for a server, a disk); a thread that hangs is abandoned.  ``process`` is for games that compute long, may
    crash or need a memory limit: a worker that hangs or dies is replaced, and the other episodes in it are replayed
    from their seeds and actions.

    Args:
        where: ``inline`` | ``thread`` | ``process``.
        workers: environments that can answer at the same time.
        reset_timeout_s, step_timeout_s: seconds that a reset, or the actions of one reply, may take; None: no limit.
            An episode that takes longer ends with ``EndReason.ENV_TIMEOUT``.
        restarts: number of workers that may be replaced before the game counts as broken.
        max_memory_mb: memory that one worker process may allocate for data, in MB; None: no limit.

    Raises:
        ValueError: a value is out of range, or an option has no effect with this ``where``.
    """

    where: Where = "inline"
    workers: int = 1
    reset_timeout_s: float | None = None
    step_timeout_s: float | None = None
    restarts: int = 10
    max_memory_mb: int | None = None

    def __post_init__(self) -> None:
        require_one_of("where", self.where, _PLACES)
        require_whole("workers", self.workers, 1, 1 if self.where == "inline" else _MOST_WORKERS)
        require_whole("restarts", self.restarts, 0)
        for name in ("reset_timeout_s", "step_timeout_s"):
            seconds = getattr(self, name)
            if seconds is not None:
                require(self.where != "inline", name, seconds, "null where hosting.where=inline")
                require_number(name, seconds, "a number > 0, or null for any time", lambda value: value > 0)
        if self.max_memory_mb is not None:
            is_bounded = self.where == "process"
            require(is_bounded, "max_memory_mb", self.max_memory_mb, "null unless hosting.where=process")
            require_whole("max_memory_mb", self.max_memory_mb, 1)
