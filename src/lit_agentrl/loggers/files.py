"""Loggers of ``metrics.csv`` and ``tensorboard/``, which a resumed run rewinds.

The x-axis is the number of completed iterations: row 0 is the start, row ``i`` the end of iteration ``i``.
"""

from __future__ import annotations

import csv
import io
import logging
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from lit_agentrl.files import append_durable, read_complete_lines, remove_leftover, write_atomic
from lit_agentrl.loggers import board
from lit_agentrl.report.summary import Summary, add_references
from lit_agentrl.report.table import Metrics

_log = logging.getLogger(__name__)
_CLOSING = ".closing"  # suffix of the event file with the closing scores
_OPTIONS = ".options"  # suffix of the event file with the hyperparameters of a run that goes on


def _format_csv_line(fields: Sequence[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(fields)
    return buffer.getvalue()


class CSVLog(Logger):
    """Logger of ``metrics.csv``: one row per iteration, on disk before the call returns.

    Columns are ``iteration`` and then the metric names, sorted.  The field of a metric that was not measured is
    empty.  Floats are written with ``repr``, so that they are read back bit-exactly.  A new metric name rewrites the
    file atomically with a wider header.  Logging an iteration that already has a row adds to that row.  Only
    :meth:`rewind` removes rows.

    Args:
        save_dir: the run folder.
        name: file name, without its extension.
    """

    def __init__(self, save_dir: str | Path, name: str = "metrics") -> None:
        super().__init__()
        self._folder = Path(save_dir)
        self._name = name
        self._columns: list[str] = []
        self._rows: dict[int, dict[str, str]] = {}
        self._is_loaded = False
        self._is_damaged = False  # the file on disk differs from what _rewrite() would write

    @property
    def name(self) -> str:
        return self._name

    @property
    def version(self) -> str:
        return ""

    @property
    def save_dir(self) -> str:
        return str(self._folder)

    @property
    def log_dir(self) -> str:
        return str(self._folder)

    @property
    def path(self) -> Path:
        return self._folder / f"{self._name}.csv"

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Ignore the hyperparameters: the run folder holds the whole config."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Write the row of iteration ``step``.

        Raises:
            ValueError: ``step`` is missing or negative, a value is not a number, or a metric is called
                ``iteration``.
            OSError: the file cannot be written.
        """
        if step is None or step < 0:
            raise ValueError(f"step={step} is not a number of completed iterations; valid: 0, 1, 2, …")
        if "iteration" in metrics:
            raise ValueError("a metric is called 'iteration', which is the name of the first column")
        self._load()
        row = {key: repr(float(value)) for key, value in metrics.items()}
        is_append = not self._is_damaged and all(step > other for other in self._rows)
        new_keys = row.keys() - set(self._columns)
        self._columns = sorted({*self._columns, *row})
        self._rows[step] = {**self._rows.get(step, {}), **row}
        if is_append and not new_keys and self.path.exists():
            self._is_damaged = True  # until the append returns: a full disk leaves an incomplete line
            append_durable(self.path, self._format_row(step))
            self._is_damaged = False
        else:
            self._rewrite()

    @rank_zero_only
    def rewind(self, iterations: int) -> None:
        """Drop rows after ``iterations`` completed iterations, and incomplete ones; −1 drops all.

        Incomplete rows, and rows that somebody else removed, are reported as warnings.
        """
        self._load()
        remove_leftover(self.path)
        if self._is_damaged:
            _log.warning("%s: dropped an incomplete line of an interrupted write", self.path)
        rows = {i: row for i, row in self._rows.items() if i <= iterations}
        if missing := sum(i not in rows for i in range(1, iterations + 1)):
            _log.warning(
                "%s: %d of the rows before iteration %d are missing; the run continues without them",
                self.path, missing, iterations + 1,
            )  # fmt: skip
        if len(rows) < len(self._rows) or self._is_damaged:
            self._rows = rows
            # drop columns that only dropped rows had, as if they had never been measured
            self._columns = sorted({key for row in rows.values() for key in row})
            self._rewrite()

    def _format_row(self, iteration: int) -> str:
        row = self._rows[iteration]
        return _format_csv_line([str(iteration), *(row.get(key, "") for key in self._columns)])

    def _rewrite(self) -> None:
        header = _format_csv_line(["iteration", *self._columns])
        write_atomic(self.path, header + "".join(self._format_row(i) for i in sorted(self._rows)))
        self._is_damaged = False

    def _load(self) -> None:
        """Load the rows of an earlier launch.

        Loading is delayed, since a logger is also built where nothing is logged.
        """
        if self._is_loaded:
            return
        lines, is_torn = read_complete_lines(self.path)
        try:
            header, *records = list(csv.reader(lines)) or [["iteration"]]
        except csv.Error as error:
            raise ValueError(f"{self.path} is damaged ({error}); copy it again, or move it away") from error
        if header[0] != "iteration":
            raise ValueError(f"{self.path} is not a metrics file: its first column is {header[0]!r}")
        self._columns = header[1:]
        self._is_damaged = is_torn
        for record in records:
            if len(record) == len(header) and record[0].isdigit():
                row = zip(self._columns, record[1:], strict=True)
                self._rows[int(record[0])] = {key: value for key, value in row if value}
            else:
                self._is_damaged = True
        self._is_loaded = True


def add_csv_log(loggers: Sequence[Logger], folder: Path) -> list[Logger]:
    """Return the loggers with a `CSVLog` first, which every run has because reports read it."""
    csv_logs: list[Logger] = [logger for logger in loggers if isinstance(logger, CSVLog)]
    return [*(csv_logs or [CSVLog(folder)]), *(logger for logger in loggers if logger not in csv_logs)]


class TensorBoardLog(TensorBoardLogger):
    """Logger of TensorBoard events in ``<run>/tensorboard``.

    The main metrics are also written below ``0_overview/``, which TensorBoard shows first.  The CUSTOM SCALARS tab
    shows success between chance and oracle, and the test with its interval.

    Every launch writes a session start when it rewinds; TensorBoard then hides what was logged at or after that
    step, so a resumed run shows each iteration once.  The closing scores are in a separate event file, which is
    deleted when the run continues.  The hyperparameters are in a third file, which the closing file replaces: the
    closing file ends the session of the HPARAMS tab, and adds the score as the tab's first column.  The tab shows the
    status "unknown" for an unfinished run.

    Args:
        save_dir: the run folder.
        max_queue: number of events to hold before a flush (each iteration is flushed anyway).
        figure: draw the learning curve at the end, with matplotlib; ``auto``: only if matplotlib is installed.

    Raises:
        ValueError: a figure is requested and matplotlib is not installed.
    """

    def __init__(
        self, save_dir: str | Path, max_queue: int = 100, figure: bool | Literal["auto"] = "auto"
    ) -> None:
        super().__init__(
            save_dir=save_dir, name="", version="tensorboard", default_hp_metric=False, max_queue=max_queue
        )
        self._run_folder = Path(save_dir)
        self._has_figure = board.should_draw(figure)
        self._references: dict[str, float] = {}
        self._options: dict[str, Any] | None = None

    def compare_with(self, **references: float) -> None:
        """Set the success levels to draw with validation, such as ``chance`` and ``oracle``."""
        self._references.update(references)

    @rank_zero_only
    def rewind(self, iterations: int) -> None:
        """Hide everything after ``iterations`` completed iterations; −1 hides all."""
        self._delete_files(_CLOSING)
        start = Event(step=iterations + 1, session_log=SessionLog(status=SessionLog.START))
        self.experiment._get_file_writer().add_event(start)
        if iterations < 0:
            self.experiment.add_custom_scalars(board.LAYOUT)
        self.experiment.flush()

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Open the run's session in the HPARAMS tab; nested keys are joined with ``/``.

        The seed is named ``0_seed`` there, so that it is among the columns shown.  No metric columns are fixed
        here, so that the tab offers every scalar of every run.  TensorBoard reads only the first such session of a
        run, so :meth:`conclude` writes the file again with the score.
        """
        nested = vars(params) if isinstance(params, Namespace) else dict(params)
        flat = _flatten(nested)
        if "seed" in flat:  # the tab shows the first five columns by name
            flat = {"0_seed": flat.pop("seed"), **flat}
        self._options = flat
        self._delete_files(_OPTIONS)
        with SummaryWriter(self.log_dir, filename_suffix=_OPTIONS) as writer:
            writer._get_file_writer().add_summary(hparams(flat, {})[1], 0)  # type: ignore[no-untyped-call]

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Add the row of iteration ``step``."""
        super().log_metrics(board.add_overview(add_references(metrics, self._references)), step)

    @rank_zero_only
    def conclude(self, summary: Summary) -> None:
        """Write the closing scores to a separate event file."""
        self._close()
        with SummaryWriter(self.log_dir, filename_suffix=_CLOSING) as writer:
            for iteration, row in board.list_test_scores(summary):
                for name, value in row.items():
                    writer.add_scalar(name, value, iteration)
            end = summary["iterations"]
            writer.add_text(board.SCORES, board.format_scores(summary), end)
            if self._has_figure:
                metrics = Metrics.read(self._run_folder / "metrics.csv")
                picture = board.draw_learning_curve(metrics, summary, self._references)
                writer.add_image(board.CURVE, picture, end, dataformats="HWC")
            if self._options is not None:
                self._delete_files(_OPTIONS)
                flat = {**board.name_score(summary), **self._options}
                for part in hparams(flat, {})[1:]:  # type: ignore[no-untyped-call]
                    writer._get_file_writer().add_summary(part, 0)
                self._options = None

    @rank_zero_only
    def save(self) -> None:
        # the parent would also write hparams.yaml, but the run folder already holds the config
        self.experiment.flush()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Close the event file if training has failed.

        After a success the file stays open, because more may be logged: a validation alone also ends with success.
        Each close would start another file, and TensorBoard reads files of the same second by name, the tenth before
        the ninth.
        """
        if self._experiment is not None:
            self._experiment.flush()
        if status != "success":
            self._close()

    def _delete_files(self, suffix: str) -> None:
        for file in Path(self.log_dir).glob(f"events*{suffix}"):
            file.unlink()

    def _close(self) -> None:
        if self._experiment is not None:
            self._experiment.close()


def _flatten(params: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in params.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{key}/"))
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, (bool, int, float, str)) else str(value)
    return flat
