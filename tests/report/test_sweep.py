"""Lines about the runs of a sweep, and the table that is made of them."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from lit_agentrl.report.sweep import FILE, Entry, append, build_table, find_best, list_latest, read


def entry(
    run: int, overrides: str, status: str = "completed", value: float | None = None, mode: str = "max"
) -> Entry:
    monitored = {"name": "val/success", "mode": mode, "value": value, "iteration": 3}
    return {
        "run": run, "folder": f"sweep/{run}", "overrides": overrides.split(), "status": status,
        "monitored": None if value is None else monitored, "error": None,
    }  # type: ignore[typeddict-item]  # fmt: skip


def test_the_last_line_of_each_run_counts_and_a_torn_one_does_not(tmp_path: Path) -> None:
    lines = [entry(1, "b", "begun"), entry(0, "a", "begun"), entry(1, "b", value=0.5)]
    for line in lines:
        append(tmp_path, line)
    with (tmp_path / FILE).open("a") as file:
        file.write('{"run": 0, "fol')
    assert read(tmp_path) == lines
    assert list_latest(read(tmp_path)) == [lines[1], lines[2]]


def test_the_best_run() -> None:
    runs = [
        entry(0, "a", value=0.5),
        entry(1, "b", "failed"),
        entry(2, "c", value=0.7),
        entry(3, "d", value=0.7),
    ]
    assert find_best(runs) is runs[2]
    assert find_best([entry(0, "a", value=2.0, mode="min"), entry(1, "b", value=1.0, mode="min")])["run"] == 1  # type: ignore[index]
    assert find_best([entry(0, "a", value=2.0, mode="min"), entry(1, "b", value=1.0)]) is None
    assert find_best([entry(0, "a", "failed")]) is None


def test_the_table_says_what_differs_and_what_never_began() -> None:
    runs = [
        entry(0, "env=bandit optim.lr=0.00012520653814999459 seed=1", value=0.51239),
        entry(1, "env=bandit val.envs=[pocket]", "begun"),  # which is no markup
    ]
    planned = {0: ["env=bandit", "seed=1"], 1: ["env=bandit", "seed=2"], 2: ["env=bandit", "seed=3"]}
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(build_table(runs, planned))
    text = console.export_text()
    assert (
        "1 of 3 runs completed" in text
        and "env=bandit" not in text
        and max(map(len, text.splitlines())) <= 80
    )
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    assert rows[-2:] == [
        ["1", "val.envs=[pocket]", "killed", "–", "–"],
        ["2", "seed=3", "not started", "–", "–"],
    ]
    assert "0.5124" in text and "val/success" in text
