"""Runs through a server: what they ask it for is counted, and they leave nothing behind for it."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from lit_agentrl.cli.train import main as main_train
from tests.commands import SMALL, Refused
from tests.engines.server import Faults, answer_of, serving

PUSH = "engine.push=[{path: /load, json: {folder: '{folder}'}}]"


def served(url: str, model: Path, folder: Path, more: str = "") -> list[str]:
    (folder / "w").mkdir()
    through = f"engine=openai engine.url={url} engine.weights_folder={folder}/w engine.price_out=100"
    return [
        *shlex.split(f"{SMALL} model=hf model.name={model} {through} hydra.run.dir={folder}/run {more}"),
        PUSH,
    ]


def answer(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Of a server with a model of its own, which nothing moves."""
    if path == "/load":
        return {}
    if body.get("echo"):
        return {"choices": [{"logprobs": {"token_logprobs": [None, *[-1.0] * len(body["prompt"])]}}]}
    return answer_of(body["prompt"], [7, 8, 9], [-1.0] * 3)


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "run" / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def count(folder: Path, tiny_model_folder: Path, more: str = "") -> None:
    said: list[Any] = []
    with serving(answer, Faults({5: "429"}), said) as url:
        main_train(
            served(url, tiny_model_folder, folder, f"engine.max_sync_gap=100 engine.backoff_s=0.01 {more}")
        )
    used = json.loads((folder / "run" / "summary.json").read_text())["engine"]
    of_iterations = [{n: float(row[f"engine/{n}"]) for n in used} for row in rows(folder)[1:]]
    assert used["requests"] == len(said) and used["retried"] == used["retried_status_429"] == 1
    trained = sum(row["tokens_out"] for row in of_iterations)
    assert 0 < trained < used["tokens_out"]  # the start and the end were measured too
    assert sum(row["requests"] for row in of_iterations) < len(said)
    assert used["cost"] == pytest.approx(used["tokens_out"] * 100 / 1e6) and used["tokens_in"] > 0
    assert not list((folder / "w").iterdir())


@pytest.mark.slow
@pytest.mark.sweep
def test_a_run_counts_what_it_asks_a_server_for(
    tmp_path: Path, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count(tmp_path, tiny_model_folder)
    assert "engine totals: requests" in capsys.readouterr().out


@pytest.mark.slow
def test_processes_count_it_too_and_leave_no_weights(tmp_path: Path, tiny_model_folder: Path) -> None:
    count(tmp_path, tiny_model_folder, "worker=process worker.share=1 worker.count=2")


@pytest.mark.slow
def test_a_run_that_fails_leaves_no_weights(
    tmp_path: Path, tiny_model_folder: Path, refused: Refused
) -> None:
    with serving(answer) as url:
        message = refused(shlex.join(served(url, tiny_model_folder, tmp_path)))
    assert "log-probs of a fixed text differ" in message and not list((tmp_path / "w").iterdir())
