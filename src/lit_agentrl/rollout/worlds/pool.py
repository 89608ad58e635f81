"""Pools of environments for the scheduler: in its thread, in other threads, or in processes."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from lit_agentrl.checks import require, require_whole
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.hosting import Hosting
from lit_agentrl.rollout.worlds.branch_point import BranchPoint
from lit_agentrl.rollout.worlds.child import Child
from lit_agentrl.rollout.worlds.environments import (
    Answer,
    Call,
    Environments,
    Look,
    Probes,
    get_time_limit,
    make_timeout_answer,
    serve,
)
from lit_agentrl.rollout.worlds.hosts import FailedHost, Host, ThreadHost

_log = logging.getLogger(__name__)
_SLICE_S = 0.02  # seconds between checks for hung threads
_END_S = 5.0  # seconds in which all workers together may end


@dataclass(frozen=True)
class Worlds:
    """The schedule on which answers of games are waited for.

    Args:
        delay: Decode steps between actions and the time at which their answer is waited for; 0 waits at once.  Other
            episodes decode in between, and samples do not depend on the number of workers.
        wait: Whether to wait; False takes answers as they arrive: nothing waits for a slow game, and a run is not
            repeatable.

    Raises:
        ValueError: The delay is negative, or has no effect.
    """

    delay: int = 0
    wait: bool = True

    def __post_init__(self) -> None:
        require_whole("delay", self.delay, 0)
        require(isinstance(self.wait, bool), "wait", self.wait, "true or false")
        if not self.wait and self.delay:
            raise ValueError(f"delay={self.delay} means nothing where wait=false; set it to 0")


class EnvPool(Protocol):
    """Environments of one game; answers arrive in ``inbox`` as (key, Answer)."""

    def ask(self, call: Call) -> None:
        """Send a call to an episode's environment; each reset and step gets one answer."""

    def check(self) -> None:
        """Give up environments that hang."""

    def close(self) -> None:
        """Stop workers and close environments."""


Inbox = queue.SimpleQueue[tuple[int, Answer]]


def make_pool(task: Task, probes: Probes, inbox: Inbox) -> EnvPool:
    """Return the pool that the ``hosting`` of a game describes."""
    if task.hosting.where == "inline":
        return InlinePool(task, probes, inbox)
    return WorkerPool(task, probes, inbox)


class InlinePool:
    """A pool of environments that answer in the calling thread."""

    def __init__(self, task: Task, probes: Probes, inbox: Inbox) -> None:
        self._environments = Environments(task, probes)
        self._inbox = inbox

    def ask(self, call: Call) -> None:
        if (answer := serve(self._environments, call)) is not None:
            self._inbox.put((call.key, answer))

    def check(self) -> None: ...  # a hung environment would hang the caller

    def close(self) -> None:
        self._environments.close()


class WorkerPool:
    """A pool of threads, each with environments in itself or in its own process."""

    def __init__(self, task: Task, probes: Probes, inbox: Inbox) -> None:
        self._task, self._probes, self._inbox = task, probes, inbox
        self._hosting = task.hosting
        self._workers: list[_Worker] = []
        self._worker_of_key: dict[int, int] = {}
        self._restarts_left = self._hosting.restarts
        self._lock = threading.Lock()

    def ask(self, call: Call) -> None:
        if call.kind == "reset":
            load = [0] * self._hosting.workers
            for index in self._worker_of_key.values():
                load[index] += 1
            self._worker_of_key[call.key] = index = load.index(min(load))
            if index == len(self._workers):  # starts no more workers than needed
                self._workers.append(self._start())
        self._workers[self._worker_of_key[call.key]].calls.put(call)
        if call.kind == "release":
            del self._worker_of_key[call.key]

    def may_restart(self, why: str) -> bool:
        """Count and log a worker that must be replaced; return whether it may be."""
        with self._lock:
            self._restarts_left -= 1
            left = self._restarts_left
        if left >= 0:
            limit = self._hosting.restarts
            _log.warning(
                "a worker of game %s %s and is replaced (%d of hosting.restarts=%d)",
                self._task.name, why, limit - left, limit,
            )  # fmt: skip
        return left >= 0

    def check(self) -> None:
        if self._hosting.where == "thread":
            for index, worker in enumerate(self._workers):
                if worker.give_up_if_hung():
                    self._workers[index] = self._start(worker)

    def close(self) -> None:
        for worker in self._workers:
            worker.stop()
        deadline = time.monotonic() + _END_S
        for worker in self._workers:
            worker.join(timeout=max(0.0, deadline - time.monotonic()))
            if worker.is_alive():
                worker.host.abort()
        self._workers, self._worker_of_key = [], {}

    def _start(self, hung: _Worker | None = None) -> _Worker:
        hosting = self._hosting
        if hung is not None:
            host = hung.host if self.may_restart("hung") else FailedHost(hosting)
            worker = _Worker(host, hosting, self._inbox, hung.calls)
        elif hosting.where == "process":
            worker = _Worker(Child(self._task, self._probes, self.may_restart), hosting, self._inbox)
        else:
            worker = _Worker(ThreadHost(Environments(self._task, self._probes)), hosting, self._inbox)
        worker.start()
        return worker


