"""What is known of a sweep before its first run, and what sweepers and launchers are refused."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from lit_agentrl.config.composition import compose_job, format_search_path
from lit_agentrl.config.errors import UserError
from lit_agentrl.paths import CONFIG_DIR
from lit_agentrl.runs import process
from lit_agentrl.runs.sweeps import sweepers
from lit_agentrl.runs.sweeps.sweepers import plan_sweep, require_one_value
from tests.conftest import thinned

SWEEP = (pytest.mark.slow, pytest.mark.sweep)
OPTUNA = "hydra/sweeper=optuna"


def plan(command: str) -> sweepers.Plan:
    return plan_sweep(shlex.split(command))


def test_the_sweeper_that_lists_values_has_runs_in_hydras_order(tmp_path: Path) -> None:
    file = tmp_path / "experiment" / "mine.yaml"
    file.parent.mkdir()
    lines = ["# @package _global_", "hydra:", "  sweeper:", "    params:", "      rollout.members: 4,8"]
    file.write_text("\n".join([*lines, "      seed: 5,6,7", ""]))
    found = plan_sweep(
        shlex.split("experiment=mine algo=grpo,rloo seed=range(1,3)"), format_search_path([tmp_path])
    )
    told = "rollout.members=${rollout.members},algo=${hydra.runtime.choices.algo},seed=${seed}"
    named = f"hydra.sweep.subdir='{told}_${{hydra.job.num}}'"
    assert found.jobs == [  # what is typed wins over the file
        [f"rollout.members={members}", "experiment=mine", f"algo={algo}", f"seed={seed}", named]
        for members in (4, 8)
        for algo in ("grpo", "rloo")
        for seed in (1, 2)
    ]
    assert found.is_complete and not found.uses_processes and found.num_parallel == 1
    assert found.swept == {"rollout.members", "algo", "seed"}


@pytest.mark.slow
def test_a_search_is_checked_at_its_ends() -> None:
    found = plan(
        f"{OPTUNA} optim.lr=tag(log,interval(1e-5,1e-3)) update.epochs=range(1,4) algo=choice(grpo,rloo,ppo) seed=7"
    )
    told = "optim.lr=${optim.lr},update.epochs=${update.epochs},algo=${hydra.runtime.choices.algo}"
    own = [
        f"hydra.sweep.subdir='{told}_${{hydra.job.num}}'",
        "hydra.sweeper.max_failure_rate=1.0",
        "hydra.sweeper.direction=maximize",
        "hydra.sweeper.sampler.seed=7",
    ]
    ends = [
        ("1e-05", 1, "grpo"),
        ("0.001", 1, "grpo"),
        ("1e-05", 4, "grpo"),
        ("1e-05", 1, "rloo"),
        ("1e-05", 1, "ppo"),
    ]
    assert found.jobs == [
        [OPTUNA, f"optim.lr={lr}", f"update.epochs={epochs}", f"algo={algo}", "seed=7", *own]
        for lr, epochs, algo in ends
    ]
    assert not found.is_complete and found.overrides[-4:] == own
    assert "hydra.sweeper.direction=minimize" in plan(f"{OPTUNA} seed=1,2 callbacks.best.mode=min").overrides


@pytest.mark.slow
@pytest.mark.sweep
def test_processes_at_once_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "count_cores", lambda: 8)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    joblib, local = "hydra/launcher=joblib", "hydra/launcher=submitit_local hydra.launcher.timeout_min=5"
    assert plan(f"{joblib} seed=1,2").num_parallel == 2
    assert plan(f"{joblib} seed=range(0,20)").num_parallel == 8
    assert plan(f"{joblib} seed=range(0,20) hydra.launcher.n_jobs=-3").num_parallel == 6
    assert plan(f"{joblib} {OPTUNA} seed=range(0,20) hydra.sweeper.n_jobs=3").num_parallel == 3
    assert plan(f"{local} seed=range(0,20)").overrides[-1] == "hydra.sweeper.max_batch_size=8"
    limited = plan(f"{local} seed=range(0,20) hydra.sweeper.max_batch_size=4")
    assert (
        limited.num_parallel == 4
        and limited.uses_processes
        and "hydra.launcher.timeout_min=525600" not in limited.overrides
    )
    with process.share_cores(4):
        assert process.os.environ["OMP_NUM_THREADS"] == process.os.environ["MKL_NUM_THREADS"] == "2"
    assert "OMP_NUM_THREADS" not in process.os.environ
    monkeypatch.setenv("MKL_NUM_THREADS", "5")
    with process.share_cores(4):
        assert "OMP_NUM_THREADS" not in process.os.environ


@pytest.mark.parametrize(
    ("command", "told"),
    thinned([
        ("optim.lr=interval(1e-5,1e-3)", r"optim.lr=interval\(1e-5,1e-3\): .* or search with hydra/sweeper=optuna"),
        (f"{OPTUNA} seed=1", "nothing to search; give an option a range"),
        (f"{OPTUNA} optim.lr=interval(1e-3,1e-5)", "is empty; write the lower end first"),
        (f"{OPTUNA} algo=glob(g*)", r"algo=glob\(g\*\): Optuna searches a choice"),
        (f"{OPTUNA} seed=1,2 hydra.sweeper.n_trials=0", "hydra.sweeper.n_trials=0 must be"),
        (f"{OPTUNA} seed=1,2 hydra.sweeper.n_jobs=0", "hydra.sweeper.n_jobs=0 must be"),
        (f"{OPTUNA} seed=1,2 hydra.sweeper.storage=sqlite:///a.db", "a.db: a database needs SQLAlchemy 1.4"),
        (f"{OPTUNA} seed=1,2 hydra.sweeper.n_trial=3", "did you mean hydra.sweeper.n_trials"),
        (f"{OPTUNA} seed=1,2 hydra.sweeper.max_failure_rate=0.5", "max_failure_rate=0.5 has no effect"),
        (f"{OPTUNA} seed=1,2 hydra.sweeper.direction=minimize", "direction=.*minimize: .*mode=max is to maximize"),
        (f"{OPTUNA} seed=1,2 hydra.sweeper.sampler.n_startup_trials=few", "n_startup_trials=few: .*converted to Int"),
        (f"{OPTUNA} seed=1,2 hydra/sweeper/sampler=tp", "did you mean tpe"),
        ("hydra/sweeper=optun seed=1,2", "did you mean optuna"),
        ("hydra/launcher=jobli seed=1,2", "did you mean joblib"),
        ("hydra/launcher=joblib hydra.launcher.n_jobs=0 seed=1,2", "hydra.launcher.n_jobs=0 must be"),
        ("seed=1,2 hydra.run.dir=x", "hydra.run.dir=x has no effect with -m"),
    ]),
)  # fmt: skip
def test_refused(command: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        plan(command)


def test_a_plugin_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweepers, "find_spec", lambda name: None)
    with pytest.raises(
        UserError, match=r"hydra/launcher=joblib needs .*; pip install 'lit-agentrl\[sweep\]'"
    ):
        plan("hydra/launcher=joblib seed=1,2")


@pytest.mark.slow
def test_a_search_needs_values_of_one_metric() -> None:
    jobs = [[], ["~callbacks.best"], ["callbacks.best.monitor=val/return"]]
    with_best, without, other = (compose_job("train", job) for job in jobs)
    require_one_value([with_best, with_best])
    with pytest.raises(UserError, match="needs the value of each run"):
        require_one_value([with_best, without])
    with pytest.raises(UserError, match="must be the same in all runs"):
        require_one_value([with_best, other])


GRIDS, FULL = (
    sorted(file.stem for file in (CONFIG_DIR / "experiment" / folder).glob("[!_]*.yaml"))
    for folder in ("grid", "grid_full")
)


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == "filter_ratio" else SWEEP) for n in GRIDS])
def test_a_grid_is_one_command(name: str) -> None:
    """Its runs compose, five of a cell, which differ in the seed alone; the full-size one is made of the small."""
    assert GRIDS == FULL
    found = plan(f"experiment=grid_full/{name}")
    assert found.is_complete and len(set(map(tuple, found.jobs))) == len(found.jobs) >= 10
    assert found.jobs[0][-1].startswith("hydra.sweep.subdir=") and "seed" in found.swept
    of_seed = [[text for text in job if not text.startswith("seed=")] for job in found.jobs]
    assert all(of_seed.count(job) == 5 for job in of_seed)
    cfg = compose_job("train", found.jobs[-1])
    assert (cfg.seed, cfg.model.name, cfg.rollout.max_reply_tokens) == (4, "Qwen/Qwen2.5-0.5B-Instruct", 400)
