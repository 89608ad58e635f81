"""Sweeps from the command line: each launcher, a search, failed runs, and what an interrupt or a kill leaves."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import optuna
import psutil
import pytest
from omegaconf import OmegaConf

from lit_agentrl.commands.train import main as main_train
from lit_agentrl.report import summary as reports
from lit_agentrl.report.sweep import Entry, latest, read
from tests.conftest import ROOT
from tests.entry.conftest import SMALL

TRAIN = [sys.executable, str(ROOT / "train.py"), "-m", *shlex.split(SMALL)]


def by_run(folder: Path) -> list[Entry]:
    return latest(read(folder))


@pytest.mark.slow
@pytest.mark.sweep
def test_a_search_is_told_values_and_failures(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tiny_model_folder: Path,
    in_empty_folder: Path,
) -> None:
    """The value of a run is that of its best checkpoint, to be made as small as can be where the mode says so."""
    command = (
        f"-m {SMALL} hydra/sweeper=optuna hydra/sweeper/sampler=random model=hf model.name=/no/such,{tiny_model_folder}"
        " optim.lr=tag(log,interval(1e-5,1e-2)) hydra.sweeper.n_trials=4 hydra.sweep.dir=sweep"
        " callbacks.best.monitor=val/return callbacks.best.mode=min"
    )
    studies: list[optuna.Study] = []
    create = optuna.create_study
    monkeypatch.setattr(optuna, "create_study", lambda **given: studies.append(create(**given)) or studies[0])
    with pytest.raises(SystemExit) as stopped:
        main_train(shlex.split(command))
    assert stopped.value.code == 1
    runs, (study,) = by_run(Path("sweep")), studies
    failed = [run["run"] for run in runs if run["status"] == "failed"]
    assert 0 < len(failed) < 4 == len(study.trials) and study.direction.name == "MINIMIZE"
    printed = capsys.readouterr()
    errors = [line for line in printed.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == len(failed) and "model.name=/no/such could not be loaded" in errors[0]
    for run, trial in zip(runs, study.trials, strict=True):
        assert (trial.state.name == "FAIL") == (run["run"] in failed)
        if run["monitored"] is not None:
            summary = reports.read(Path(run["folder"]) / "summary.json")
            best = next(game["best"] for game in summary["games"] if game["split"] == "val")
            assert trial.value == run["monitored"]["value"]
            assert trial.value == pytest.approx(best["return"]["mean"])  # type: ignore[index]
    found = OmegaConf.load("sweep/optimization_results.yaml")
    assert found.best_value == min(trial.value for trial in study.trials if trial.value is not None)
    assert f"sweep: {4 - len(failed)} of 4 runs completed" in printed.out


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("launcher", ["joblib hydra.launcher.n_jobs=2", "submitit_local"])
def test_runs_in_other_processes(launcher: str, tiny_model_folder: Path, in_empty_folder: Path) -> None:
    """Each has its folder, its value and its lines; one that fails is one line, and the others go on."""
    options = (
        f"hydra/launcher={launcher} model=hf model.name={tiny_model_folder},/no/such hydra.sweep.dir=sweep"
    )
    done = subprocess.run([*TRAIN, *options.split()], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert error.startswith(f"error: {in_empty_folder}/sweep/1: model.name=/no/such could not be loaded")
    good, bad = by_run(Path("sweep"))
    assert good["status"] == "completed" and good["monitored"] is not None and bad["status"] == "failed"
    assert f"run 0 begun model.name={tiny_model_folder}" in done.stdout and "run 0 completed" in done.stdout
    assert "sweep: 1 of 2 runs completed" in done.stdout and "Traceback" not in done.stderr
    assert "completed: 2 of 2 iterations" in Path("sweep/0/printed.txt").read_text()
    assert "completed: 2 of 2 iterations" not in done.stdout and not Path("sweep/1").exists()


def _begun(sweep: Path, command: Any) -> psutil.Process:
    """The process of the sweep, once a run of it trains."""
    deadline = time.monotonic() + 200
    while not list(sweep.glob("0_seed=1/checkpoints/last.ckpt")):
        assert command.poll() is None and time.monotonic() < deadline, (
            command.stdout and command.stdout.read()
        )
        time.sleep(0.2)
    return psutil.Process(command.pid)


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize(
    ("launcher", "number"),
    [
        ("joblib", signal.SIGINT),
        ("joblib", signal.SIGKILL),
        pytest.param("submitit_local", signal.SIGINT, marks=pytest.mark.long),
    ],
)
def test_an_interrupted_sweep_leaves_no_process(
    launcher: str, number: signal.Signals, in_empty_folder: Path
) -> None:
    options = [f"hydra/launcher={launcher}", "seed=1,2", "trainer.max_epochs=5000", "hydra.sweep.dir=sweep"]
    arguments = [text for text in TRAIN if not text.startswith("trainer.max_epochs")]
    command = subprocess.Popen(
        [*arguments, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True,
    )  # fmt: skip
    below = _begun(Path("sweep"), command).children(recursive=True)
    command.send_signal(number)
    printed, _ = command.communicate(timeout=120)
    assert psutil.wait_procs(below, timeout=60)[1] == []
    assert reports.read("sweep/0_seed=1/summary.json")["status"] == "stopped"
    if number == signal.SIGINT:
        assert command.returncode == 130 and "interrupted; continue with: " in printed
        assert "sweep: 0 of 2 runs completed" in printed
