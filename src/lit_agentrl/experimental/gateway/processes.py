"""Processes of programs, which end with all that they start.

This file is also the guard, a process that waits for the end of the trainer: ``python processes.py PID MARK``.
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
_LOOK_S = 0.2  # how often the guard looks for the trainer
_ROUNDS = 50  # of killing what is found, because it may start others meanwhile
_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_numbers = count()


class Process:
    """A process of a program, with all that it starts.

    It has a group of its own, and ends with this process.  On Linux, so do those that it has started, and those that
    have left its group: they have a mark in their environment, and a guard kills them.

    Args:
        command: Program and arguments.
        env: Variables that are added to its environment.
        pipes: Further arguments of ``subprocess.Popen``.

    Raises:
        OSError: It cannot be started.
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
        self._lock = threading.Lock()  # held where it is reaped, after which its number may be another's

    @property
    def is_alive(self) -> bool:
        """True if it has not ended."""
        if not hasattr(os, "waitid"):
            return self._process.poll() is None
        with suppress(ChildProcessError):
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None
        return False

    def wait(self) -> int:
        """Wait for its end, kill what it left behind, and return its code."""
        if hasattr(os, "waitid"):  # leaves it its number
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            self.kill()
        else:
            self._process.wait()
            self._kill_group()
        return self._process.wait()

    def kill(self) -> None:
        """Kill it and all that it has started."""
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

    The kernel ends a program with the thread that started it, so this thread lives as long as its process.  The guard
    ends what programs have started if this process is killed.
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


_starters: dict[int, _Starter] = {}  # by process, because a fork has no threads
_lock = threading.Lock()


def _find_starter() -> tuple[Any, str]:
    with _lock:
        if os.getpid() not in _starters:
            _starters[os.getpid()] = _Starter()
        starter = _starters[os.getpid()]
    return starter.start, starter.mark


def _end_with_parent(parent: int) -> None:
    """Ask the kernel to end this process with its parent, where it can."""
    if _libc is not None:
        _libc.prctl(_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended before
            os._exit(1)


def kill_marked(mark: str) -> None:
    """Kill all processes of a program, or of all programs of a trainer."""
    for _ in range(_ROUNDS):
        found = _find_marked(f"{_MARK}={mark}".encode())
        for number in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(number, signal.SIGKILL)
        if not found:
            return
        time.sleep(0.01)


def _find_marked(variable: bytes) -> list[int]:
    """Return the numbers of processes with this variable, perhaps continued after a hyphen."""
    found: list[int] = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not name.isdecimal():
            continue
        with suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:  # it ended, or is another user's
            data = file.read()
            if variable in data and any(
                each == variable or each.startswith(variable + b"-") for each in data.split(b"\0")
            ):
                found.append(int(name))
    return found


def main(trainer: int, mark: str) -> None:
    """Wait for the end of the trainer, and kill all programs that it has started."""
    while os.getppid() == trainer:
        time.sleep(_LOOK_S)
    kill_marked(mark)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
