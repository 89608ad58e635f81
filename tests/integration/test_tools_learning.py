"""The second embedded policy learns Taxi and the calls of a phone within a few iterations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lit_agentrl.commands.train import main as main_train

WORLDS = {
    "taxi": ["env=gymnasium", "rollout.max_context_tokens=1024"],
    "phone": [
        "env=pocket", "env.game.levels=[0]", "env.max_turns=6", "dialect=tool_call", "prompt.think=false",
        "rollout.max_reply_tokens=48",
    ],
}  # fmt: skip
FEW = [
    "model=nano_tools",
    "val.episodes=8",
    "val.every=1000",
    "test.episodes=256",
    "callbacks.transcripts.every=1000",
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("world", WORLDS)
def test_success_rises_above_the_start(world: str, tmp_path: Path) -> None:
    main_train([*WORLDS[world], *FEW, "trainer.max_epochs=12", f"hydra.run.dir={tmp_path / 'run'}"])
    games = json.loads((tmp_path / "run" / "summary.json").read_text())["games"]
    (game,) = [each for each in games if each["split"] == "test"]
    start, last = game["start"]["success"], game["last"]["success"]
    print(f"{world}: {start['mean']:.3f} -> {last['mean']:.3f} [{last['low']:.3f}, {last['high']:.3f}]")
    assert start["n"] == last["n"] == 256 and 0.1 < start["mean"] < 0.8
    assert last["low"] > start["high"]
