"""What a run leaves behind."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lit_agentrl.envs.levels import Levels
from lit_agentrl.runs import record
from lit_agentrl.runs.record import (
    RunRecord,
    Totals,
    find_git_revision,
    flatten_hyperparameters,
    get_peak_memory_bytes,
)
from lit_agentrl.runs.training import open_record


def test_hyperparameters_name_parts_by_their_function_and_leave_out_what_does_not_affect_learning() -> None:
    config = {
        "seed": 1,
        "algo": {
            "_target_": "x.Algorithm", "name": "grpo",
            "clip": {"_target_": "a.symmetric", "_partial_": True, "epsilon": 0.2},
        },
        "filter": {"_target_": "f.top_std", "ratio": 0.5},
        "val": {"envs": None, "episodes": 8},
        "callbacks": {"last": {"every": 1}},
        "run_dir": "somewhere",
    }  # fmt: skip
    assert flatten_hyperparameters(config) == {
        "seed": 1, "algo": "grpo", "algo.clip": "symmetric", "algo.clip.epsilon": 0.2,
        "filter": "top_std", "filter.ratio": 0.5, "val.episodes": 8,
    }  # fmt: skip


def test_facts_of_this_process() -> None:
    assert 10_000_000 < get_peak_memory_bytes() < 10**12
    revision = find_git_revision()
    assert revision is None or len(revision) == 40


def test_a_repository_around_an_installed_package_is_not_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    author = ["-c", "user.name=they", "-c", "user.email=they@example.com"]
    for command in (["init", "-q"], [*author, "commit", "-q", "--allow-empty", "-m", "theirs"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    (tmp_path / "record.py").touch()
    monkeypatch.setattr(record, "__file__", str(tmp_path / "record.py"))
    assert find_git_revision() is None


def test_levels_that_were_looked_for_and_not_found_are_kept_as_such(tmp_path: Path) -> None:
    class Games:
        def get_levels(self, split: str) -> dict[str, Levels]:
            return {"safe": Levels(episodes=2000), "new": Levels(), "maze": Levels(0.1, 0.0, 1.0, 1.0, 2000)}

    tracker = RunRecord(tmp_path, Games(), Totals(), command="train", seed=0, planned=1)
    kept = {game["name"]: game.get("levels_episodes") for game in tracker.finish("stopped")["games"]}
    assert kept == {"safe": 2000, "new": None, "maze": None}


def test_the_summary_has_every_warning_and_no_information(tmp_path: Path) -> None:
    games = SimpleNamespace(get_levels=lambda split: {})
    run: Any = SimpleNamespace(
        folder=tmp_path, held_out=None, recorded=None, games=games, cfg=SimpleNamespace(seed=0),
        trainer=SimpleNamespace(callbacks=[Totals()], max_epochs=1), rollouts=SimpleNamespace(warnings=["cut"]),
    )  # fmt: skip
    job: Any = SimpleNamespace(command="train")
    tracker = open_record(
        run, job, ["data: read 28 rows as texts: columns text", "data: 2 episodes were cut off"]
    )
    assert tracker.finish("completed")["warnings"] == ["data: 2 episodes were cut off", "cut"]
