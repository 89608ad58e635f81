"""Weights & Biases logger: live with an API key, else offline in the run folder."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.loggers.logger import rank_zero_experiment
from lightning.pytorch.utilities import rank_zero_only

from lit_agentrl.checks import require
from lit_agentrl.report import summary as reports
from lit_agentrl.report.table import iterate_rows

_log = logging.getLogger(__name__)
_FORBIDDEN = "/\\#?%:"  # characters that no W&B project may have; W&B would say so only when the run starts
_CACHES = ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR")  # default: the home directory


class WandbLog(WandbLogger):
    """Lightning's `WandbLogger` with files in ``<run>/wandb``; it shows each iteration once.

    The W&B config holds the hyperparameters, the history one row per iteration (``_step`` is the number of completed
    iterations), the summary the closing scores.

    With ``WANDB_API_KEY`` the logger is live, unless ``WANDB_MODE`` is ``offline``.  A resumed run keeps its id.  Its
    rows are sent again, and W&B ignores those of steps that it already has.

    Without a key the logger is offline: nothing is sent anywhere, and nothing about the machine, the console or the
    source is recorded; ``wandb sync RUN/wandb/offline-run-*`` uploads the run.  The file of an offline run cannot be
    truncated.  When a run resumes, the files of the earlier launch are replaced by new ones with the same run id, which
    begin with the rows of ``metrics.csv``.

    Args:
        save_dir: the run folder, with its ``metrics.csv``.
        project: W&B project; None: the value of ``WANDB_PROJECT``.
        name: name of the W&B run; None: the name of the run folder.
        group: W&B group of the run.
        tags: W&B tags of the run.

    Raises:
        ValueError: ``wandb`` is not installed, or would refuse a name.
    """

    def __init__(
        self, save_dir: str | Path, project: str | None = None, name: str | None = None,
        group: str | None = None, tags: Sequence[str] = (),
    ) -> None:  # fmt: skip
        if importlib.util.find_spec("wandb") is None:
            raise ValueError("needs the package wandb; install it with: pip install 'lit-agentrl[wandb]'")
        is_valid = project is None or (0 < len(project) <= 128 and not set(project) & set(_FORBIDDEN))
        require(
            is_valid,
            "project",
            project,
            f"a name of at most 128 characters without {' '.join(_FORBIDDEN)}",
        )
        for option, value in (("name", name), ("group", group)):
            require(
                value is None or 0 < len(value) <= 128,
                option,
                value,
                "a text of 1 to 128 characters, or null",
            )
        for tag in tags:
            require(0 < len(tag) <= 64, "tags", list(tags), "a list of texts of 1 to 64 characters each")
        home = Path(save_dir).absolute()
        super().__init__(save_dir=home, project=project, name=name or home.name)
        has_key = bool(os.environ.get("WANDB_API_KEY"))
        self.is_live = has_key and os.environ.get("WANDB_MODE", "online") in ("online", "shared")
        self._options: dict[str, Any] = {
            "dir": str(home), "project": project, "name": self._name, "group": group, "tags": list(tags),
            "resume": "allow" if self.is_live else None,
        }  # fmt: skip
        self._home = home
        self._references: dict[str, float] = {}
        self._last_logged = -1  # last iteration that this launch logged

    @property
    def folder(self) -> Path:
        """The folder to which W&B writes."""
        return self._home / "wandb"

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The W&B run; the first access starts or continues it.

        Raises:
            ValueError: W&B cannot be reached.
        """
        if self._experiment is None:
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # no crash reports to W&B
            import wandb

            self.folder.mkdir(parents=True, exist_ok=True)
            # create_new does not touch a W&B run that is already open, as in a notebook
            settings = wandb.Settings(
                reinit="create_new", console="off", **({} if self.is_live else _OFFLINE)
            )
            try:
                with nullcontext() if self.is_live else _redirect_caches(self.folder / "cache"):
                    self._experiment = wandb.init(id=self._id, settings=settings, **self._options)
            except wandb.errors.Error as error:
                raise ValueError(
                    f"W&B refuses the run ({error}); WANDB_MODE=offline records it on this machine"
                ) from error
            if not self.is_live and self._id is None:
                _log.warning(
                    "W&B is offline: upload it with wandb sync %s/offline-run-*, or set WANDB_API_KEY to be live",
                    self.folder,
                )
            self._id = self._experiment.id
        return self._experiment

    def compare_with(self, **references: float) -> None:
        """Set the success levels to compare validation with, such as ``chance`` and ``oracle``."""
        self._references.update(references)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Record the hyperparameters as the config of the run."""
        super().log_hyperparams(params)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Add the row of iteration ``step``."""
        self.experiment.log({**reports.add_references(metrics, self._references)}, step=step, commit=True)
        self._last_logged = max(self._last_logged, step or 0)

    @rank_zero_only
    def rewind(self, iterations: int) -> None:
        """Restart the log with the rows up to ``iterations`` completed iterations; −1 keeps none."""
        if self._experiment is None and not self.folder.exists():
            return
        if self._experiment is not None and self._last_logged <= iterations:
            return
        self._close(exit_code=0)
        folders = sorted(self.folder.glob("*run-*-*"))
        self._id = folders[-1].name.rpartition("-")[2] if folders else self._id
        if not self.is_live:
            shutil.rmtree(self.folder, ignore_errors=True)
        self._last_logged = -1
        for step, row in iterate_rows(self._home / "metrics.csv", iterations):
            self.log_metrics(row, step)

    @rank_zero_only
    def conclude(self, summary: reports.Summary) -> None:
        """Record the closing scores, and end the run."""
        self.experiment.summary.update({"status": summary["status"], **reports.flatten_scores(summary)})
        self._close(exit_code=0)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the run if training has failed.

        A success does not end the run, since a validation alone also ends with success.
        """
        if status != "success":
            self._close(exit_code=1)

    def _close(self, exit_code: int) -> None:
        if self._experiment is not None:
            self._experiment.finish(exit_code=exit_code)
            self._experiment = None


_OFFLINE: dict[str, Any] = {
    "mode": "offline", "silent": True, "disable_git": True, "disable_code": True, "disable_job_creation": True,
    "x_disable_stats": True, "x_disable_meta": True, "x_save_requirements": False,
}  # fmt: skip


@contextmanager
def _redirect_caches(folder: Path) -> Iterator[None]:
    """Keep W&B's own logs and caches in the run folder."""
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
