"""Where the time of a run goes: rollout, update, validation, and the operators of one iteration."""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console, Group
from rich.table import Table
from torch.profiler import ProfilerActivity, profile, record_function

from lit_agentrl.callbacks.iteration_log import measured
from lit_agentrl.callbacks.progress import duration
from lit_agentrl.checks import require_whole
from lit_agentrl.report.table import as_text
from lit_agentrl.report.trace import operators

_SECTIONS = ("rollout", "update", "validate")  # their seconds are metrics, time/…
_WIDEST = 40  # of an operator's name, so that 80 columns hold the table


class Profile(Callback):
    """Shows at the end of training where its time went, and traces one iteration.

    Two files are written: ``table.txt``, which is also shown, and ``iteration_N.pt.trace.json.gz``, which Perfetto
    (ui.perfetto.dev) and TensorBoard's profiler open.  In the trace ``rollout``, ``update`` and ``validate`` are named
    sections.  What other processes do (``worker=process``, further ranks) is not in it.

    Args:
        dirpath: folder of the files.
        iteration: the one that is traced, counted from 1 where this launch begins; the last one of a shorter run.
        rows: operators in the table.
    """

    def __init__(self, dirpath: str | Path, iteration: int = 2, rows: int = 12) -> None:
        require_whole("iteration", iteration, 1)
        require_whole("rows", rows, 1)
        # torch's profiler tells on standard error when it starts and stops, unless it is told before it is used
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")
        self._folder = Path(dirpath)
        self._nth, self._rows = iteration, rows
        self._traced = 0
        self._trace: profile | None = None
        self._section = ExitStack()
        self._seconds: Counter[str] = Counter()
        self._began = self._total = 0.0
        self._iterations = 0
        self._operators: Table | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        last = trainer.max_epochs or -1
        wanted = trainer.current_epoch + self._nth
        self._traced = min(wanted, last) if last != -1 else wanted
        self._seconds.clear()
        self._iterations, self._began = 0, time.perf_counter()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch + 1 == self._traced and trainer.is_global_zero:
            on_gpu = [ProfilerActivity.CUDA] if pl_module.device.type == "cuda" else []
            self._trace = profile(activities=[ProfilerActivity.CPU, *on_gpu])
            self._trace.start()
        self._begin("rollout")

    def on_train_batch_start(self, *where: Any) -> None:
        """The episodes are played: the rollout callback stands before all others."""
        self._begin("update")

    def on_train_batch_end(self, *where: Any) -> None:
        self._section.close()

    def on_validation_start(self, *where: Any) -> None:
        self._begin("validate")

    def on_validation_end(self, *where: Any) -> None:
        self._section.close()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        row = measured(pl_module)
        self._iterations += 1
        self._seconds.update({name: row.get(f"time/{name}", 0.0) for name in _SECTIONS})
        self._stop()
        self._total = time.perf_counter() - self._began

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show and write the table."""
        self._stop()
        if not trainer.is_global_zero or not self._iterations:
            return
        found = Group(*filter(None, (self._sections(), self._operators)))
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "table.txt").write_text(as_text(found) + "\n", encoding="utf-8")
        console = Console()
        console.print(found)
        console.print(f"trace and table in {self._folder}", soft_wrap=True)

    def on_exception(self, *where: Any) -> None:
        self._stop()

    def _begin(self, name: str) -> None:
        self._section.close()
        if self._trace is not None:
            self._section.enter_context(record_function(name))

    def _stop(self) -> None:
        """End the trace, if there is one, and write it."""
        self._section.close()
        if self._trace is None:
            return
        began = time.perf_counter()
        trace, self._trace = self._trace, None
        trace.stop()
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"iteration_{self._traced}.pt.trace.json.gz"
        trace.export_chrome_trace(str(path))
        self._operators = self._operators_of(path, ProfilerActivity.CUDA in trace.activities)
        self._began += time.perf_counter() - began  # no time of the run

    def _sections(self) -> Table:
        total = self._total
        table = Table(title=f"time of {self._iterations} iterations")
        table.add_column("section")
        for column in ("seconds", "share", "each iteration"):
            table.add_column(column, justify="right")
        other = max(total - sum(self._seconds.values()), 0.0)
        for name, seconds in [*((name, self._seconds[name]) for name in _SECTIONS), ("other", other)]:
            if seconds:
                each = duration(seconds / self._iterations)
                table.add_row(name, f"{seconds:.1f}", f"{seconds / total:.0%}", each)
        return table

    def _operators_of(self, path: Path, is_gpu: bool) -> Table:
        """By the time spent in themselves, on the device that computes."""
        found = operators(path, ("kernel", "gpu_memcpy", "gpu_memset") if is_gpu else ("cpu_op",))
        total = sum(each.seconds for each in found) or 1.0
        where = "GPU" if is_gpu else "CPU"
        table = Table(title=f"operators of iteration {self._traced}, by their own time on the {where}")
        table.add_column("operator", overflow="ellipsis", no_wrap=True, width=_WIDEST)
        for column in ("calls", "seconds", "share"):
            table.add_column(column, justify="right")
        for each in found[: self._rows]:
            table.add_row(each.name, str(each.calls), f"{each.seconds:.2f}", f"{each.seconds / total:.0%}")
        return table
