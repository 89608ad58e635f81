"""Games that another process serves, also the tools of an MCP server, in whole runs: equal to the last bit."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lit_agentrl.cli.evaluate import main as main_evaluate
from lit_agentrl.cli.train import main as main_train
from tests.conftest import ROOT
from tests.envs.started import started
from tests.integration.conftest import assert_equal_runs, environment, outcome, run
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
            main_train([*env, *shared, f"hydra.run.dir={folder}"])
            main_evaluate([f"run={folder}", "episodes=16", "trust_run=true"])
            (file,) = (folder / "evaluations").glob("*.json")
            (results,) = json.loads(file.read_text())["results"]
            found[name] = {
                key: value for key, value in results.items() if key not in ("levels", "normalised")
            }
    assert found["here"] == found["there"]
    (weights, rows), (others, other_rows) = outcome(tmp_path / "here"), outcome(tmp_path / "there")
    assert all(torch.equal(weight, others[name]) for name, weight in weights.items())
    assert [_told(row) for row in rows] == [_told(row) for row in other_rows]


@pytest.mark.slow
@pytest.mark.sweep
def test_a_run_on_an_mcp_address_is_killed_and_goes_on(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "lit_agentrl", "train"]
    with started([sys.executable, "examples/own_mcp/online.py"]) as url:
        options = [
            "model=nano_tools", "env=mcp", f"env.game.url={url}/mcp", "env.game.path=examples/own_mcp/tasks.jsonl",
            "env.max_turns=3", "dialect=tool_call", "prompt=full", "prompt.think=false", "reward=length",
            "reward.length.free_tokens=0", "reward.length.step_tokens=1", "rollout.prompts=2", "rollout.members=4",
            "rollout.max_reply_tokens=48", "rollout.max_context_tokens=1024", "trainer.max_epochs=3",
            "trainer.accelerator=cpu", "val.episodes=2", "val.every=3", "test.episodes=0",
        ]  # fmt: skip
        whole, killed = tmp_path / "whole", tmp_path / "killed"
        done = run([*program, *options, f"hydra.run.dir={whole}"])
        assert done.returncode == 0, done.stderr[-2000:]
        with subprocess.Popen(
            [*program, *options, f"hydra.run.dir={killed}"],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.DEVNULL,
        ) as process:
            ends = time.monotonic() + 600
            while not (killed / "checkpoints" / "last.ckpt").exists():
                assert process.poll() is None and time.monotonic() < ends
                time.sleep(0.05)
            process.kill()
        assert (
            not (killed / "summary.json").exists() or "completed" not in (killed / "summary.json").read_text()
        )
        done = run([*program, f"resume={killed}", "trust_run=true"])
        assert done.returncode == 0, done.stderr[-2000:]
    assert_equal_runs(whole, killed)
    _, rows = outcome(whole)
    trained = [row for row in rows if row["rollout/episodes"]]
    assert len(trained) == 3
    assert [float(row["rollout/failed"]) for row in trained] == [0.0] * 3
    assert all(float(row["train/grad_norm"]) > 0 for row in trained)  # it is paid for short replies


def _told(row: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in row.items() if not key.endswith(OF_LEVELS)}
