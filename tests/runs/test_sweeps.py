"""Sweeps from the command line: each launcher, a search, failed runs, and what an interrupt or a kill leaves."""

from __future__ import annotations

import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from omegaconf import OmegaConf

from lit_agentrl.__main__ import main
from lit_agentrl.cli.train import main as main_train
from lit_agentrl.config.errors import UserError
from lit_agentrl.report import summary as reports
from lit_agentrl.report.sweep import Entry, append, list_latest, read
from lit_agentrl.runs.sweeps import resumption, runner, sweepers
from tests.commands import SMALL
from tests.conftest import ROOT

TRAIN = [sys.executable, str(ROOT / "train.py"), "-m", *shlex.split(SMALL)]


def by_run(folder: Path) -> list[Entry]:
    return list_latest(read(folder))


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
    import optuna  # takes seconds, and no quick test needs it

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
@pytest.mark.parametrize(
    "launcher", ["joblib hydra.launcher.n_jobs=2", pytest.param("submitit_local", marks=pytest.mark.long)]
)
def test_runs_in_other_processes(launcher: str, tiny_model_folder: Path, in_empty_folder: Path) -> None:
    """Each has its folder, its value and its lines; one that fails is one line, and the others go on."""
    empty = in_empty_folder / "empty"
    empty.mkdir()
    (empty / "config.json").write_text("{}")  # else the sweep is refused before its first run
    options = (
        f"hydra/launcher={launcher} model=hf model.name={tiny_model_folder},{empty} hydra.sweep.dir=sweep"
    )
    done = subprocess.run([*TRAIN, *options.split()], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert error.startswith(f"error: {in_empty_folder}/sweep/1: model.name={empty} could not be loaded")
    good, bad = by_run(Path("sweep"))
    assert good["status"] == "completed" and good["monitored"] is not None and bad["status"] == "failed"
    assert f"run 0 begun model.name={tiny_model_folder}" in done.stdout and "run 0 completed" in done.stdout
    assert "sweep: 1 of 2 runs completed" in done.stdout and "Traceback" not in done.stderr
    assert "completed: 2 of 2 iterations" in Path("sweep/0/printed.txt").read_text()
    assert "completed: 2 of 2 iterations" not in done.stdout and not Path("sweep/1").exists()


def _begun(sweep: Path, command: Any) -> psutil.Process:
    """The process of the sweep, once a run of it trains."""
    deadline = time.monotonic() + 200
    while not list(sweep.glob("seed=1_0/checkpoints/last.ckpt")):
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
        # a suite that a shell plays in the background ignores interrupts, and so would what it starts
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        below = _begun(Path("sweep"), command).children(recursive=True)
        command.send_signal(number)
        printed, _ = command.communicate(timeout=120)
    except BaseException:  # nothing that failed goes on for thousands of iterations
        os.killpg(command.pid, signal.SIGKILL)
        raise
    assert psutil.wait_procs(below, timeout=60)[1] == []
    assert reports.read("sweep/seed=1_0/summary.json")["status"] == "stopped"
    if number == signal.SIGINT:
        assert command.returncode == 130 and "interrupted; continue with: " in printed
        assert "sweep: 0 of 2 runs completed" in printed


@pytest.mark.slow
@pytest.mark.sweep
def test_a_sweep_killed_at_random_and_continued_gives_the_same_report(
    in_empty_folder: Path, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """But for paths, commands and durations; a run that has ended is left alone, one that had not begun begins."""
    options = shlex.split(f"{SMALL} model=hf model.name={tiny_model_folder} seed=1,2,3,4")
    main_train(["-m", *options, "hydra.sweep.dir=whole"])
    command = subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), "-m", *options, "hydra.sweep.dir=cut"],
        stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
    )  # fmt: skip
    deadline = time.monotonic() + 200
    while not Path("cut/seed=2_1/checkpoints").is_dir():
        assert command.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(random.random())  # wherever it is then
    command.kill()
    command.wait()
    ended = {path: path.stat().st_mtime_ns for path in Path("cut/seed=1_0").rglob("*") if path.is_file()}
    capsys.readouterr()
    main_train(["-m", *options, "resume=cut"])
    assert "sweep: 4 of 4 runs completed" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in ended} == ended
    assert all(Path(f"cut/seed={n + 1}_{n}/.hydra/config.yaml").is_file() for n in range(4))
    main(["report", "whole", "--out", "of_whole"]), main(["report", "cut", "--out", "of_cut"])
    found = sorted(path.relative_to("of_whole") for path in Path("of_whole").rglob("*") if path.is_file())
    assert {path.suffix for path in found} >= {".csv", ".md", ".html"}
    for path in found:
        assert _told("of_whole", path) == _told("of_cut", path), path


def _told(report: str, path: Path) -> list[str]:
    """The lines of a file but for folders, commands, and what took how long."""
    text = (Path(report) / path).read_text().replace("whole", "SWEEP").replace("cut", "SWEEP")
    text = re.sub(r'"?(lit-agentrl|python[\d.]*) [^`"<|\n]*"?', "COMMAND", text)
    return [re.sub(r"\d+(\.\d+)? (s|min|h)\b", "TIME", line) for line in text.splitlines()]


def test_only_the_sweep_that_was_begun_goes_on(tmp_path: Path) -> None:
    entry: Entry = {
        "run": 1, "folder": "", "overrides": ["algo=grpo", "seed=2"], "status": "begun", "monitored": None,
        "error": None,
    }  # fmt: skip
    append(tmp_path, entry)
    given = [
        f"resume={tmp_path}",
        "algo=grpo",
        "trust_run=true",
        f"hydra.sweep.dir={os.path.relpath(tmp_path)}",
    ]
    asked = resumption.split_resume_options(given)
    assert (
        asked == (tmp_path, True, ["algo=grpo"])
        and resumption.split_resume_options(["seed=1"]).folder is None
    )
    plan = sweepers.Plan([], [["seed=1", "algo=grpo"], ["seed=2", "algo=grpo"]], True, False, 1, frozenset())
    resumption.require_same(tmp_path, plan, plan.jobs)
    with pytest.raises(
        UserError, match="run 1 was algo=grpo seed=2, and would be seed=3 algo=grpo; give the"
    ):
        resumption.require_same(tmp_path, plan, [plan.jobs[0], ["seed=3", "algo=grpo"]])
    with pytest.raises(UserError, match="run 1 was .*, and is not among the runs"):
        resumption.require_same(tmp_path, plan, plan.jobs[:1])
    with pytest.raises(UserError, match="resume it with hydra.sweeper.storage"):
        resumption.require_same(tmp_path, plan._replace(is_complete=False), plan.jobs)
    with pytest.raises(UserError, match="one sweep is resumed, in its folder"):
        resumption.split_resume_options([*given[:1], "hydra.sweep.dir=other"])
    with pytest.raises(UserError, match="is not a sweep: there is no runs.jsonl"):
        resumption.split_resume_options([f"resume={tmp_path.parent}"])


def test_output_that_cannot_be_redirected_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = psutil.Process().num_fds()
    with pytest.raises(FileNotFoundError), runner._redirect_output(tmp_path / "none" / "printed.txt"):
        pass
    assert psutil.Process().num_fds() == before
