"""Train a run of a sweep when its launcher calls it.

The launcher may call it in the process of the sweep, or in another process, which ends when the sweep does.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from lit_agentrl import screen
from lit_agentrl.config.errors import UserError, explain
from lit_agentrl.config.trust import TRUST_RUN
from lit_agentrl.report import summary as reports
from lit_agentrl.report import sweep as records
from lit_agentrl.runs import jobs, run_folder
from lit_agentrl.runs.checking import CheckedJob
from lit_agentrl.runs.sweeps import resumption

PRINTED = "printed.txt"  # file in a run folder with the output of a run in another process
_PATIENCE_S = 20.0  # time for an interrupted run to end
_playing = threading.Event()  # set while this process trains a run
_watched: set[Path] = set()  # sweeps whose end a thread of this process awaits


@dataclass
class SweepRunner:
    """The function that a launcher calls with the config of each run.

    Launchers that start processes pickle it, without ``checked`` and ``on_failure``.

    Attributes:
        sweep: the folder of the sweep, which the sweep's process owns while it lasts.
        command: the command that started the sweep, for the record of each run.
        checked: the jobs that were checked beforehand, whose parts the runs use.
        on_failure: called for each run that fails in this process, with the error, whether a traceback is wanted, and
            the place of the failure.
        count: the number of runs; None if only the sweeper knows it.
        is_resumed: whether the sweep is resumed, so that some runs may have ended and others can be resumed.
        trusted: whether resumed runs may name the user's own code.
        process: host and process id of the sweep.
        program: the program that the user called.
        path: the module search path of the sweep's process.
    """

    sweep: Path
    command: str
    checked: list[CheckedJob]
    on_failure: jobs.OnFailure | None
    count: int | None = None
    is_resumed: bool = False
    trusted: bool = False
    process: tuple[str, int] = field(default_factory=lambda: (socket.gethostname(), os.getpid()))
    program: str = field(default_factory=lambda: sys.argv[0])
    path: list[str] = field(default_factory=lambda: list(sys.path))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "checked": [], "on_failure": None}

    def __call__(self, cfg: DictConfig) -> float | None:
        """Train the run.

        Returns:
            The monitored value of its best checkpoint; None if there is none, or the run has failed.

        Raises:
            KeyboardInterrupt: the run was interrupted.
        """
        hydra_config, folder = HydraConfig.get(), Path(cfg.run_dir)
        entry: records.Entry = {
            "run": hydra_config.job.num, "folder": str(folder), "overrides": list(hydra_config.overrides.task),
            "status": "begun", "monitored": None, "error": None,
        }  # fmt: skip
        if self.is_resumed and (summary := resumption.read_final_summary(folder)) is not None:
            if summary["status"] == "failed" and self.on_failure is not None:
                self.on_failure(UserError(summary["error"] or ""), cfg.traceback, f"{folder}: ")
            return self._record_end(entry, summary)
        records.append(self.sweep, entry)
        if self._is_sweep_process:
            of_count = f" ({entry['run'] + 1} of {self.count})" if self.count else ""
            screen.note(f"run {entry['run']}: {shlex.join(entry['overrides'])}{of_count}", style="bold")
        try:
            is_new = not (self.is_resumed and resumption.has_started(folder))
            if is_new:
                left = {PRINTED, resumption.CONFIG} if self.is_resumed else set()
                run_folder.require_untouched(folder, jobs.list_hydra_files() | left)
            with self._prepare_process(folder):
                self._play(cfg, folder, is_new=is_new)
            summary = reports.read(folder / "summary.json")
        except KeyboardInterrupt as error:
            records.append(self.sweep, {**entry, "status": "interrupted"})
            raise (jobs.Interrupted(cfg.run_dir) if self._is_sweep_process else KeyboardInterrupt) from error
        except Exception as error:  # the other runs go on
            records.append(self.sweep, {**entry, "status": "failed", "error": explain(error)})
            if self.on_failure is not None:
                self.on_failure(error, cfg.traceback, f"{folder}: ")
            run_folder.discard_unused(folder, PRINTED)
            return None
        return self._record_end(entry, summary)

    def _play(self, cfg: DictConfig, folder: Path, *, is_new: bool) -> None:
        """Train the run, or resume it."""
        if not is_new:
            jobs.resume([f"resume={folder}"], [], [f"{TRUST_RUN}=true"] if self.trusted else [])
            return
        if self.is_resumed:
            resumption.write_config(cfg, folder)
        job, parts = jobs.prepare(cfg, self.command, self.checked)
        jobs.load_train()(cfg, job, parts=parts)

    def _record_end(self, entry: records.Entry, summary: reports.Summary) -> float | None:
        """Record the end of a run unless it is recorded already, and return its value."""
        monitored = summary["monitored"]
        end: records.Entry = {
            **entry, "status": summary["status"], "monitored": monitored, "error": summary["error"],
        }  # fmt: skip
        if end not in records.list_latest(records.read(self.sweep)):
            records.append(self.sweep, end)
        return None if monitored is None else monitored["value"]

    @property
    def _is_sweep_process(self) -> bool:
        return self.process == (socket.gethostname(), os.getpid())

    @contextmanager
    def _prepare_process(self, folder: Path) -> Iterator[None]:
        """Prepare this process for a run, if it is not the process of the sweep.

        Program name and module path are those of the sweep, the output goes to `PRINTED`, and the process ends when
        the sweep does.
        """
        if self._is_sweep_process:
            yield
            return
        sys.argv[0] = self.program
        sys.path += [entry for entry in self.path if entry not in sys.path]
        if self.process[0] == socket.gethostname() and self.sweep not in _watched:
            _watched.add(self.sweep)
            threading.Thread(target=_end_after, args=(self.sweep,), daemon=True).start()
        _playing.set()
        try:
            with _redirect_output(folder / PRINTED):
                try:
                    yield
                except Exception:
                    traceback.print_exc()
                    raise
        finally:
            _playing.clear()


@contextmanager
def _redirect_output(file: Path) -> Iterator[None]:
    """Redirect the output of this process and its children to a file.

    In a terminal, the lines of several runs would be mixed.
    """
    sys.stdout.flush(), sys.stderr.flush()
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
    saved = os.dup(1), os.dup(2)  # after the open, which may fail
    try:
        os.dup2(descriptor, 1), os.dup2(descriptor, 2)
        yield
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os.dup2(saved[0], 1), os.dup2(saved[1], 2)
        for copy in (*saved, descriptor):
            os.close(copy)


def _end_after(sweep: Path) -> None:
    """Wait until no process owns the sweep; then interrupt this run, and end this process."""
    while run_folder.find_owner(sweep) is not None:
        time.sleep(1.0)
    if _playing.is_set():
        with suppress(ProcessLookupError):
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(_PATIENCE_S)
    os._exit(0)
