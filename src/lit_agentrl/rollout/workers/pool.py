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
from lit_agentrl.rollout.workers.crew import Crew, LostWorker, PlayingError, Seat
from lit_agentrl.rollout.workers.shares import Share, cut, joined

_SLICE_S = 0.5  # how often a waiting trainer checks that the workers are alive
_STOP_S = 10.0  # for a worker to close its games and end by itself
_NOBODY_S = 1800.0  # for a worker to start if none can play, as on a cluster that must grow first


@dataclass
class _Job:
    """A wave that is being played."""

    wave: Wave
    shares: list[Share]
    waiting: deque[Share]
    version: int
    load: int
    lost: dict[int, int] = field(default_factory=dict)  # by share: how often it was lost
    played: dict[int, Played] = field(default_factory=dict)
    begun: float = 0.0
    ended: float = 0.0
    attempts: int = 0


class Pool:
    """A `Worker` of several workers; `Share` explains why their number changes no result.

    Args:
        crew: Opens the workers.
        share: Prompts of a share; None for one share per wave.
        seed: Seed of the run.
        threads: CPU threads that it uses while the trainer trains.
        patience: Seconds without a sign of life after which a worker counts as hung.
        start_patience: Seconds in which a worker must start before it is replaced.
        attempts: How often a share may be lost before the run ends.
    """

    def __init__(
        self, crew: Crew, *, share: int | None, seed: int, threads: int, patience: float,
        start_patience: float, attempts: int,
    ) -> None:  # fmt: skip
        self.threads = threads
        self._crew, self._share, self._seed = crew, share, seed
        self._patience, self._start_patience, self._attempts = patience, start_patience, attempts
        self._version = self._load = 0
        self._job: _Job | None = None
        self._error: BaseException | None = None
        self._is_over = False
        self._restarts = 0
        self._seats: dict[int, Seat] = {}
        self._busy: set[int] = set()
        # by worker: its last signs, and for how long they have not changed
        self._silent: dict[int, tuple[int, float]] = {}
        self._changed = threading.Condition()
        self._talks: list[threading.Thread] = []
        self._grow()

    # ------------------------------------------------------------------ protocol
    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Load weights; see `Worker`."""
        assert self._job is None, "the weights of episodes that are being played must stay as they are"
        self._crew.write(weights)
        self._version, self._load = version, self._load + 1

    def submit(self, wave: Wave) -> None:
        """Request a wave; see `Worker`."""
        assert self._job is None, "one wave at a time"
        shares = cut(wave, self._share, self._seed)
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
        self._silent.clear()
        nobody = 0.0  # for how long no worker has played
        with self._changed:
            while len(job.played) < len(job.shares) and self._error is None:
                before = time.monotonic()
                self._changed.wait(_SLICE_S)
                # bounded, because time in which the machine was suspended is not waiting
                waited = min(time.monotonic() - before, 2 * _SLICE_S)
                self._end_the_silent(waited)
                nobody = 0.0 if self._busy else nobody + waited
                if nobody >= _NOBODY_S:
                    self._error = self._error or PlayingError(
                        f"no worker (worker={self._crew.name}) could begin within {_NOBODY_S:g} s; is there room for "
                        "one? (for worker=ray see `ray status`)"
                    )
                    self._changed.notify_all()
            if self._error is not None:
                raise self._error
            self._job = None
            counts = {
                "shares": len(job.shares), "attempts": job.attempts, "restarts": self._restarts,
            }  # fmt: skip
            self._restarts = 0
        whole = joined(job.wave, job.shares, job.played)
        return replace(whole, seconds=job.ended - job.begun, counts=counts)

    def differing(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors that differ; see `Worker`."""
        return self._crew.differing(weights)

    def stop(self) -> None:
        """Stop all workers; see `Worker`."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
            seats = list(self._seats.values())
        for seat in seats:
            seat.end()
        ends = time.monotonic() + _STOP_S  # for all of them together
        for talk in self._talks:
            talk.join(max(0.0, ends - time.monotonic()))
        for number, talk in enumerate(self._talks):
            if talk.is_alive() and number in self._seats:
                self._seats[number].kill("was ended")
        for talk in self._talks:
            talk.join(_STOP_S)
        self._crew.close()

    @property
    def seats(self) -> list[Seat]:
        """The current workers, by place."""
        with self._changed:
            return [seat for _, seat in sorted(self._seats.items())]

    # ------------------------------------------------------------------ one thread a worker
    def _grow(self) -> None:
        """Start a thread for each place that has none."""
        for number in range(len(self._talks), self._crew.places):
            talk = threading.Thread(target=self._talk, args=(number,), name=f"worker-{number}", daemon=True)
            self._talks.append(talk)
            talk.start()

    def _talk(self, number: int) -> None:
        seat: Seat | None = None
        try:
            seat = self._ready(number)
            while (share := self._next(number)) is not None:
                job = self._job
                assert job is not None
                if not seat.is_alive:  # a death while idle does not count as an attempt of the share
                    # others may be free long before the replacement has started
                    self._give_back(job, share, number)
                    seat = self._replaced(number, seat)
                    continue
                try:
                    played = seat.play(share, job.load, job.version)
                except LostWorker as lost:
                    self._lose(job, share, number, str(lost))
                    seat = self._replaced(number, seat)
                else:
                    self._keep(job, share, number, played)
        except BaseException as error:  # `take` raises it
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()
        finally:
            if seat is not None:
                seat.close()

    def _ready(self, number: int) -> Seat:
        """Return a new worker that can receive a share; any worker if the pool ends.

        A worker that is still starting receives no share.
        """
        failures, patience = 0, self._start_patience
        while True:
            seat = self._opened(number)
            try:
                if self._starts(seat, patience):
                    return seat
                patience *= 2  # a busy machine may need longer; otherwise no worker would ever start
                seat.kill("did not start")
                seat.close()
                self._count_restart()  # not a failure: it may wait for resources, and `take` has a limit for that
            except LostWorker as lost:
                seat.close()
                if self._ends:
                    return seat
                self._count_restart()
                failures += 1
                if failures >= self._attempts:
                    raise PlayingError(
                        f"a worker (worker={self._crew.name}) {lost} before it could begin, {failures} times"
                    ) from lost
            except PlayingError:
                seat.close()
                raise

    def _starts(self, seat: Seat, patience: float) -> bool:
        """Wait until a worker has started or the pool ends; return False after ``patience``."""
        waited = 0.0
        while not self._ends:
            before = time.monotonic()
            if seat.is_ready(_SLICE_S):
                break
            # bounded, because time in which the machine was suspended is not waiting
            waited += min(time.monotonic() - before, 2 * _SLICE_S)
            if waited >= patience:
                return False
        return True

    def _opened(self, number: int) -> Seat:
        seat = self._crew.open(number)
        with self._changed:
            self._seats[number] = seat
            is_over = self._is_over
        if is_over:
            seat.end()
        return seat

    def _replaced(self, number: int, seat: Seat) -> Seat:
        seat.close()
        self._count_restart()
        return seat if self._is_over else self._ready(number)

    def _count_restart(self) -> None:
        with self._changed:
            self._restarts += 1

    def _next(self, number: int) -> Share | None:
        """Wait for a share to play; return None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ends or (self._job is not None and self._job.waiting))
            if self._ends or self._job is None:
                return None
            self._busy.add(number)
            self._silent.pop(number, None)
            self._job.attempts += 1
            return self._job.waiting.popleft()

    def _give_back(self, job: _Job, share: Share, number: int) -> None:
        with self._changed:
            self._busy.discard(number)
            job.attempts -= 1
            job.waiting.appendleft(share)
            self._changed.notify_all()

    @property
    def _ends(self) -> bool:
        return self._is_over or self._error is not None

    def _keep(self, job: _Job, share: Share, number: int, played: Played) -> None:
        now = time.perf_counter()
        with self._changed:
            self._busy.discard(number)
            job.played[share.number] = played
            job.begun = min(job.begun or now, now - played.seconds)
            job.ended = max(job.ended, now)
            self._changed.notify_all()

    def _lose(self, job: _Job, share: Share, number: int, how: str) -> None:
        with self._changed:
            self._busy.discard(number)
            lost = job.lost[share.number] = job.lost.get(share.number, 0) + 1
            if lost >= self._attempts and not self._is_over:
                times = "" if lost == 1 else f"; these episodes were lost {lost} times"
                self._error = PlayingError(f"the playing process (worker={self._crew.name}) {how}{times}")
            job.waiting.appendleft(share)
            self._changed.notify_all()

    # ------------------------------------------------------------------ hung workers
    def _end_the_silent(self, seconds: float) -> None:
        """Kill workers without progress for too long; their threads then replace them.

        Args:
            seconds: Seconds since the last check.
        """
        for number in sorted(self._busy):
            seat = self._seats[number]
            signs, waited = self._silent.get(number, (seat.signs, 0.0))
            now = seat.signs
            waited = waited + seconds if now == signs else 0.0
            self._silent[number] = (now, waited)
            if waited >= self._patience:
                seat.kill(
                    f"finished no reply for {self._patience:g} s; a game may hang (worker=none rollout.overlap=false "
                    "shows where), or raise worker.patience"
                )
