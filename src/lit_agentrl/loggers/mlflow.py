"""MLflow logger: live if a server is set, else a database in the run folder."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import sqlite3
from argparse import Namespace
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import MLFlowLogger
from lightning.pytorch.loggers.logger import Logger, rank_zero_experiment
from lightning.pytorch.utilities import rank_zero_only

from lit_agentrl.report import summary as reports
from lit_agentrl.report.table import iterate_rows

_log = logging.getLogger(__name__)
_NEEDED = ("mlflow", "sqlalchemy", "alembic")
_SCORES = "scores/"  # prefix of the names of closing scores


class MLflowLog(MLFlowLogger):
    """Lightning's `MLFlowLogger`, which also shows each iteration of a resumed run once.

    The logger is live if ``MLFLOW_TRACKING_URI`` names a server.  Otherwise the run is in ``<run>/mlflow/mlflow.db``,
    an SQLite database that holds nothing else; ``mlflow ui --backend-store-uri sqlite:///RUN/mlflow/mlflow.db`` shows
    it.

    Hyperparameters are logged as parameters, metrics with the number of completed iterations as their step, and
    closing scores below ``scores/``.  MLflow cannot delete single metrics, so a resumed run continues under the same
    id: iterations that MLflow has are not sent again, missing ones are read from ``metrics.csv``.

    Args:
        save_dir: the run folder, with its ``metrics.csv``.
        experiment: name of the MLflow experiment.
        name: name of the MLflow run; None: the name of the run folder.

    Raises:
        ValueError: ``mlflow-skinny`` (or ``mlflow``), or a package that MLflow needs for a database, is not installed.
    """

    def __init__(
        self, save_dir: str | Path, experiment: str = "lit_agentrl", name: str | None = None
    ) -> None:
        Logger.__init__(self)  # `MLFlowLogger.__init__` would create a store even if nothing is logged
        if missing := [package for package in _NEEDED if importlib.util.find_spec(package) is None]:
            raise ValueError(
                f"needs the package {missing[0]}; install it with: pip install 'lit-agentrl[mlflow]'"
            )
        self._run_folder = Path(save_dir).absolute()
        self._experiment_name = experiment
        self._name = name or self._run_folder.name
        self._server = os.environ.get("MLFLOW_TRACKING_URI", "")
        self._references: dict[str, float] = {}
        self._is_open = False
        self._run_id: str | None = None
        self._last_logged = -1  # last iteration that earlier launches logged

    @property
    def name(self) -> str:
        return self._experiment_name

    @property
    def version(self) -> str:
        return self._run_id or ""

    @property
    def save_dir(self) -> str:
        return str(self._run_folder)

    @property
    def folder(self) -> Path:
        """The folder with the database, or with the id of a run on a server."""
        return self._run_folder / "mlflow"

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The MLflow client; the first access starts or continues the run."""
        self._open()
        return super().experiment

    def compare_with(self, **references: float) -> None:
        """Set the success levels to compare validation with, such as ``chance`` and ``oracle``."""
        self._references.update(references)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Record the hyperparameters as parameters.

        MLflow parameters cannot change, so values that a later launch changes become tags.
        """
        earlier = self.experiment.get_run(self._run_id).data.params
        hyperparameters = vars(params) if isinstance(params, Namespace) else params
        super().log_hyperparams(
            {name: value for name, value in hyperparameters.items() if name not in earlier}
        )
        for name, value in hyperparameters.items():
            if name in earlier and earlier[name] != str(value)[:250]:
                self.experiment.set_tag(self._run_id, f"resumed.{name}", str(value))

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Add the row of iteration ``step``, unless an earlier launch has added it."""
        if (step or 0) > self._last_logged:
            self._open()
            super().log_metrics(reports.add_references(metrics, self._references), step)

    @rank_zero_only
    def rewind(self, iterations: int) -> None:
        """Continue after ``iterations`` completed iterations; −1 starts a new run."""
        if self._is_open or not self.folder.exists():
            return
        if self._read_run_id() is None and not self._server:  # killed while creating the database
            shutil.rmtree(self.folder)
            return
        client = self.experiment
        if iterations < 0:
            client.delete_run(self._run_id)
            (self.folder / "run_id").unlink(missing_ok=True)
            self._is_open = False
            return
        self._last_logged = max(
            (
                point.step
                for name in client.get_run(self._run_id).data.metrics
                if not name.startswith(_SCORES)
                for point in client.get_metric_history(self._run_id, name)
            ),
            default=-1,
        )
        for step, row in iterate_rows(self._run_folder / "metrics.csv", iterations):
            self.log_metrics(row, step)

    @rank_zero_only
    def conclude(self, summary: reports.Summary) -> None:
        """Record the closing scores, and end the run."""
        scores = {f"{_SCORES}{name}": value for name, value in reports.flatten_scores(summary).items()}
        self._open()
        super().log_metrics(scores, summary["iterations"])
        self._close("FINISHED")

    @rank_zero_only
    def finalize(self, status: str = "success") -> None:
        """End the run if training has failed.

        A success does not end the run, since a validation alone also ends with success.
        """
        if status != "success":
            self._close("FAILED")

    def _open(self) -> None:
        """Start the run, or continue that of an earlier launch."""
        if self._is_open:
            return
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        import mlflow  # noqa: F401  # importing it configures its logging

        for name in ("mlflow", "alembic", "lightning.pytorch.loggers.mlflow"):
            logging.getLogger(name).setLevel(logging.ERROR)
        earlier_run_id = self._read_run_id()
        self.folder.mkdir(parents=True, exist_ok=True)
        database, artifacts = f"sqlite:///{self.folder / 'mlflow.db'}", (self.folder / "artifacts").as_uri()
        MLFlowLogger.__init__(
            self, self._experiment_name, tracking_uri=self._server or database, run_id=earlier_run_id,
            run_name=self._name, artifact_location=None if self._server else artifacts,
        )  # fmt: skip
        client = super().experiment
        self._is_open = True
        if self._server:
            (self.folder / "run_id").write_text(str(self._run_id), encoding="utf-8")
        elif earlier_run_id is None:
            _log.warning(
                "MLflow is offline: show it with mlflow ui --backend-store-uri %s, or set MLFLOW_TRACKING_URI",
                database,
            )
        client.update_run(self._run_id, status="RUNNING")

    def _close(self, status: str) -> None:
        if self._is_open:
            self.experiment.set_terminated(self._run_id, status)

    def _read_run_id(self) -> str | None:
        """Return the id of the run of earlier launches."""
        with suppress(OSError, sqlite3.Error):
            if self._server:
                return (self.folder / "run_id").read_text(encoding="utf-8")
            if (path := self.folder / "mlflow.db").exists():
                with closing(sqlite3.connect(path)) as database:
                    row = database.execute(
                        "SELECT run_uuid FROM runs WHERE lifecycle_stage = 'active'"
                    ).fetchone()
                    return str(row[0]) if row else None
        return None
