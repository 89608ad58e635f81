"""The script that plays ScienceWorld's own solutions: order, continuation, and what it records."""

from __future__ import annotations

from pathlib import Path

import pytest

from lit_agentrl.envs.adapters.scienceworld import TASKS
from scripts import gold_play
from tests.conftest import ROOT
from tests.envs.java import needs_java

RECORDED = ROOT / "docs" / "findings" / "gold_scienceworld.csv"


def test_a_part_of_the_variations_is_spread_over_all_tasks() -> None:
    assert list(gold_play.deal({"boil": (4, 5, 6), "melt": (7,)})) == [
        ("boil", 4), ("melt", 7), ("boil", 5), ("boil", 6),
    ]  # fmt: skip


def test_the_table_counts_what_was_played(tmp_path: Path) -> None:
    path = tmp_path / "gold.csv"
    for number, actions, problem in (("4", "10", ""), ("5", "12", ""), ("6", "3", 'no solution, "x"')):
        row = {"task": "boil", "variation": number, "score": "1", "actions": actions, "problem": problem}
        gold_play.add(path, row)
    rows = gold_play.read(path)
    assert rows[2]["problem"] == 'no solution, "x"'
    assert gold_play.summarise(rows, {"boil": (4, 5, 6, 7), "melt": (1,)}).splitlines()[2:] == [
        "| boil | 4 | 2 of 3 | 3, 12 |",
        "| melt | 1 | 0 of 0 | – |",
    ]


def test_what_is_recorded_has_each_variation_once_and_names_each_failure() -> None:
    rows = gold_play.read(RECORDED)
    assert rows and {row["task"] for row in rows} <= set(TASKS)
    assert len({(row["task"], row["variation"]) for row in rows}) == len(rows)
    assert all((float(row["score"]) == 1) == (not row["problem"]) for row in rows)


@needs_java
@pytest.mark.slow
def test_a_call_goes_on_with_what_the_file_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("scienceworld")
    path, variations = tmp_path / "gold.csv", gold_play.list_variations(["lifespan-longest-lived"])
    (numbers,) = variations.values()
    monkeypatch.setattr(gold_play, "list_variations", lambda tasks: {tasks[0]: numbers[:3]})
    call = ["--out", str(path), "--tasks", "lifespan-longest-lived"]
    gold_play.main([*call, "--minutes", "0"])
    assert gold_play.read(path) == []
    gold_play.add(path, gold_play.play("lifespan-longest-lived", numbers[1]))
    gold_play.main(call)
    rows = gold_play.read(path)
    assert [int(row["variation"]) for row in rows] == [numbers[1], numbers[0], numbers[2]]
    assert all(row["score"] == "1" and row["problem"] == "" for row in rows)
    assert "| lifespan-longest-lived | 3 | 3 of 3 | " in capsys.readouterr().out


@needs_java
@pytest.mark.long
@pytest.mark.parametrize("task", TASKS)
def test_the_solution_of_every_test_variation_scores_one(task: str) -> None:
    pytest.importorskip("scienceworld")
    for number in gold_play.list_variations([task])[task]:
        row = gold_play.play(task, number)
        assert row["score"] == "1" and not row["problem"], row
