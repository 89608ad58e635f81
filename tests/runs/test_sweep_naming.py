"""Folders of a sweep are called by what differs between its runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import open_dict

from lit_agentrl.config.composition import compose_job
from lit_agentrl.config.overrides import parse
from lit_agentrl.report.sweep import Entry, append
from lit_agentrl.runs.sweeps.naming import name_folders
from lit_agentrl.runs.sweeps.resumption import keep_folders
from lit_agentrl.runs.sweeps.sweepers import plan_sweep

GROUPS = ("algo", "algo/clip", "reward")


def test_a_folder_says_which_run_it_is() -> None:
    (name,) = name_folders(
        parse(["seed=1,2", "algo=grpo,rloo", "algo/clip=none,dual", "val.every=3"]), GROUPS
    )
    cfg = compose_job("train", ["algo=grpo", "algo/clip=dual", "seed=2", "val.every=3", name])
    with open_dict(cfg):
        cfg.hydra.job.num = 7
    assert cfg.hydra.sweep.subdir == "algo=grpo,algo.clip=dual,seed=2_7"


@pytest.mark.parametrize(
    ("typed", "called"),
    [
        ("seed=range(1,3)", "seed"),
        ("seed=choice(1,2)", "seed"),
        ("optim.lr=interval(1e-5,1e-3)", "optim.lr"),
        ("reward=[format],[length]", None),
        ("model.name=a/b,c", None),
        (f"rollout.members=2,{'8' * 41}", None),
        ("hydra.sweep.subdir=mine", None),
        ("seed=1", None),
    ],
)
def test_what_differs_and_can_be_shown(typed: str, called: str | None) -> None:
    expected = [f"hydra.sweep.subdir='{called}=${{{called}}}_${{hydra.job.num}}'"] if called else []
    assert name_folders(parse([typed]), GROUPS) == expected


def test_a_long_name_ends_with_what_fits() -> None:
    keys = [f"option_{number}" for number in range(20)]
    (name,) = name_folders(parse([f"{key}=1,2" for key in keys]), ())
    assert "option_9=" in name and "option_10=" not in name


def test_a_sweep_of_an_earlier_version_keeps_its_folders(tmp_path: Path) -> None:
    plan = plan_sweep(["algo=grpo,rloo", "seed=1,2"])
    entry: Entry = {
        "run": 0, "folder": "/elsewhere/0_algo=grpo,seed=1", "overrides": ["algo=grpo", "seed=1"], "status": "begun",
        "monitored": None, "error": None,
    }  # fmt: skip
    append(tmp_path, {**entry, "folder": "/elsewhere/algo=grpo,seed=1_0"})
    assert keep_folders(tmp_path, plan) == plan
    append(tmp_path, entry)
    kept = keep_folders(tmp_path, plan)
    told = "hydra.sweep.subdir='${hydra.job.num}_algo=${hydra.runtime.choices.algo},seed=${seed}'"
    assert kept.overrides[-1] == told and all(job[-1] == told for job in kept.jobs) and len(kept.jobs) == 4
