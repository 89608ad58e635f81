"""Environments in a process of their own, which is replaced if it hangs or dies.

The other episodes of a replaced process are replayed in its replacement.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from lit_agentrl.envs.base import Task
from lit_agentrl.rollout.worlds.environments import (
    Answer,
    Call,
    Environments,
    Probes,
    describe_restart_limit,
    get_time_limit,
    make_timeout_answer,
    serve,
)

_START_S = 120.0  # seconds for the imports of a new process
_END_S = 2.0  # seconds for a process to end after its connection broke, so that its own exit code is reported
_UNSENT = (
    "hosting.where=process: the game cannot be sent to a process ({reason}); define it at the top level of a "
    "module, or set hosting.where=thread"
)
_RUN = "import sys; sys.path[:] = {path!r}; from lit_agentrl.rollout.worlds.child import main; main({file})"


class Child:
    """A host of the environments of one process; used by one thread.

    The process starts without the program's main module, so that a worker does not import torch.  It sends its answers
    as JSON.

    Args:
        task: The game.
        probes: See `Environments`.
        may_restart: Counts a process that must be replaced, given the reason; returns False if it must not be replaced.
    """

    def __init__(self, task: Task, probes: Probes, may_restart: Callable[[str], bool]) -> None:
        self._task, self._hosting, self._probes = task, task.hosting, probes
        self._may_restart = may_restart
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._broken = ""  # why no process is started any more
        self._history: dict[int, list[Call]] = {}  # reset and steps of the current episodes
        self._held: set[int] = set()  # episodes whose game the current process holds

    def __call__(self, call: Call) -> Answer | None:
        """Execute a call; first replay the episode if its process was replaced."""
        if call.kind == "release":
            self._history.pop(call.key, None)
            if call.key in self._held:
                self._held.discard(call.key)
                self._ask(call)
            return None
        if call.kind == "reset":
            self._history[call.key] = []
        missed = [] if call.key in self._held else self._history[call.key]
        answer = Answer()
        for next_call in (*missed, call):
            answer = self._ask(next_call)
            if answer.error:
                break
        if call.kind != "look":  # a look changes nothing
            self._history[call.key].append(call)
        return answer

    def forget(self, key: int) -> None:
        """Do nothing, because the thread that waits for a hung process kills it."""

    def interrupt(self) -> None:
        """Do nothing, because a game may finish its answer before it is killed."""

    def abort(self) -> None:
        """Kill a process that hangs; its thread then notices."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End the process."""
        if self._connection is not None:
            self._connection.close()  # the process ends when it notices this
            self._connection = None
        if self._process is not None:
            try:
                self._process.wait(timeout=5.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _ask(self, call: Call) -> Answer:
        if self._broken:
            return Answer(error=self._broken)
        limit = get_time_limit(self._hosting, call)
        try:
            if self._connection is None:
                self._start()
            if self._broken:
                return Answer(error=self._broken)
            assert self._connection is not None
            self._connection.send_bytes(pickle.dumps(call))
            if not self._connection.poll(limit):
                assert limit is not None
                self._discard_process("hung")
                return make_timeout_answer(call, limit)
            answer = Answer.from_plain(json.loads(self._connection.recv_bytes()))
        except (EOFError, OSError) as error:
            code = self._discard_process("died", patience_s=_END_S)
            return Answer(error=f"WorkerDied: exit code {code} during {call.kind} ({type(error).__name__})")
        self._held.add(call.key)  # also if the game failed: it must still be closed
        return answer

    def _start(self) -> None:
        try:
            first = pickle.dumps((self._task, dict(self._probes), self._hosting.max_memory_mb))
        except Exception as error:  # pickling runs the objects' own code, which may raise anything
            self._broken = _UNSENT.format(reason=f"{type(error).__name__}: {error}")
            return
        own_socket, child_socket = socket.socketpair()
        command = _RUN.format(path=sys.path, file=child_socket.fileno())
        self._process = subprocess.Popen(
            [sys.executable, "-c", command], pass_fds=[child_socket.fileno()], stdin=subprocess.DEVNULL,
            env={"OMP_NUM_THREADS": "1", **os.environ},
        )  # fmt: skip
        child_socket.close()
        self._connection = Connection(own_socket.detach())
        self._connection.send_bytes(first)
        if not self._connection.poll(_START_S):
            raise EOFError
        if reason := self._connection.recv_bytes().decode():
            self._broken = _UNSENT.format(reason=reason)

    def _discard_process(self, why: str, patience_s: float = 0.0) -> int | None:
        """Kill the process if it does not end by itself, and return its exit code.

        The next call starts another process.
        """
        code = None
        if self._process is not None:
            try:
                code = self._process.wait(patience_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                code = self._process.wait()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None
        self._held.clear()
        if not self._may_restart(f"{why} (exit code {code})"):
            self._broken = describe_restart_limit(self._hosting)
        return code


def main(file: int) -> None:
    """Answer calls in the child process until the parent ends."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    connection = Connection(file)
    try:
        task, probes, max_memory_mb = pickle.loads(connection.recv_bytes())
    except Exception as error:  # importing a user's module can fail in any way
        connection.send_bytes(f"{type(error).__name__}: {error}".encode(errors="replace"))
        return
    if max_memory_mb is not None:
        size = max_memory_mb * 2**20
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    environments = Environments(task, probes)
    connection.send_bytes(b"")  # ready
    try:
        while True:
            answer = serve(environments, pickle.loads(connection.recv_bytes())) or Answer()
            try:
                text = json.dumps(answer.to_plain())
            except (TypeError, ValueError) as error:  # a value that is not JSON fails one episode
                text = json.dumps(Answer(error=f"{type(error).__name__}: {error}").to_plain())
            connection.send_bytes(text.encode())
    except (EOFError, ConnectionResetError, BrokenPipeError):
        environments.close()


def _end_with(parent: int) -> None:
    """End this process when the parent ends, even while a game hangs."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(0)
