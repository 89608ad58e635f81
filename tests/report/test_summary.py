"""The schema of summary.json, its file and the closing table."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from lit_agentrl.report.held_out import describe_columns, format_markdown
from lit_agentrl.report.summary import (
    build_closing_table,
    build_closing_tables,
    describe_selection,
    read,
    score,
    validate,
    write,
)
from lit_agentrl.report.table import as_text
from lit_agentrl.report.unknown_levels import describe_unknown


def example() -> Any:
    chance, oracle = score([True] + [False] * 9), score([True] * 10)
    game = {"name": "sokoban", "split": "val", "chance": chance, "oracle": oracle}
    start = score([True] * 4 + [False] * 6, returns=[0.5] * 10, iteration=0)
    game |= {"start": start, "best": score([True] * 7 + [False] * 3, iteration=30), "last": None}
    return {
        "version": 1, "status": "stopped", "error": None, "warnings": [],
        "command": "train.py algo=grpo", "seed": 0,
        "versions": {"torch": "2.13"}, "git_revision": None, "games": [game], "held_out": {},
        "monitored": {"name": "val/success", "mode": "max", "value": 0.7, "iteration": 30}, "iterations": 42,
        "planned_iterations": 100, "episodes": 1000, "action_tokens": 10_000, "prefilled_tokens": 5_000,
        "seconds": {"rollout": 1.5, "update": 2}, "engine": {"requests": 3}, "peak_memory_bytes": 1 << 30,
        "saves": {"every": 4, "held_seconds": 0.5, "share": 0.02, "skipped": 0}, "threads": None,
    }  # fmt: skip


def test_a_summary_round_trips_and_leaves_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "run" / "summary.json"
    write(path, example())
    write(path, example())
    assert read(path) == example()
    assert os.listdir(path.parent) == ["summary.json"]


def change(path: str, value: Any) -> Any:
    """The example with the field at a dotted path replaced."""
    summary = json.loads(json.dumps(example()))
    *parents, last = path.split(".")
    place = summary
    for key in parents:
        place = place[int(key) if key.isdigit() else key]
    place[last] = value
    return summary


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("version", 2), ("version", True), ("status", "done"), ("seed", "1"), ("seed", None), ("seed", 1.5),
        ("iterations", True), ("command", 3), ("versions.torch", 2.13), ("versions", []), ("games", {}),
        ("seconds.rollout", "1"), ("seconds.rollout", float("nan")), ("games.0.split", None),
        ("games.0.best", 0.5), ("games.0.best.success", None), ("games.0.start.success.n", 0),
        ("games.0.start.success.mean", 2.0), ("games.0.start.success.low", 0.9),
        ("games.0.start.success.n", 10.0), ("games.0.best.iteration", "30"),
        ("monitored.mode", "most"), ("monitored.value", float("inf")), ("monitored.iteration", None),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_by_its_path(path: str, value: Any) -> None:
    validate(example())
    # bounds belong together, so those are named by the estimate that holds them
    named = path if not path.endswith((".n", ".mean", ".low")) else path.rsplit(".", 1)[0]
    with pytest.raises(ValueError, match=rf"^summary {named}"):
        validate(change(path, value))


@pytest.mark.parametrize("path", ["seed", "games", "error", "peak_memory_bytes"])
def test_a_missing_field_is_named(path: str) -> None:
    summary = example()
    del summary[path]
    with pytest.raises(ValueError, match=f"summary lacks {path}"):
        validate(summary)
    summary = example()
    del summary["games"][0]["start"]["success"]["high"]
    with pytest.raises(ValueError, match="summary lacks games.0.start.success.high"):
        validate(summary)


def test_an_unknown_field_is_named() -> None:
    with pytest.raises(ValueError, match="games.0.tset, which the schema does not know"):
        validate(change("games.0.tset", None))


def test_an_invalid_summary_does_not_replace_a_good_one(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write(path, example())
    with pytest.raises(ValueError, match="status"):
        write(path, change("status", "done"))
    assert read(path) == example()
    path.write_text("{")
    with pytest.raises(ValueError, match=r"summary\.json is not JSON"):
        read(path)


def test_score_builds_its_intervals() -> None:
    one = score([True], returns=[2.5], iteration=3)
    assert one["iteration"] == 3 and one["success"]["n"] == 1
    assert one["return"] == {"mean": 2.5, "low": None, "high": None, "n": 1}  # one value bounds nothing
    shared = score([True, True, False, False], groups=[0, 0, 1, 1])
    assert shared["success"]["n"] == 2 and shared["return"] is None
    json.dumps([one, shared], allow_nan=False)


def rendered(summary: Any, width: int = 80) -> list[list[str]]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(build_closing_table(summary))
    rows = [line for line in console.export_text().splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in row.strip("│").split("│")] for row in rows]


def test_the_table_shows_what_is_known() -> None:
    chance, start, best, last, oracle = rendered(example())
    assert chance[:3] == ["sokoban", "chance", "–"] and chance[4].startswith("0.100 [")
    assert start == ["val", "start", "0", "10", "0.400 [0.168, 0.687]", "0.33"]
    assert best[:4] == ["", "best", "30", "10"] and best[5] == "0.67"
    assert last == ["", "last", "–", "–", "–", "–"]
    assert oracle[1] == "oracle" and oracle[4].startswith("1.000 [") and oracle[5] == "1.00"


def test_unknown_levels_have_their_reason_once() -> None:
    one, other = example()["games"] * 2
    assert describe_unknown([one, other]) == ""
    neither = {"chance": None, "oracle": None}
    missing = "chance and oracle not measured: lit-agentrl levels"
    assert describe_unknown([one | neither, other | neither | {"split": "test"}]) == missing
    looked = "chance and oracle unknown: the game gives no random_action and no optimal_actions"
    recorded = one | neither | {"levels_episodes": 2000}
    assert describe_unknown([recorded, recorded]) == looked
    validate(example() | {"games": [recorded]})
    without_best_play = other | {"name": "safe", "oracle": None}
    assert describe_unknown([without_best_play]) == "oracle unknown: the game gives no optimal_actions"
    assert describe_unknown([recorded, without_best_play]) == (
        f"sokoban: {looked}; safe: oracle unknown: the game gives no optimal_actions"
    )
    shown = Console(width=200, record=True, file=io.StringIO())
    shown.print(build_closing_table(example() | {"games": [recorded]}))
    text = shown.export_text()
    assert "not measured" not in text and text.count("unknown") == 1


def test_a_run_that_measured_nothing_ends_with_a_line_in_place_of_an_empty_table() -> None:
    summary = example()
    summary["games"] = []
    assert build_closing_tables(summary) == [
        f"{summary['status']}: {summary['iterations']} of {summary['planned_iterations']} iterations; "
        "nothing was held out to validate on"
    ]


def test_the_table_says_by_which_score_the_best_weights_were_chosen() -> None:
    summary = example()
    assert "one run, one seed" in str(build_closing_table(summary).caption)
    mean = next(game["best"]["success"]["mean"] for game in summary["games"] if game["split"] == "val")
    summary["iterations"] = 30
    summary["monitored"] = {"name": "val/success", "mode": "max", "value": mean, "iteration": 30}
    assert (
        describe_selection(summary) == f"best: chosen by the highest val/success, {mean:.4g} over 10 episodes"
    )
    summary["iterations"], summary["monitored"]["value"] = 40, 0.75  # its episodes were played again
    assert describe_selection(summary).endswith(
        "over 10 episodes; row best plays again, with the sampling noise of iteration 40, and may differ"
    )
    assert str(build_closing_table(summary).caption).endswith(describe_selection(summary))
    summary["monitored"] |= {"name": "val/data_loss", "mode": "min"}
    summary["games"] = []
    assert describe_selection(summary) == "best: chosen by the lowest val/data_loss, 0.75"
    summary["held_out"] = {"start": {"iteration": 0.0, "loss": 0.5}}
    assert describe_selection(summary).endswith("0.75; the start was better, 0.5")
    summary["held_out"]["start"]["loss"] = 1.0
    assert describe_selection(summary).endswith("0.75")
    summary["monitored"] = None
    assert not describe_selection(summary)


def test_the_table_says_how_unknown_levels_are_measured() -> None:
    unknown = example()
    unknown["games"][0] |= {"chance": None, "oracle": None}
    captions = [str(build_closing_table(summary).caption) for summary in (example(), unknown)]
    assert ["lit-agentrl levels" in caption for caption in captions] == [False, True]


def shown_held_out(held_out: dict[str, dict[str, float]]) -> tuple[list[str], str]:
    """The columns and the caption of the table of held-out data, at 80 columns."""
    [table] = build_closing_tables(example() | {"games": [], "held_out": held_out})
    assert isinstance(table, Table) and max(map(len, as_text(table).splitlines())) <= 80
    return [str(column.header) for column in table.columns], str(table.caption)


def test_a_loss_that_is_the_nll_is_one_column_with_its_unit() -> None:
    start = {"iteration": 0.0, "loss": 1.25, "nll": 1.2500001, "perplexity": 3.5}
    columns, caption = shown_held_out({"start": start})
    assert columns == ["policy", "iter.", "loss = NLL (nats a token)", "perplexity"]
    assert "minimises" not in caption
    columns, caption = shown_held_out({"start": start, "last": start | {"loss": 20.0}})  # a sum over tokens
    assert columns[2:4] == ["loss", "NLL (nats a token)"] and "loss: what the algorithm minimises" in caption


def test_held_out_pairs_name_the_level_of_chance_and_what_a_margin_is() -> None:
    pairs = {"iteration": 0.0, "loss": 0.69, "reward_accuracy": 0.55, "reward_margin": 0.01}
    columns, caption = shown_held_out({"start": pairs})
    assert columns[2:] == ["loss", "accuracy (chance 0.5)", "margin"]
    assert (
        "in nats if it is a log-likelihood or a log-sigmoid" in caption
        and "margin: implicit reward" in caption
    )
    assert format_markdown({"start": pairs}, ["start"])[-1].startswith("Loss: what the algorithm minimises")


def test_nothing_measured_has_no_columns() -> None:
    assert describe_columns({}) == ""


def test_the_table_fits_80_columns() -> None:
    long = change("games.0.name", "bandit_reversed")
    assert rendered(long) == rendered(long, width=160)


def test_the_table_of_a_run_that_failed_at_once(tmp_path: Path) -> None:
    summary = change("status", "failed")
    summary["games"][0] |= dict.fromkeys(("chance", "oracle", "start", "best", "last"))
    summary |= {"error": "boom", "iterations": 0}
    write(tmp_path / "summary.json", summary)
    assert all(cell == "–" for cell in rendered(summary)[0][2:])
    summary["games"] = []
    validate(summary)
    assert rendered(summary) == []


def test_no_scale_is_no_normalised_score() -> None:
    summary = example()
    summary["games"][0]["oracle"] = summary["games"][0]["chance"]
    assert rendered(summary)[0][5] == "–"


def test_a_summary_of_before_there_were_warnings_is_read(tmp_path: Path) -> None:
    old = example()
    del old["warnings"], old["monitored"], old["saves"], old["held_out"]
    (tmp_path / "summary.json").write_text(json.dumps(old))
    assert read(tmp_path / "summary.json") == {**example(), "monitored": None, "saves": None}
