"""The page: every run counted, text of strangers is text, figures named, and the same again from the same runs."""

from __future__ import annotations

import csv
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lit_agentrl.__main__ import main
from lit_agentrl.report.page import figures
from lit_agentrl.report.page import files as page
from lit_agentrl.report.page.results import build_report
from lit_agentrl.report.page.runs import load
from tests.report.conftest import MakeRun, edit

EVIL = "<script>alert(1)</script>|`=cmd()`"


class Tags(HTMLParser):
    """Names and attributes of what a page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.fixture
def grid(make_run: MakeRun, tmp_path: Path) -> Path:
    for number, (lr, seed, solved) in enumerate(
        [(1, 1, 4), (1, 2, 5), (1, 3, 3), (2, 1, 6), (2, 2, 7), (2, 3, 6)]
    ):
        make_run(f"sweep/{number}", seed, (2, 6, solved), lr=lr)
    return tmp_path / "sweep"


@pytest.mark.slow
def test_a_sweep_becomes_a_page_words_and_tables(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["report", "sweep"])
    told = capsys.readouterr()
    better = (
        "On bandit (test, last weights) lr=2 is better than lr=1: success 0.792 against 0.500, a difference of 0.292 "
        "with the 95 % interval [0.112, 0.471] over 3 pairs of seeds; too few runs for a permutation test to be "
        "passed (p 0.25). "
        "Chance is 0.125, the oracle 1.000."
    )
    assert told.out == f"6 runs in 2 cells: 6 completed.\n{better}\nwritten to outputs/report/index.html\n"
    assert re.search(r"intervals of the interquartile mean cover .*: \d+% for lr=1 on bandit", told.err)
    text = (tmp_path / "outputs" / "report" / "index.html").read_text()
    tags = Tags(text)
    assert "<h1>lr=1 against lr=2 on bandit</h1>" in text and f'<p class="result">{better}</p>' in text
    saved = [a for tag, a in tags.found if tag == "a" and "download" in a]
    assert [a["download"] for a in saved][:2] == ["curve0.svg", "curve0.png"] and len(saved) == 8
    assert all(str(a["href"]).startswith("data:image/") for a in saved)
    names = [tag for tag, _ in tags.found]
    assert "script" not in names and names.count("svg") == 4  # curves, stages, differences, signals
    assert not [
        a
        for _, a in tags.found
        for key, value in a.items()
        if key in ("src", "onload") or "http" in (value or "")[:4] and key == "href"
    ]
    ids = [a["id"] for _, a in tags.found if a.get("id")]
    assert len(ids) == len(set(ids))
    targets = {a["href"] for tag, a in tags.found if tag == "a"}
    assert {each[1:] for each in targets if each and each[0] == "#"} <= set(ids)  # type: ignore[misc]
    assert "../../sweep/0/" in targets and "#01fe01" not in text and "var(--series-1)" in text
    assert "train seed=1" in text and "drawn by <code>lit-agentrl report sweep</code>" in text
    with open("outputs/report/comparisons.csv") as file:
        (row,) = csv.DictReader(file)
    assert (row["a"], row["b"], row["rests_on"]) == ("lr=2", "lr=1", "3 pairs of seeds")
    assert float(row["difference"]) == pytest.approx(7 / 24) and float(row["p"]) == 0.25
    words = Path("outputs/report/report.md").read_text()
    assert (
        words.startswith("# lr=1 against lr=2 on bandit\n\n**On bandit")
        and "| lr=1 | bandit, test |" in words
        and "0.500 [0.189, 0.811]" in words
    )
    assert [
        len(Path(f"outputs/report/{name}.csv").read_text().splitlines()) for name in ("runs", "cells")
    ] == [7, 3]


@pytest.mark.slow
def test_costs_and_learned_scores_are_drawn_where_they_were_measured(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run("run")
    (folder / "metrics.csv").write_text(
        "iteration,val/success,rollout/cost,reward/model_gap\n0,0.1,,\n1,0.2,1.5,-0.2\n2,0.2,0.5,-0.1\n"
    )
    monkeypatch.chdir(folder.parent)
    main(["report", "run"])
    text = Path("outputs/report/index.html").read_text()
    assert "Signals of training: predicted success − success, cost per episode" in text
    assert "cost multiplier" not in text and "gradient norm" not in text


@pytest.mark.slow
@pytest.mark.sweep
def test_the_same_runs_elsewhere_give_the_same_report(grid: Path, tmp_path: Path) -> None:
    """As of a sweep that was killed and continued: nothing tells when or how often it was begun."""
    main(["report", str(grid), "--out", str(tmp_path / "one" / "r")])
    elsewhere = tmp_path / "two"
    elsewhere.mkdir()
    shutil.move(grid, elsewhere / "sweep")
    main(["report", str(elsewhere / "sweep"), "--out", str(elsewhere / "r")])
    for name in page.FILES:
        one, two = (
            [word for word in text.split() if not re.search("one/r|two/r|sweep", word)]
            for text in ((tmp_path / at / "r" / name).read_text() for at in ("one", "two"))
        )
        assert one == two, name


@pytest.mark.slow
def test_text_of_strangers_is_text(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("runs/<b>", 1, lr=EVIL, error=EVIL, env=EVIL)
    make_run("runs/1", 1, lr="=1+1", env=EVIL)
    main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "r")])
    names = [tag for tag, _ in Tags((tmp_path / "r" / "index.html").read_text()).found]
    assert "script" not in names and "b" not in names
    words = (tmp_path / "r" / "report.md").read_text()
    assert "<script>" not in words and r"\|\`=cmd\(\)\`" in words
    with open(tmp_path / "r" / "runs.csv") as file:
        assert not [cell for row in csv.reader(file) for cell in row if cell.startswith("=")]


@pytest.mark.slow
def test_what_is_damaged_failed_or_unfinished_is_counted(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run("runs/0", 1)
    make_run("runs/1", 2, None, status="failed", error="no room")
    make_run("runs/2", 3, None, status="stopped")
    (make_run("runs/3", 4) / "summary.json").write_text("{")
    main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "r")])
    told = capsys.readouterr()
    assert "4 runs in 1 cell: 1 completed, 1 failed, 2 unfinished; 1 damaged file." in told.out
    assert (
        "1 of 2 runs on bandit failed before they were measured, and count with the success of chance"
        in told.err
    )
    assert "2 of 4 runs are unfinished, and not in the means of best and last" in told.err
    assert "runs/3/summary.json is not JSON" in told.err or "runs/3/summary.json:" in told.err
    text = (tmp_path / "r" / "index.html").read_text()
    assert "no room" in text and "1 damaged file" in text


@pytest.mark.slow
def test_two_runs_are_compared_by_their_instances(make_run: MakeRun, tmp_path: Path) -> None:
    folders = [
        str(make_run(f"{number}", 1, (2, 6, solved), lr=number)) for number, solved in enumerate((2, 8))
    ]
    main(["report", *folders, "--out", str(tmp_path / "r"), "--stage", "last"])
    with open(tmp_path / "r" / "comparisons.csv") as file:
        (row,) = csv.DictReader(file)
    assert row["rests_on"] == "8 tasks of one run each" and float(row["p"]) == pytest.approx(2 / 64)
    assert "its interval is over episodes, not over seeds" in (tmp_path / "r" / "index.html").read_text()


@pytest.mark.slow
def test_cells_on_several_games_are_taken_together(make_run: MakeRun, tmp_path: Path) -> None:
    for number, (env, lr, seed) in enumerate(
        (e, lr, s) for e in ("bandit", "sokoban") for lr in (1, 2) for s in (1, 2)
    ):
        make_run(f"runs/{number}", seed, (2, 6, 3 + lr), lr=lr, env=env)
    main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "r")])
    words = (tmp_path / "r" / "report.md").read_text()
    assert "| lr=1 | 2 | 0.429 |" in words and "| lr=2 | 2 | 0.571 |" in words


@pytest.mark.slow
def test_no_file_of_others_is_overwritten(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "index.html").write_text("my page")
    for out in (mine, grid):
        with pytest.raises(SystemExit):
            main(["report", str(grid), "--out", str(out)])
        assert f"out={out} contains files that no report wrote" in capsys.readouterr().err
    assert (mine / "index.html").read_text() == "my page"
    with pytest.raises(SystemExit):
        main(["report", str(grid), "--stage", "start"])
    assert "--help shows its options" in capsys.readouterr().err
    for _ in range(2):  # an earlier report is replaced
        main(["report", str(grid / "0"), "--out", str(tmp_path / "again")])


@pytest.mark.slow
def test_the_legend_has_a_stage_that_the_first_cell_lacks(make_run: MakeRun, tmp_path: Path) -> None:
    first = make_run("sweep/0", lr=1) / "summary.json"
    make_run("sweep/1", lr=2)
    (game,) = json.loads(first.read_text())["games"]
    edit(first, games=[game | {"best": None}])
    report = build_report(*load([tmp_path / "sweep"]))
    figure = figures._draw_stages("stages", report, report.results[0].name)
    assert set(figure.drawing.axes[0].get_legend_handles_labels()[1]) == {"start", "best", "last"}