class _Worker(threading.Thread):
    """A thread that carries out one call after another."""

    def __init__(
        self, host: Host, hosting: Hosting, inbox: Inbox, calls: queue.SimpleQueue[Call | None] | None = None
    ) -> None:
        super().__init__(daemon=True, name="world")
        self.host = host
        self.calls: queue.SimpleQueue[Call | None] = calls or queue.SimpleQueue()
        self._hosting, self._inbox = hosting, inbox
        self._guard = threading.Lock()
        self._now: tuple[Call, float] | None = None  # the current call, and when it started
        self._is_given_up = False

    def run(self) -> None:
        while (call := self.calls.get()) is not None:
            with self._guard:
                self._now = (call, time.monotonic())
            try:
                answer = self.host(call)
            except BaseException as error:  # also a panic of Rust: some answer must arrive
                answer = Answer(error=f"{type(error).__name__}: {error}")
            with self._guard:
                self._now = None
                if self._is_given_up:
                    return
                if answer is not None and call.kind != "release":  # nobody waits for the answer to a release
                    self._inbox.put((call.key, answer))
        self.host.close()

    def stop(self) -> None:
        """Let the thread end after its current call, and interrupt that if possible."""
        with suppress(queue.Empty):
            while True:
                self.calls.get_nowait()  # nobody waits for the answer
        self.calls.put(None)
        self.host.interrupt()

    def give_up_if_hung(self) -> bool:
        """Answer the current call and abandon this thread if it hangs; return whether it does."""
        with self._guard:
            if self._now is None:
                return False
            call, began = self._now
            limit = get_time_limit(self._hosting, call)
            if limit is None or time.monotonic() - began < limit:
                return False
            self._is_given_up = True
        self.host.forget(call.key)
        if call.kind != "release":
            self._inbox.put((call.key, make_timeout_answer(call, limit)))
        return True


class GamePools:
    """The pools of all games of a run, with the answers that have arrived.

    Args:
        tasks: Games of the run.
        probes: See `Environments`.
    """

    def __init__(self, tasks: Sequence[Task], probes: Probes) -> None:
        self._tasks, self._probes = tasks, probes
        self._inbox: Inbox = queue.SimpleQueue()
        self._pools: dict[int, EnvPool] = {}
        self._pool_of_key: dict[int, EnvPool] = {}
        self._arrived: dict[int, Answer] = {}

    def reset(
        self, key: int, task: int, *, split: str, seed: int, noise_seed: int,
        branch_point: BranchPoint | None = None, saves: bool = False,
    ) -> None:  # fmt: skip
        """Start an episode of a game; see `Environments.reset`."""
        if task not in self._pools:
            self._pools[task] = make_pool(self._tasks[task], self._probes, self._inbox)
        self._pool_of_key[key] = self._pools[task]
        self._pool_of_key[key].ask(Call("reset", key, (split, seed, noise_seed, branch_point, saves)))

    def step(self, key: int, actions: Sequence[str]) -> None:
        """Play the actions of a reply."""
        self._pool_of_key[key].ask(Call("step", key, (tuple(actions),)))

    def look(self, key: int, function: Look) -> None:
        """Call a function on the environment of an episode, in its own thread or process."""
        self._pool_of_key[key].ask(Call("look", key, (function,)))

    def release(self, key: int, *, is_broken: bool) -> None:
        """Release the environment of an episode that is over."""
        self._pool_of_key.pop(key).ask(Call("release", key, (is_broken,)))

    def poll(self, timeout: float | None) -> list[int]:
        """Return the episodes whose answers have arrived.

        Wait for the first answer, at most ``timeout`` seconds (None: without limit).
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._collect()
            if self._arrived or (deadline is not None and time.monotonic() >= deadline):
                return list(self._arrived)
            self._wait(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def take(self, key: int) -> Answer:
        """Wait for the answer of one episode, and return it."""
        while key not in self._arrived:
            self._wait(None)
        return self._arrived.pop(key)

    def close(self) -> None:
        """Stop all workers and close all environments; the next episodes make new ones."""
        for pool in self._pools.values():
            pool.close()
        self._pools, self._pool_of_key, self._arrived = {}, {}, {}
        self._inbox = queue.SimpleQueue()

    def _collect(self) -> None:
        for pool in self._pools.values():  # needed here too, because a busy scheduler never calls _wait
            pool.check()
        while not self._inbox.empty():
            self._arrived.update([self._inbox.get()])

    def _wait(self, timeout: float | None) -> None:
        try:
            key, answer = self._inbox.get(timeout=_SLICE_S if timeout is None else min(timeout, _SLICE_S))
            self._arrived[key] = answer
        except queue.Empty:
            for pool in self._pools.values():
                pool.check()
