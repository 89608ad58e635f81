"""The title and the sentence of a report: which cell is better, or that this is undecided."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from lit_agentrl.__main__ import main
from lit_agentrl.report.page.headline import make_title, state_result
from lit_agentrl.report.page.results import Report, build_report
from lit_agentrl.report.page.runs import load
from tests.report.conftest import MakeRun, edit


def reported(make_run: MakeRun, folder: Path, cells: dict[str, list[int]], **options: str) -> Report:
    """The report of cells that solved so many of 8 tasks, a number for each seed."""
    for algo, solved in cells.items():
        for seed, count in enumerate(solved):
            make_run(f"runs/{algo}{seed}", seed, (2, 6, count), algo=algo, **options)
    return build_report(*load([folder / "runs"]))


@pytest.mark.parametrize(
    ("cells", "title", "result"),
    [
        (
            {"grpo": [1, 2, 1], "rloo": [5, 7, 5]}, "grpo against rloo on bandit",
            r"rloo is better than grpo: success 0.708 against 0.167, a difference of 0.542 with the 95 % interval "
            r"\[0.362, 0.721\] over 3 pairs of seeds; too few runs for a permutation test to be passed \(p 0.25\)\.",
        ),
        (
            {"grpo": [4, 2, 5], "rloo": [5, 1, 7]}, "grpo against rloo on bandit",
            r"it is undecided whether rloo is better than grpo: .*; the interval contains 0\.",
        ),
        (
            {"grpo": [1, 2], "rloo": [3, 4]}, "grpo against rloo on bandit",
            r"it is undecided .*; equal differences have no interval: play more seeds\.",
        ),
        (
            {"grpo": [3, 4], "rloo": [3, 4]}, "grpo against rloo on bandit",
            r"it is undecided .*, a difference of 0\.000 over 2 pairs of seeds; equal differences have no interval: "
            r"play more seeds\.",
        ),
        (
            {"a1": [1, 2, 1], "b1": [7, 8, 8], "c1": [5, 4, 5]}, "a1, b1 against c1 on bandit",
            r"b1 is better than all 2 others; the next is c1: success 0.958 against 0.583, .*",
        ),
        (
            {"grpo": [4]}, "env=bandit algo=grpo on bandit",
            r"success is 0.500 \[0.215, 0.785\], 0.250 at the start \(one run, one seed, 95 % interval\)\.",
        ),
    ],
)  # fmt: skip
def test_the_better_cell_is_named_by_how_much_and_by_how_many_seeds(
    make_run: MakeRun, tmp_path: Path, cells: dict[str, list[int]], title: str, result: str
) -> None:
    report = reported(make_run, tmp_path, cells)
    assert make_title(report) == title or len(cells) == 1
    assert re.fullmatch(
        rf"On bandit \(test, last weights\) {result} Chance is 0\.125, the oracle 1\.000\.",
        state_result(report),
    ), state_result(report)


def test_cells_that_are_not_above_chance_are_told(make_run: MakeRun, tmp_path: Path) -> None:
    report = reported(make_run, tmp_path, {"grpo": [0, 1], "rloo": [1, 0]})
    assert state_result(report).endswith("Nothing here is above chance, 0.125: random play does as well.")


def test_intervals_that_cover_too_little_are_one_line(make_run: MakeRun, tmp_path: Path) -> None:
    report = reported(make_run, tmp_path, {"grpo": [1, 2], "rloo": [3, 4]})
    (line,) = [line for line in report.warnings if "intervals of the interquartile mean" in line]
    assert re.search(r": \d+% for grpo on bandit \(2 runs\), \d+% for rloo on bandit \(2 runs\)$", line), line


@pytest.mark.slow
def test_many_cells_and_games_are_counted(make_run: MakeRun, tmp_path: Path) -> None:
    for game, best in (("a1", 7), ("b1", 6), ("c1", 3), ("d1", 7)):
        for algo, solved in (("w", 1), ("x", 2), ("y", 2), ("zz", best)):
            for seed in range(3):
                count = solved + (1, 0, 1 if algo == "zz" else 0)[seed]
                make_run(f"runs/{game}{algo}{seed}", seed, (2, 6, count), algo=algo, env=game)
    runs, damaged = load([tmp_path / "runs"])
    report = build_report(runs, damaged)
    assert make_title(report) == "16 cells of env and algo on 4 games"
    assert state_result(report) == (
        "Of 4 games (last weights), env=a1 algo=zz is better than all others on 1 (a1); env=b1 algo=zz is better than "
        "all others on 1 (b1); env=d1 algo=zz is better than all others on 1 (d1); 1 is undecided."
    )


def test_nothing_measured_is_said(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("runs/0", 1, None, status="stopped")
    assert state_result(build_report(*load([tmp_path / "runs"]))) == (
        "There is nothing to compare: no run was measured on a game or on held-out data."
    )


def make_judged(
    make_run: MakeRun,
    name: str,
    seed: int,
    accuracy: float,
    *,
    by: tuple[int, str] | None = None,
    **options: float,
) -> Path:
    """A run on pairs, which is judged by held-out ones and plays nothing."""
    measured = {"iteration": 2.0, "loss": 0.6, "reward_accuracy": accuracy, "reward_margin": 0.1}
    start = measured | {"iteration": 0.0, "loss": 0.693, "reward_accuracy": 0.5}
    folder = make_run(f"runs/{name}", seed, **options)
    rows = {} if by is None else {"held_out_rows": {"groups": by[0], "fingerprint": by[1]}}
    edit(
        folder / "summary.json", games=[], held_out={"start": start, "last": measured, "best": measured}, **rows
    )  # fmt: skip
    return folder


def test_cells_judged_by_different_held_out_data_are_not_compared(make_run: MakeRun, tmp_path: Path) -> None:
    for lr, accuracy, by in ((1, 0.9, (5, "a")), (2, 0.6, (11, "b")), (3, 0.5, (11, "b"))):
        for seed in (1, 2):
            make_judged(make_run, f"{lr}{seed}", seed, accuracy + seed / lr / 100, by=by, lr=lr)
    main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")])
    text = (tmp_path / "out" / "report.md").read_text().replace("\\", "")
    assert (
        "On held-out data (last weights), cells judged by different data are not compared: lr=1 (5 groups); lr=2, "
        "lr=3 (11 groups). lr=1: loss 0.6 (start 0.693), accuracy (chance 0.5) 0.915 (start 0.5), "
        "margin 0.1 (start 0.1) (mean over 2 runs). lr=2 has the highest accuracy, 0.6075 against "
        "0.505 of lr=3: a difference of"
    ) in text
    assert "not comparable: lr=1; lr=2, lr=3." in text and "| lr=2 | loss | 11 | 2 |" in text


def test_reward_models_judged_by_different_pairs_are_not_compared(make_run: MakeRun, tmp_path: Path) -> None:
    for lr, accuracy, rows in ((1, 7, "a"), (2, 2, "b"), (3, 4, "b")):
        folder = make_run(f"runs/{lr}", 1, (2, 6, accuracy), lr=lr)
        edit(folder / "summary.json", held_out_rows={"groups": 8, "fingerprint": rows})
    report = build_report(*load([tmp_path / "runs"]))
    assert [(pair.a.name, pair.b.name) for pair in report.comparisons] == [("lr=3", "lr=2")]
    assert (
        "not compared, since other held-out rows judged them: lr=2 and lr=1; lr=3 and lr=1; give them the same data "
        "and data.held_out"
    ) in report.warnings
    assert "nothing was compared: see the warnings." in state_result(report)


def test_runs_that_do_not_record_their_held_out_data_are_told_apart_by_file_and_share(
    make_run: MakeRun, tmp_path: Path
) -> None:
    for lr, share in ((1, 0.2), (2, 0.5), (3, 0.5)):
        config = make_judged(make_run, f"{lr}", 1, 0.5 + lr / 10, lr=lr) / ".hydra" / "config.yaml"
        config.write_text(f"{config.read_text()}\ndata: {{path: d.jsonl, held_out: {share}}}\n")
    text = state_result(build_report(*load([tmp_path / "runs"])))
    assert (
        "are not compared: lr=1; lr=2, lr=3." in text
        and "lr=3 has the highest accuracy, 0.8 against 0.7" in text
    )


def test_held_out_scores_count_the_runs_of_each_stage(make_run: MakeRun, tmp_path: Path) -> None:
    make_judged(make_run, "a", 1, 0.6)
    start = {"iteration": 0.0, "loss": 0.8, "reward_accuracy": 0.3, "reward_margin": 0.0}
    edit(make_judged(make_run, "b", 2, 0.9) / "summary.json", status="stopped", held_out={"start": start})
    report = build_report(*load([tmp_path / "runs"]))
    assert state_result(report).endswith(
        "accuracy (chance 0.5) 0.6 (start 0.5), margin 0.1 (start 0.1) (one run, one seed)."
    )
    assert "1 of 2 runs is unfinished, and not in the means of best and last" in report.warnings
    main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")])
    assert "| – | start 2, best 1, last 1 |" in (tmp_path / "out" / "report.md").read_text()
    head, row, *_ = (tmp_path / "out" / "held_out.csv").read_text().splitlines()
    assert "groups,start_runs,best_runs,last_runs,start" in head and ",loss,,2,1,1," in row


def test_equal_cells_are_said_to_tie(make_run: MakeRun, tmp_path: Path) -> None:
    for lr in (1, 2):
        make_judged(make_run, f"{lr}", 1, 1.0, lr=lr)
    assert state_result(build_report(*load([tmp_path / "runs"]))) == (
        "On held-out data (last weights) lr=1 and lr=2 tie at the highest accuracy, 1."
    )


def test_runs_on_data_are_compared_by_held_out_data(make_run: MakeRun, tmp_path: Path) -> None:
    for seed, accuracy in ((1, 0.6), (2, 0.8)):
        make_judged(make_run, f"a{seed}", seed, accuracy, lr=1)
    main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "one")])
    text = (tmp_path / "one" / "report.md").read_text()
    assert "On held-out data \\(last weights\\): loss 0.6 \\(start 0.693\\), accuracy" in text
    assert "0.7 [0, 1]" in text and "mean over 2 runs" in text and "<h2>Figures" not in text
    for seed, accuracy in ((1, 0.5), (2, 0.71)):
        make_judged(make_run, f"b{seed}", seed, accuracy, lr=2)
    report = build_report(*load([tmp_path / "runs"]))
    assert state_result(report) == (
        "On held-out data (last weights) lr=1 has the highest accuracy, 0.7 against 0.605 of lr=2: a difference of "
        "0.095 [0.0315, 0.159] over 2 pairs of seeds."
    )
    make_judged(make_run, "c1", 1, 0.69, lr=3)
    assert "lr=3: a difference of 0.01 over 2 and 1 runs; undecided: play more seeds." in state_result(
        build_report(*load([tmp_path / "runs"]))
    )


def test_runs_that_differ_in_their_seed_alone_are_said_not_to_be_compared(
    make_run: MakeRun, tmp_path: Path
) -> None:
    for seed in (1, 2):
        make_run(f"runs/{seed}", seed)
    first, *_ = build_report(*load([tmp_path / "runs"])).warnings
    assert first.startswith(
        "the 2 runs differ only in their seed, so they are averaged and not compared: add runs"
    )


@pytest.mark.slow
def test_saved_figures_have_the_colours_of_the_light_page(make_run: MakeRun, tmp_path: Path) -> None:
    for seed in (1, 2):
        for lr in (1, 2):
            make_run(f"runs/{lr}{seed}", seed, (2, 6, 3 + lr + seed), lr=lr)
    main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "r")])
    page = (tmp_path / "r" / "index.html").read_text()
    found = re.findall(r'download="\w+\.(svg|png)" href="data:image/[\w+]+;base64,([^"]+)"', page)
    assert len(found) == 8
    for kind, text in found:
        content = base64.b64decode(text)
        if kind == "svg":
            assert b"fe01" not in content and b"var(" not in content and b"<script" not in content
            continue
        pixels = read_pixels(content)
        red, green, blue = pixels.T
        assert not ((green > 200) & (red < 60) & (blue < 60)).any(), "a placeholder was left"
        assert all((pixels == colour).all(1).any() for colour in ((255, 255, 255), (0x1A, 0x1A, 0x1A)))


def read_pixels(png: bytes) -> Any:
    """The colours of an image, one row each, read by the drawing library."""
    import io

    from matplotlib import image

    assert png.startswith(b"\x89PNG") and zlib.crc32(png[12:29]) == struct.unpack(">I", png[29:33])[0]
    return (image.imread(io.BytesIO(png))[..., :3] * 255).round().astype(int).reshape(-1, 3)
