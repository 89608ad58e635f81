"""Runs of agent programs against those of the same games, and the examples of the page."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lit_agentrl.config.trust import UntrustedError, resolve_untrusted
from tests.integration.conftest import ROOT, command, run

RUN = ["experiment=quick", "filter=none", "test.episodes=0", "val.episodes=4", "rollout.prompts=2"]
WALK = "env.game.function=tests.experimental.gateway_agents.walk"
PROGRAM = ["env=program", "context=program", "env.game.mode=function"]
# what only the game knows: whether a reply was played (and counts as an answer), and what chance and best play reach
OF_THE_GAME = ("actions", "invalid_share", "surplus_actions", "normalised", "distinct_answers")
CLOCKS = ("time/", "speed/")


def train(
    folder: Path, *options: str, timeout: float = 600.0
) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    done = run(command(*options, *RUN, f"hydra.run.dir={folder}"), timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file)), load_file(folder / "hf" / "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("game", ["bandit", "sokoban"])
def test_a_game_as_a_program_is_the_game_to_the_bit(game: str, tmp_path: Path) -> None:
    rows, weights = train(tmp_path / "game", f"env={game}")
    agent = f"env.game.function=tests.experimental.gateway_agents.play_{game}"
    others, other_weights = train(tmp_path / "program", *PROGRAM, f"env.name={game}", agent)
    compared = {
        key for key in rows[0] if not key.startswith(CLOCKS) and key.rpartition("/")[2] not in OF_THE_GAME
    }
    assert len(compared) > 40
    for key in compared:
        assert [row[key] for row in rows] == [row[key] for row in others], key
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)


@pytest.mark.slow
def test_the_example_trains_alike_by_http_and_by_the_sdk(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    http = f"env.game.command=[python,{ROOT / 'examples/own_agent/agent.py'}]"
    rows, weights = train(tmp_path / "http", "env=program", "context=program", http)
    sdk = "env.game.function=examples.own_agent.agent_openai.play"
    others, other_weights = train(tmp_path / "sdk", *PROGRAM, sdk)
    assert [row["rollout/return_mean"] for row in rows] == [row["rollout/return_mean"] for row in others]
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)


@pytest.mark.slow
def test_a_loop_on_the_sdk_calls_the_tools_that_it_offers(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    rows, _ = train(
        tmp_path, *PROGRAM, "env.game.function=examples.agent_tools.episode.play", "dialect=tool_call",
        "model=nano_tools", "context.show_tools=false", "rollout.max_reply_tokens=48",
    )  # fmt: skip
    assert all(float(row["rollout/failed"]) == 0 for row in rows[1:])
    assert max(float(row["rollout/return_mean"]) for row in rows[1:]) > 0.3


@pytest.mark.slow
def test_a_program_of_another_language_is_credited_call_by_call(tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    folder = ROOT / "examples" / "agent_node"
    rows, _ = train(
        tmp_path, "env=program", "context=program", f"env.game.command=[node,{folder / 'agent.mjs'}]",
        f"env.game.path={folder / 'tasks.jsonl'}", "algo/advantage=process_group",
    )  # fmt: skip
    assert all(float(row["rollout/failed"]) == 0 for row in rows[1:])
    assert any(float(row["rollout/return_mean"]) % 1 for row in rows[1:])  # not the final rewards alone


@pytest.mark.slow
def test_a_program_without_its_context_is_refused_in_one_line(refused: Any) -> None:
    assert "set context=program" in refused(f"env=program env.game.mode=function {WALK}")


def test_a_prompt_that_is_not_shown_is_no_option_of_a_program(refused: Any) -> None:
    message = refused(f"{' '.join(PROGRAM)} {WALK} prompt=full")
    assert "prompt=full has no effect: a program writes its own messages" in message


def test_a_saved_run_that_names_a_function_is_not_trusted() -> None:
    config = {"env": {"game": {"function": "examples.own_agent.agent_openai.play"}}}
    with pytest.raises(UntrustedError, match="starts a program"):
        resolve_untrusted(config, Path())
