"""Starting the processes of one run on a machine, and ending them together."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.distributed import _set_num_threads_if_needed
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher

# what Lightning's launcher sets for the processes it starts; taken back, so that a sweep's next job starts its own
# and divides the cores anew
LAUNCH_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE", "OMP_NUM_THREADS")


class RankFailed(RuntimeError):
    """Another process of the run stopped it.

    Args:
        message: the cause, in one line.
        is_told: whether another process prints it.
    """

    def __init__(self, message: str, *, is_told: bool = False) -> None:
        super().__init__(message)
        self.is_told = is_told


class Launcher(_SubprocessScriptLauncher):
    """Lightning's launcher of one process a device, without its observer, which kills before causes are told.

    The first process of a machine starts the others and outlives them: none is left behind however it ends.
    """

    _before: dict[str, str | None] | None = None  # the environment, as long as it is Lightning's
    _threads_before: int

    def launch(
        self, function: Callable[..., Any], *args: Any, trainer: pl.Trainer | None = None, **kwargs: Any
    ) -> Any:
        """Start the other processes of this machine, once, and call ``function``."""
        self.cluster_environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        if not self.cluster_environment.creates_processes_externally:
            self._before = {name: os.environ.get(name) for name in LAUNCH_VARIABLES}
            self._threads_before = torch.get_num_threads()
            atexit.register(self.end)
            self._call_children_scripts()
        _set_num_threads_if_needed(num_processes=self.num_processes)
        return function(*args, **kwargs)

    def failed(self) -> tuple[int, str] | None:
        """The first started process that ended with an error, counted from this one, and how; None without."""
        for local_rank, process in enumerate(self.procs, start=1):
            if code := process.poll():
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
                return local_rank, how
        return None

    def join(self, timeout_s: float) -> None:
        """Wait until all started processes have ended well.

        Raises:
            RankFailed: one ended with an error, or has not ended in time.
        """
        deadline = time.monotonic() + timeout_s
        while any(process.poll() is None for process in self.procs):
            if self.failed() or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        cause = self.failed()
        is_late = any(process.poll() is None for process in self.procs)
        self.end()
        if cause or is_late:
            how = (
                f"process {cause[0]} of this machine {cause[1]}"
                if cause
                else f"a process outlived the first by {timeout_s:g} s"
            )
            raise RankFailed(how)

    def end(self, grace_s: float = 0.0) -> None:
        """End what still runs after ``grace_s`` seconds, and leave all as it was before the launch.

        A process that hangs in a collective does not hear a polite signal, so none is sent.
        """
        deadline = time.monotonic() + grace_s
        for process in self.procs:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.procs = []
        if self._before is not None:
            atexit.unregister(self.end)
            for name, value in self._before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            self._before = None
            if torch.get_num_threads() != self._threads_before:
                torch.set_num_threads(self._threads_before)
