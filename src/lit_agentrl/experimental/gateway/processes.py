"""Processes of programs, which end together with all processes that they start.

``python processes.py PID MARK`` runs this file as the guard: a process that waits for the end of the trainer.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

_MARK = "LIT_AGENTRL_PROGRAM"  # variable of the environment that all processes of a program share
_LOOK_S = 0.2  # interval at which the guard checks that the trainer is alive
_ROUNDS = 50  # rounds of killing, because marked processes may start others meanwhile
_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_numbers = count()


class Process:
    """A process of a program, together with all processes that it starts.

    The process has a process group of its own, and ends with the trainer.  On Linux, the processes that it starts end
    with the trainer too, even outside the group: their environment has a mark, by which a guard finds and kills them.

    Args:
        command: Program and arguments.
        env: Variables that are added to the environment.
        pipes: Further arguments of ``subprocess.Popen``.

    Raises:
        OSError: The command cannot be started.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], **pipes: Any) -> None:
        start, mark = _find_starter()
        self._mark = f"{mark}-{next(_numbers)}"
        without_proxy = ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1"]))
        proxies = {"NO_PROXY": without_proxy, "no_proxy": without_proxy}
        self._process: subprocess.Popen[bytes] = start(
            command, env={**os.environ, **proxies, **env, _MARK: self._mark}, **pipes
        )
        self.stdin, self.stdout, self.stderr = self._process.stdin, self._process.stdout, self._process.stderr
        self._lock = threading.Lock()  # held while reaping, after which another process may get the pid

    @property
    def is_alive(self) -> bool:
        """True until the process ends."""
        if not hasattr(os, "waitid"):
            return self._process.poll() is None
        with suppress(ChildProcessError):
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None
        return False

    def wait(self) -> int:
        """Wait for the process to end, kill its descendants, and return its exit code."""
        if hasattr(os, "waitid"):  # waits without reaping, so the pid stays taken
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            self.kill()
        else:
            self._process.wait()
            self._kill_group()
        return self._process.wait()

    def kill(self) -> None:
        """Kill the process and all that it has started."""
        with self._lock:
            if self._process.returncode is None:
                self._kill_group()
                self._process.wait()
        kill_marked(self._mark)

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


class _Starter:
    """The thread that starts the programs of this process, and their guard.

    The kernel kills a program when the thread that started it ends, so this thread lives as long as its process.  If
    this process is killed, the guard kills what its programs have started.
    """

    def __init__(self) -> None:
        self.mark = secrets.token_hex(8)
        self._process = os.getpid()
        self._thread = ThreadPoolExecutor(1, "programs")
        self._guard: subprocess.Popen[bytes] | None = None

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a program in a group of its own."""
        return self._thread.submit(self._start, command, **options).result()

    def _start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        if self._guard is None or self._guard.poll() is not None:
            self._guard = self._start_guard()
        end_with_parent = partial(_end_with_parent, self._process)
        return subprocess.Popen(command, start_new_session=True, preexec_fn=end_with_parent, **options)

    def _start_guard(self) -> subprocess.Popen[bytes]:
        none = subprocess.DEVNULL
        command = [sys.executable, "-I", "-S", __file__, str(self._process), self.mark]
        return subprocess.Popen(command, stdin=none, stdout=none, stderr=none, start_new_session=True)


_starters: dict[int, _Starter] = {}  # by pid, because a forked process inherits no threads
_lock = threading.Lock()


def _find_starter() -> tuple[Any, str]:
    with _lock:
        if os.getpid() not in _starters:
            _starters[os.getpid()] = _Starter()
        starter = _starters[os.getpid()]
    return starter.start, starter.mark


def _end_with_parent(parent: int) -> None:
    """Ask the kernel of Linux to kill this process when its parent ends."""
    if _libc is not None:
        _libc.prctl(_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before the call
            os._exit(1)


def kill_marked(mark: str) -> None:
    """Kill all processes of a program, or of all programs of a trainer."""
    for _ in range(_ROUNDS):
        pids = _find_marked(f"{_MARK}={mark}".encode())
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not pids:
            return
        time.sleep(0.01)


def _find_marked(variable: bytes) -> list[int]:
    """Return the pids of processes whose environment has ``variable``, or ``variable-…``."""
    pids: list[int] = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not name.isdecimal():
            continue
        with suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:  # ended, or another user's
            data = file.read()
            if variable in data and any(
                each == variable or each.startswith(variable + b"-") for each in data.split(b"\0")
            ):
                pids.append(int(name))
    return pids


def main(trainer: int, mark: str) -> None:
    """Wait for the end of the trainer, and kill all programs that it has started."""
    while os.getppid() == trainer:
        time.sleep(_LOOK_S)
    kill_marked(mark)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
