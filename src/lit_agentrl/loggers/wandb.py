"""Weights & Biases: the files of an offline run in the run folder, each iteration once, however often it was killed."""

from __future__ import annotations

import importlib.util
import os
import shutil
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from lit_agentrl.checks import require
from lit_agentrl.report import summary as reports
from lit_agentrl.report.table import Metrics

_NO_PROJECT = "/\\#?%:"  # which W&B refuses when the run begins
_CACHES = ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR")  # else below the home directory


class WandbLog(Logger):
    """A run of W&B in ``<run>/wandb``, offline: ``wandb sync RUN/wandb/offline-run-*`` uploads it.

    Its config holds the hyperparameters, its history a row an iteration (``_step`` is the number of completed
    iterations), its summary the closing scores.  Nothing is sent anywhere, whatever ``WANDB_MODE`` says, and
    nothing of the machine, the console or the source is recorded.

    The file of an offline run cannot be cut back.  Where a run goes on, the files of the earlier launch are
    replaced by new ones of the same run id, in which the rows of ``metrics.csv`` stand first: their times are
    those of the new launch.

    Args:
        save_dir: the run folder, with its ``metrics.csv``.
        project: of W&B; None leaves it to ``WANDB_PROJECT``.
        name: of the run there; None is the name of the run folder.
        group: of runs there.
        tags: of the run there.

    Raises:
        ValueError: ``wandb`` is not installed, or would refuse a name.
    """

    def __init__(
        self, save_dir: str | Path, project: str | None = None, name: str | None = None,
        group: str | None = None, tags: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__()
        if importlib.util.find_spec("wandb") is None:
            raise ValueError("needs the package wandb; install it with: pip install 'lit-agentrl[wandb]'")
        is_project = project is None or (0 < len(project) <= 128 and not set(project) & set(_NO_PROJECT))
        require(
            is_project, "project", project, f"a name of at most 128 signs without {' '.join(_NO_PROJECT)}"
        )
        for option, value in (("name", name), ("group", group)):
            require(
                value is None or 0 < len(value) <= 128, option, value, "a text of 1 to 128 signs, or null"
            )
        for tag in tags:
            require(0 < len(tag) <= 64, "tags", list(tags), "a list of texts of 1 to 64 signs each")
        self._home = Path(save_dir).absolute()
        self._options: dict[str, Any] = {
            "project": project,
            "name": name or self._home.name,
            "group": group,
            "tags": list(tags),
        }
        self._levels: dict[str, float] = {}
        self._run: Any = None
        self._id: str | None = None
        self._logged = -1  # completed iterations, of this launch

    @property
    def name(self) -> str:
        return str(self._options["name"])

    @property
    def version(self) -> str:
        return self._id or ""

    @property
    def save_dir(self) -> str:
        return str(self._home)

    @property
    def folder(self) -> Path:
        """Where W&B writes."""
        return self._home / "wandb"

    def compare_with(self, **references: float) -> None:
        """Success that validation is compared with, such as ``chance`` and ``oracle``: columns beside it."""
        self._levels.update(references)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Record them as the config of the run."""
        given = vars(params) if isinstance(params, Namespace) else params
        self._opened().config.update(dict(given), allow_val_change=True)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Add the row of iteration ``step``."""
        self._opened().log({**reports.beside(metrics, self._levels)}, step=step, commit=True)
        self._logged = max(self._logged, step or 0)

    @rank_zero_only
    def rewind(self, iterations: int) -> None:
        """Drop everything after ``iterations`` completed iterations; −1 drops all."""
        if self._run is None and not self.folder.exists():
            return
        if self._run is not None and self._logged <= iterations:
            return
        self._close(exit_code=0)
        found = sorted(self.folder.glob("offline-run-*"))
        self._id = found[0].name.rpartition("-")[2] if found else self._id
        shutil.rmtree(self.folder, ignore_errors=True)
        self._logged = -1
        for row in Metrics.read(self._home / "metrics.csv").rows:
            values = {name: value for name, value in row.items() if value is not None}
            step = int(values.pop("iteration"))
            if step <= iterations:
                self.log_metrics(values, step)

    @rank_zero_only
    def conclude(self, summary: reports.Summary) -> None:
        """Record the closing scores, and end the run."""
        self._opened().summary.update({"status": summary["status"], **reports.flat_scores(summary)})
        self._close(exit_code=0)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the run if training has failed; a success, also of a validation alone, ends nothing."""
        if status != "success":
            self._close(exit_code=1)

    def _close(self, exit_code: int) -> None:
        if self._run is not None:
            self._run.finish(exit_code=exit_code)
            self._run = None

    def _opened(self) -> Any:
        if self._run is None:
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # else W&B tells its makers of what fails
            import wandb

            self.folder.mkdir(parents=True, exist_ok=True)
            settings = wandb.Settings(
                mode="offline", console="off", silent=True, disable_git=True, disable_code=True,
                disable_job_creation=True, x_disable_stats=True, x_disable_meta=True, x_save_requirements=False,
                reinit="create_new",  # a run of W&B that a notebook has open stays its own
            )  # fmt: skip
            with _caches_in(self.folder / "cache"):
                self._run = wandb.init(dir=str(self._home), id=self._id, settings=settings, **self._options)
            self._id = self._run.id
        return self._run


@contextmanager
def _caches_in(folder: Path) -> Iterator[None]:
    """W&B's own logs and caches stay in the run folder."""
    before = {name: os.environ.get(name) for name in _CACHES}
    os.environ.update(dict.fromkeys(_CACHES, str(folder)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
