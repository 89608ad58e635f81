"""A game that another process serves, in whole runs: the same numbers, to the last bit of the weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from tests.envs.started import started
from tests.integration.conftest import outcome, run
from tests.integration.test_slow_worlds import RUN

LIMITS = ["env.max_turns=3", "env.max_actions_per_turn=5", "env.max_actions=10"]
OF_LEVELS = ("chance", "oracle", "normalised")  # which a served game does not ship


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("game", ["frozen_lake"])
def test_a_run_on_a_served_game_is_the_run_on_the_game(tmp_path: Path, game: str) -> None:
    shared = [each for each in RUN if not each.startswith("env")] + LIMITS
    program = [sys.executable, "-m", "lit_agentrl"]
    with started([*program, "serve-env", f"env={game}", "--port"]) as url:
        envs = {"here": [f"env={game}"], "there": ["env=remote", f"env.name={game}", f"env.game.url={url}"]}
        found = {}
        for name, env in envs.items():
            folder = tmp_path / name
            done = run([*program, "train", *env, *shared, f"hydra.run.dir={folder}"])
            assert done.returncode == 0, done.stderr[-2000:]
            tested = run([*program, "evaluate", f"run={folder}", "episodes=16", "trust_run=true"])
            assert tested.returncode == 0, tested.stderr[-2000:]
            (file,) = (folder / "evaluations").glob("*.json")
            (results,) = json.loads(file.read_text())["results"]
            found[name] = {
                key: value for key, value in results.items() if key not in ("levels", "normalised")
            }
    assert found["here"] == found["there"]
    (weights, rows), (others, other_rows) = outcome(tmp_path / "here"), outcome(tmp_path / "there")
    assert all(torch.equal(weight, others[name]) for name, weight in weights.items())
    assert [_told(row) for row in rows] == [_told(row) for row in other_rows]


def _told(row: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in row.items() if not key.endswith(OF_LEVELS)}
