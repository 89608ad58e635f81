"""The comparison of two checkouts: what counts as equal, as different, and as missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import load_script

script = load_script("compare_checkouts")

WEIGHTS = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor(0.0)}
METRICS = ["iteration,time/update,train/loss,val/success", "0,,,0.5", "1,0.1,0.25,", "2,0.1,0.5,0.75"]


def run_folder(
    folder: Path, weights: dict[str, Any] = WEIGHTS, rows: list[str] = METRICS, **summary: Any
) -> Path:
    """A run folder with what the comparison reads."""
    (folder / "checkpoints").mkdir(parents=True)
    torch.save({"state_dict": weights}, folder / "checkpoints" / "last.ckpt")
    (folder / "metrics.csv").write_text("\n".join(rows) + "\n")
    whole = {
        "status": "completed",
        "games": [{"name": "g", "last": {"success": {"mean": 0.75}}}],
        "seconds": {},
    }
    counts = {"iterations": 2, "episodes": 8, "action_tokens": 40, "prefilled_tokens": 90}
    (folder / "summary.json").write_text(json.dumps({**whole, **counts, **summary}))
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return run_folder(tmp_path / "base")


def test_equal_but_for_clocks_and_the_order_of_columns(base: Path, tmp_path: Path) -> None:
    rows = ["iteration,val/success,train/loss,time/update", "0,0.5,,", "1,,0.25,0.2", "2,0.75,0.5,0.3"]
    found = script.compare(base, run_folder(tmp_path / "head", rows=rows, seconds={"update": 9.0}))
    assert found == ([], [])
    assert script.state_verdict("grpo", *found) == ("equal", True)


def test_weights_differ_by_a_bit(base: Path, tmp_path: Path) -> None:
    moved = {**WEIGHTS, "a": torch.tensor([1.0, 2.5])}
    (text,) = script.compare(base, run_folder(tmp_path / "moved", moved))[0]
    assert text == "weights: 1 of 2 tensors differ, by 0.5 at most (a)"
    signed = {**WEIGHTS, "b": torch.tensor(-0.0)}
    assert script.compare(base, run_folder(tmp_path / "signed", signed))[0]
    for other in (torch.ones(3), torch.ones(2, dtype=torch.float64), torch.tensor([1.0, float("nan")])):
        assert script.find_different_weights({"a": torch.ones(2)}, {"a": other})
    nan = torch.tensor([float("nan")])
    assert (
        script.find_different_weights({"a": nan, "e": torch.ones(0)}, {"a": nan.clone(), "e": torch.ones(0)})
        is None
    )


def test_the_earliest_row_that_differs_is_told(base: Path, tmp_path: Path) -> None:
    rows = [METRICS[0], METRICS[1], "1,0.1,0.26,0.5", "2,0.1,0.6,0.7"]
    (text,) = script.compare(base, run_folder(tmp_path / "head", rows=rows))[0]
    assert text == "metrics: train/loss at iteration 1: 0.25 != 0.26 (2 columns differ)"
    (text,) = script.compare(base, run_folder(tmp_path / "short", rows=METRICS[:-1]))[0]
    assert text == "metrics: 2 or 3 rows"


def test_scores_differ(base: Path, tmp_path: Path) -> None:
    head = run_folder(tmp_path / "head", games=[{"name": "g", "last": {"success": {"mean": 0.5}}}])
    found = script.compare(base, head)
    assert found[0] == ["scores: summary.games.0.last.success.mean: 0.75 != 0.5 (1 differ)"]
    assert script.state_verdict("grpo", *found)[1] is False
    script.MEANT_TO_DIFFER = frozenset({"gvpo"})
    text, is_right = script.state_verdict("gvpo", *found)
    assert is_right and text.endswith("(meant to differ)")


def test_evaluations_are_scores(base: Path, tmp_path: Path) -> None:
    head = run_folder(tmp_path / "head")
    for folder, solved in ((base, [True, False]), (head, [True, True])):
        (folder / "evaluations").mkdir()
        results = {"config": {"run": str(folder)}, "results": [{"solved": solved}]}
        (folder / "evaluations" / "last.json").write_text(json.dumps(results))
    assert script.compare(base, head)[0] == ["scores: last.0.solved.1: False != True (1 differ)"]


def test_what_is_missing_in_head_counts_and_what_is_new_is_listed(base: Path, tmp_path: Path) -> None:
    fewer = run_folder(tmp_path / "fewer", {"a": WEIGHTS["a"]}, [row.rsplit(",", 1)[0] for row in METRICS])
    assert script.compare(base, fewer)[0] == [
        "weights missing in HEAD: b",
        "metrics missing in HEAD: val/success",
    ]
    more = script.compare(fewer, base)
    assert more == ([], ["b", "val/success"])
    assert script.state_verdict("grpo", *more) == ("equal; + b, val/success", True)


def test_a_finished_run_of_base_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[str] = []

    def launch(checkout: Path, *arguments: str) -> str:
        played.append(" ".join(arguments))
        (tmp_path / "out" / "case").mkdir(parents=True)
        return ""

    monkeypatch.setattr(script, "launch", launch)
    monkeypatch.setattr(
        script, "read_revision", lambda checkout: {"base": "1", "later": "2"}.get(checkout.name)
    )
    folder = tmp_path / "out" / "case"
    jobs = [
        ("base", "train.py x=1"),
        ("base", "train.py x=2"),
        ("later", "train.py x=2"),
        ("dirty", "train.py x=2"),
    ]
    for checkout, command in jobs:
        for _ in range(2):
            script.play(tmp_path / checkout, command, folder, reuse=True)
    assert played == ["train.py x=1"] + ["train.py x=2"] * 4
    script.play(tmp_path / "base", "train.py run=FOLDER", folder)
    assert played[-1] == f"train.py run={folder}"
