"""MLflow: one run in a database of its own in the run folder, cut back exactly where a run goes on."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import sqlite3
import time
from argparse import Namespace
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from lit_agentrl.report import summary as reports

_NEEDED = ("mlflow", "sqlalchemy", "alembic")
_MOST_PARAMS = 100  # of one call
_SCORES = "scores/"  # before the names of closing scores
# what is left of a run of so many iterations; the closing scores are measured again
_REWIND = (
    "DELETE FROM metrics WHERE run_uuid = :run AND (step > :iterations OR key LIKE :scores)",
    "DELETE FROM latest_metrics WHERE run_uuid = :run",
    "INSERT INTO latest_metrics (key, value, timestamp, step, is_nan, run_uuid) "
    "SELECT key, value, timestamp, step, is_nan, run_uuid FROM metrics AS m WHERE run_uuid = :run AND step = "
    "(SELECT MAX(step) FROM metrics WHERE run_uuid = m.run_uuid AND key = m.key)",
)


class MLflowLog(Logger):
    """A run of MLflow in ``<run>/mlflow/mlflow.db``, an SQLite database that holds nothing else.

    ``mlflow ui --backend-store-uri sqlite:///RUN/mlflow/mlflow.db`` shows it.  Its parameters are the
    hyperparameters, its metrics have the number of completed iterations as their step, and the closing scores
    stand below ``scores/``.  No server is asked, whatever ``MLFLOW_TRACKING_URI`` says.

    Where a run goes on, the rows that it will repeat are deleted from the database; all others keep their times.

    Args:
        save_dir: the run folder.
        experiment: name of the experiment in the database.
        name: of the run there; None is the name of the run folder.

    Raises:
        ValueError: ``mlflow-skinny`` (or ``mlflow``) or what it needs for a database is not installed.
    """

    def __init__(
        self, save_dir: str | Path, experiment: str = "lit_agentrl", name: str | None = None
    ) -> None:
        super().__init__()
        if lacking := [package for package in _NEEDED if importlib.util.find_spec(package) is None]:
            raise ValueError(
                f"needs the package {lacking[0]}; install it with: pip install 'lit-agentrl[mlflow]'"
            )
        self._home = Path(save_dir).absolute()
        self._experiment = experiment
        self._name = name or self._home.name
        self._levels: dict[str, float] = {}
        self._client: Any = None
        self._id = ""

    @property
    def name(self) -> str:
        return self._experiment

    @property
    def version(self) -> str:
        return self._id

    @property
    def save_dir(self) -> str:
        return str(self._home)

    @property
    def path(self) -> Path:
        """The database."""
        return self._home / "mlflow" / "mlflow.db"

    def compare_with(self, **references: float) -> None:
        """Success that validation is compared with, such as ``chance`` and ``oracle``: metrics beside it."""
        self._levels.update(references)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Record them as parameters; MLflow keeps the first 6000 characters of each."""
        client = self._opened()
        from mlflow.entities import Param

        given = vars(params) if isinstance(params, Namespace) else params
        with closing(sqlite3.connect(self.path)) as database, database:  # MLflow lets none change
            database.execute("DELETE FROM params WHERE run_uuid = ?", [self._id])
        rows = [Param(name, str(value)[:6000]) for name, value in given.items()]
        for first in range(0, len(rows), _MOST_PARAMS):
            client.log_batch(self._id, params=rows[first : first + _MOST_PARAMS])

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Add the row of iteration ``step``; it is in the database when this returns."""
        client = self._opened()
        from mlflow.entities import Metric

        now = time.time_ns() // 10**6
        values = reports.beside(metrics, self._levels)
        rows = [Metric(name, float(value), now, step or 0) for name, value in values.items()]
        client.log_batch(self._id, metrics=rows)

    @rank_zero_only
    def rewind(self, iterations: int) -> None:
        """Drop everything after ``iterations`` completed iterations; −1 drops all."""
        if not self.path.exists():
            return
        if not (run := self._recorded()):  # killed while it was made
            shutil.rmtree(self.path.parent)
            return
        told = {"run": run, "iterations": iterations, "scores": f"{_SCORES}%"}
        with closing(sqlite3.connect(self.path)) as database, database:
            for statement in _REWIND:
                database.execute(statement, told)

    @rank_zero_only
    def conclude(self, summary: reports.Summary) -> None:
        """Record the closing scores, and end the run."""
        scores = {f"{_SCORES}{name}": value for name, value in reports.flat_scores(summary).items()}
        self.log_metrics(scores, summary["iterations"])
        self._close("FINISHED")

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the run if training has failed; a success, also of a validation alone, ends nothing."""
        if status != "success":
            self._close("FAILED")

    def _close(self, status: str) -> None:
        if self._client is not None:
            self._client.set_terminated(self._id, status)
            self._client = None

    def _opened(self) -> Any:
        if self._client is None:
            os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
            import mlflow

            logging.getLogger("mlflow").setLevel(logging.WARNING)
            logging.getLogger("alembic").setLevel(logging.WARNING)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._id = self._recorded()
            self._client = client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{self.path}")
            if self._id:
                client.update_run(self._id, status="RUNNING")
            else:
                place = self.path.with_name("artifacts").as_uri()
                number = client.create_experiment(self._experiment, artifact_location=place)
                self._id = client.create_run(number, run_name=self._name).info.run_id
        return self._client

    def _recorded(self) -> str:
        """The id of the run in the database; empty where there is none yet."""
        if self.path.exists():
            with suppress(sqlite3.Error), closing(sqlite3.connect(self.path)) as database:
                found = database.execute("SELECT run_uuid FROM runs").fetchone()
                return str(found[0]) if found else ""
        return ""
