"""Run folders of strangers: found, read as data, told where they are damaged, and grouped into cells."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml

from lit_agentrl.report import sweep
from lit_agentrl.report.page.cells import GameSplit, find_unnamed_differences, group_runs
from lit_agentrl.report.page.results import build_report
from lit_agentrl.report.page.runs import flatten_settings, load
from tests.report.conftest import MakeRun, edit


def test_runs_are_found_below_a_folder_and_once(make_run: MakeRun, tmp_path: Path) -> None:
    first = make_run("sweep/0", 1)
    make_run("sweep/1", 2)
    (first / "inner").mkdir()
    (first / "inner" / "summary.json").write_text("{}")  # part of a run
    os.symlink(tmp_path, tmp_path / "sweep" / "loop")
    runs, damaged = load([tmp_path / "sweep", first])
    assert [run.name for run in runs] == ["sweep/0", "sweep/1"] and not damaged
    assert [run.seed for run in runs] == [1, 2] and runs[0].command == "train seed=1"
    with pytest.raises(ValueError, match="nowhere is not a folder"):
        load([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty contains no run"):
        load([tmp_path / "empty"])


def test_cells_are_runs_that_differ_in_their_seed_alone(make_run: MakeRun, tmp_path: Path) -> None:
    for number, (lr, seed) in enumerate([(1, 1), (2, 1), (1, 2)]):
        make_run(f"{number}", seed, lr=lr)
    cells = group_runs(load([tmp_path])[0])
    assert [(cell.name, cell.label, [run.seed for run in cell.runs]) for cell in cells] == [
        ("lr=1", "lr=1", [1, 2]), ("lr=2", "lr=2", [1]),
    ]  # fmt: skip
    make_run("other", 1, env="sokoban", lr=2)
    runs = load([tmp_path])[0]
    assert len(group_runs(runs)) == 3 and len(group_runs(runs, ignored=("env",))) == 2


def test_equal_seeds_of_a_cell_count_once(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("a", 0, None, status="failed")
    for name, seed in (("b", 0), ("c", 0), ("d", 1)):
        make_run(name, seed)
    make_run("e", 0, env="sokoban")  # another cell
    report = build_report(*load([tmp_path]))
    assert [[run.name[-1] for run in cell.runs] for cell in report.cells] == [["b", "d"], ["e"]]
    told = [line for line in report.warnings if "is repeated" in line]
    assert len(told) == 2 and "/a is left out" in told[1]
    assert told[0].startswith("seed 0 is repeated in bandit: ")
    assert re.search("/c is left out, since it has all settings of .*/b, and equal seeds are not", told[0])


def test_what_a_choice_brings_with_it_is_told(make_run: MakeRun, tmp_path: Path) -> None:
    """Two algorithms, one of which sets another filter, more steps and a rate that both name."""
    brought = {"filter": {"_target_": "lit_agentrl.rl.policy.filters.keep_all"}, "update": {"minibatches": 4}}
    own = {
        "filter": {"_target_": "lit_agentrl.rl.policy.filters.top_std", "ratio": 1.0},
        "update": {"minibatches": 1},
    }
    for name, lr, others in (("grpo", 1, own), ("gspo", 2, brought)):
        hydra = make_run(name) / ".hydra"
        config = {"seed": 0, "algo": {"name": name, "clip": lr}, "optim": {"lr": lr}, **others}
        (hydra / "config.yaml").write_text(yaml.safe_dump(config))
        (hydra / "overrides.yaml").write_text(yaml.safe_dump([f"algo={name}", f"optim.lr={lr}"]))
    runs, damaged = load([tmp_path])
    assert find_unnamed_differences(group_runs(runs)) == {
        "filter._target_": (
            '"lit_agentrl.rl.policy.filters.top_std"',
            '"lit_agentrl.rl.policy.filters.keep_all"',
        ),
        "update.minibatches": ("1", "4"),
    }
    (line,) = [line for line in build_report(runs, damaged).warnings if "that no override names" in line]
    assert "filter (top_std, keep_all), update.minibatches (1, 4); set them alike" in line


def test_what_was_lost_counts_and_what_may_go_on_does_not(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("0", 1)
    make_run("1", 2, None, status="failed", error="weights are not finite")
    make_run("2", 3, None, status="stopped", error="interrupted")
    make_run("3", 4, (2, 6, 1), status="collapsed")
    (cell,) = group_runs(load([tmp_path])[0])
    name = GameSplit("bandit", "test")
    assert cell.count_statuses() == {"completed": 1, "failed": 1, "unfinished": 1, "collapsed": 1}
    assert [(s.success, s.episodes) for s in cell.list_scores(name, "last")] == [
        (0.5, 8),
        (0.125, 0),
        (0.125, 8),
    ]
    assert cell.list_normalised(name, "last") == [pytest.approx(3 / 7), 0.0, 0.0]


def test_runs_that_left_no_folder_are_those_of_the_sweep(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("sweep/0", 1, lr=1)
    words = {"0": ["env=bandit", "lr=1", "seed=1"], "1": ["env=bandit", "lr=1", "seed=2"]}
    for number, (folder, overrides) in enumerate(words.items()):
        sweep.append(tmp_path / "sweep", {
            "run": number, "folder": f"/moved/sweep/{folder}", "overrides": overrides,
            "status": "failed" if number else "begun", "monitored": None, "error": "no room\x1b[2J" if number else None,
        })  # fmt: skip
    (cell,) = group_runs(load([tmp_path])[0])
    assert cell.count_statuses() == {"completed": 1, "failed": 1}
    assert cell.runs[1].error == "no room\\x1b[2J"


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("summary.json", "{", "is not JSON"),
        ("summary.json", '{"version": 1}', "summary lacks status"),
        ("metrics.csv", "iteration,val/success\n0,much\n", "could not convert string to float"),
        ("metrics.csv", "iteration,val/success\n0,1,2,3\n", "list"),
        (
            ".hydra/config.yaml",
            "a: !!python/object/apply:os.system [touch boom]\n",
            "could not determine a constructor",
        ),
        (".hydra/config.yaml", "[1, 2]", "it is not a config"),
        ("outcomes.json", '{"version": 1, "scores": [{"solved": [3]}]}', "solved must be a list"),
    ],
)
def test_a_damaged_file_is_one_line_and_executes_nothing(
    make_run: MakeRun, tmp_path: Path, file: str, text: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (make_run("0") / file).write_text(text)
    runs, (line,) = load([tmp_path])
    assert len(runs) == 1 and told in line and file in line and "\n" not in line
    assert not (tmp_path / "boom").exists()


def test_what_is_no_file_is_not_waited_for(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run("0")
    (folder / "metrics.csv").unlink()
    os.mkfifo(folder / "metrics.csv")
    assert "it is not a file" in load([tmp_path])[1][0]
    laughs = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
        f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}]\n"
        for a, b in zip("abcdef", "bcdefg", strict=True)
    )
    (folder / ".hydra" / "config.yaml").write_text(laughs)
    assert "more than 20000 values" in load([tmp_path])[1][0]


def test_the_seed_and_what_only_shows_a_run_tell_no_cells_apart() -> None:
    config = {"seed": 1, "callbacks": {"progress": {"every": 1}, "best": {"mode": "max"}}, "logger": {"a": 1}}
    assert flatten_settings(config) == {"callbacks.best.mode": '"max"'}


def test_a_run_of_an_older_version_has_no_outcomes(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run("0")
    (folder / "outcomes.json").unlink()
    edit(folder / "summary.json", status="stopped")
    runs, damaged = load([folder])
    assert not damaged and runs[0].solved == {} and runs[0].name == "0" and runs[0].status == "stopped"
