"""A pool of workers that may die; others then play their shares again."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from lit_agentrl.rollout.scheduler import Wave
from lit_agentrl.rollout.workers.base import Played
from lit_agentrl.rollout.workers.opener import LostWorker, PlayingError, WorkerHandle, WorkerOpener
from lit_agentrl.rollout.workers.shares import Share, cut_wave, join_shares

_SLICE_S = 0.5  # seconds between checks, by a waiting trainer, that the workers are alive
_STOP_S = 10.0  # seconds in which a worker may close its games and end by itself
_START_LIMIT_S = 1800.0  # seconds without any worker that can play, as on a cluster that must grow


@dataclass
class _Job:
    """A wave that is being played."""

    wave: Wave
    shares: list[Share]
    waiting: deque[Share]
    version: int
    load: int  # number of the load of the weights to play with
    lost: dict[int, int] = field(default_factory=dict)  # by share: how often it was lost
    played: dict[int, Played] = field(default_factory=dict)
    started: float = 0.0  # ``time.perf_counter``, as is ``ended``
    ended: float = 0.0
    attempts: int = 0


class Pool:
    """A `Worker` of several workers; `Share` explains why any of them gives equal results.

    Args:
        opener: Opens the workers.
        share: Prompts of a share; None for one share per wave.
        seed: Seed of the run.
        threads: CPU threads that the workers use while the trainer trains.
        patience: Seconds without progress after which a worker counts as hung.
        start_patience: Seconds in which a worker must start before it is replaced.
        attempts: How often a share may be lost before the run ends.
    """

    def __init__(
        self, opener: WorkerOpener, *, share: int | None, seed: int, threads: int, patience: float,
        start_patience: float, attempts: int,
    ) -> None:  # fmt: skip
        self.threads = threads
        self._opener, self._share, self._seed = opener, share, seed
        self._patience, self._start_patience, self._attempts = patience, start_patience, attempts
        self._version = self._load = 0
        self._job: _Job | None = None
        self._error: BaseException | None = None
        self._is_over = False
        self._restarts = 0
        self._handles: dict[int, WorkerHandle] = {}
        self._busy: set[int] = set()
        # by worker: its last progress count, and the seconds since that changed
        self._unchanged: dict[int, tuple[int, float]] = {}
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._grow()

    # ------------------------------------------------------------------ protocol
    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Load weights; see `Worker`."""
        assert self._job is None, "the weights of episodes that are being played must stay as they are"
        self._opener.write(weights)
        self._version, self._load = version, self._load + 1

    def submit(self, wave: Wave) -> None:
        """Request a wave; see `Worker`."""
        assert self._job is None, "one wave at a time"
        shares = cut_wave(wave, self._share, self._seed)
        self._grow()
        with self._changed:
            self._job = _Job(wave, shares, deque(shares), self._version, self._load)
            self._changed.notify_all()

    def take(self) -> Played:
        """Return the submitted wave; see `Worker`.

        Raises:
            PlayingError: A share failed or was lost too often, or no worker could start.
        """
        job = self._job
        assert job is not None, "nothing was submitted"
        self._unchanged.clear()
        idle_seconds = 0.0  # seconds during which no worker has played
        with self._changed:
            while len(job.played) < len(job.shares) and self._error is None:
                before = time.monotonic()
                self._changed.wait(_SLICE_S)
                # bounded, because time in which the machine was suspended is not waiting
                waited = min(time.monotonic() - before, 2 * _SLICE_S)
                self._kill_hung_workers(waited)
                idle_seconds = 0.0 if self._busy else idle_seconds + waited
                if idle_seconds >= _START_LIMIT_S:
                    self._error = self._error or PlayingError(
                        f"no worker (worker={self._opener.name}) could start within {_START_LIMIT_S:g} s; is there "
                        "room for one? (for worker=ray see `ray status`)"
                    )
                    self._changed.notify_all()
            if self._error is not None:
                raise self._error
            self._job = None
            counts = {
                "shares": len(job.shares), "attempts": job.attempts, "restarts": self._restarts,
            }  # fmt: skip
            self._restarts = 0
        joined = join_shares(job.wave, job.shares, job.played)
        return replace(joined, seconds=job.ended - job.started, counts=counts)

    def differing(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors that differ; see `Worker`."""
        return self._opener.differing(weights)

    def stop(self) -> None:
        """Stop all workers; see `Worker`."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
            handles = list(self._handles.values())
        for handle in handles:
            handle.end()
        deadline = time.monotonic() + _STOP_S  # for all threads together
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for slot, thread in enumerate(self._threads):
            if thread.is_alive() and slot in self._handles:
                self._handles[slot].kill("was ended")
        for thread in self._threads:
            thread.join(_STOP_S)
        self._opener.close()

    @property
    def handles(self) -> list[WorkerHandle]:
        """The current workers, in the order of their slots."""
        with self._changed:
            return [handle for _, handle in sorted(self._handles.items())]

    # ------------------------------------------------------------------ one thread a worker
    def _grow(self) -> None:
        """Start a thread for each worker slot that has none."""
        for slot in range(len(self._threads), self._opener.num_workers):
            thread = threading.Thread(
                target=self._serve_slot, args=(slot,), name=f"worker-{slot}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _serve_slot(self, slot: int) -> None:
        handle: WorkerHandle | None = None
        try:
            handle = self._open_ready(slot)
            while (share := self._take_share(slot)) is not None:
                job = self._job
                assert job is not None
                if not handle.is_alive:  # a death while idle does not count as an attempt of the share
                    # returned first: another worker may be free long before the replacement has started
                    self._return_share(job, share, slot)
                    handle = self._replace(slot, handle)
                    continue
                try:
                    played = handle.play(share, job.load, job.version)
                except LostWorker as lost:
                    self._record_loss(job, share, slot, str(lost))
                    handle = self._replace(slot, handle)
                else:
                    self._record_played(job, share, slot, played)
        except BaseException as error:  # `take` raises it
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()
        finally:
            if handle is not None:
                handle.close()

    def _open_ready(self, slot: int) -> WorkerHandle:
        """Return a new worker that can receive a share; any worker if the pool ends.

        A worker that is still starting receives no share.
        """
        failures, patience = 0, self._start_patience
        while True:
            handle = self._open(slot)
            try:
                if self._wait_for_start(handle, patience):
                    return handle
                patience *= 2  # a busy machine may need longer; otherwise no worker would ever start
                handle.kill("did not start")
                handle.close()
                # not counted as a failure: the worker may wait for resources, which `take` limits
                self._count_restart()
            except LostWorker as lost:
                handle.close()
                if self._is_ending:
                    return handle
                self._count_restart()
                failures += 1
                if failures >= self._attempts:
                    raise PlayingError(
                        f"a worker (worker={self._opener.name}) {lost} before it could begin, {failures} times"
                    ) from lost
            except PlayingError:
                handle.close()
                raise

    def _wait_for_start(self, handle: WorkerHandle, patience: float) -> bool:
        """Wait until a worker has started or the pool ends; return False after ``patience``."""
        waited = 0.0
        while not self._is_ending:
            before = time.monotonic()
            if handle.is_ready(_SLICE_S):
                break
            # bounded, because time in which the machine was suspended is not waiting
            waited += min(time.monotonic() - before, 2 * _SLICE_S)
            if waited >= patience:
                return False
        return True

    def _open(self, slot: int) -> WorkerHandle:
        handle = self._opener.open(slot)
        with self._changed:
            self._handles[slot] = handle
            is_over = self._is_over
        if is_over:
            handle.end()
        return handle

    def _replace(self, slot: int, handle: WorkerHandle) -> WorkerHandle:
        handle.close()
        self._count_restart()
        return handle if self._is_over else self._open_ready(slot)

    def _count_restart(self) -> None:
        with self._changed:
            self._restarts += 1

    def _take_share(self, slot: int) -> Share | None:
        """Wait for a share to play; return None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_ending or (self._job is not None and self._job.waiting))
            if self._is_ending or self._job is None:
                return None
            self._busy.add(slot)
            self._unchanged.pop(slot, None)
            self._job.attempts += 1
            return self._job.waiting.popleft()

    def _return_share(self, job: _Job, share: Share, slot: int) -> None:
        with self._changed:
            self._busy.discard(slot)
            job.attempts -= 1
            job.waiting.appendleft(share)
            self._changed.notify_all()

    @property
    def _is_ending(self) -> bool:
        return self._is_over or self._error is not None

    def _record_played(self, job: _Job, share: Share, slot: int, played: Played) -> None:
        now = time.perf_counter()
        with self._changed:
            self._busy.discard(slot)
            job.played[share.number] = played
            job.started = min(job.started or now, now - played.seconds)
            job.ended = max(job.ended, now)
            self._changed.notify_all()

    def _record_loss(self, job: _Job, share: Share, slot: int, cause: str) -> None:
        with self._changed:
            self._busy.discard(slot)
            losses = job.lost[share.number] = job.lost.get(share.number, 0) + 1
            if losses >= self._attempts and not self._is_over:
                times = "" if losses == 1 else f"; these episodes were lost {losses} times"
                self._error = PlayingError(f"the playing process (worker={self._opener.name}) {cause}{times}")
            job.waiting.appendleft(share)
            self._changed.notify_all()

    # ------------------------------------------------------------------ hung workers
    def _kill_hung_workers(self, seconds: float) -> None:
        """Kill workers without progress for too long; their threads then replace them.

        Args:
            seconds: Seconds since the last check.
        """
        for slot in sorted(self._busy):
            handle = self._handles[slot]
            last_progress, waited = self._unchanged.get(slot, (handle.progress, 0.0))
            progress = handle.progress
            waited = waited + seconds if progress == last_progress else 0.0
            self._unchanged[slot] = (progress, waited)
            if waited >= self._patience:
                handle.kill(
                    f"finished no reply for {self._patience:g} s; if a game hangs, worker=none rollout.overlap=false "
                    "shows where; otherwise raise worker.patience"
                )
