"""The second embedded policy learns the calls of a phone within a few iterations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lit_agentrl.cli.train import main as main_train

pytestmark = pytest.mark.usefixtures("one_thread")

RUN = [
    "model=nano_tools", "env=pocket", "env.game.levels=[0]", "env.max_turns=6", "dialect=tool_call",
    "prompt.think=false", "rollout.max_reply_tokens=48", "optim.lr=3e-4", "trainer.max_epochs=12", "val.episodes=8",
    "val.every=1000", "test.episodes=256", "callbacks.transcripts.every=1000",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.sweep
def test_calls_of_tools_get_better(tmp_path: Path) -> None:
    main_train([*RUN, f"hydra.run.dir={tmp_path / 'run'}"])
    games = json.loads((tmp_path / "run" / "summary.json").read_text())["games"]
    (game,) = [each for each in games if each["split"] == "test"]
    start, last = game["start"]["success"], game["last"]["success"]
    print(f"{start['mean']:.3f} -> {last['mean']:.3f} [{last['low']:.3f}, {last['high']:.3f}]")
    assert start["n"] == last["n"] == 256 and 0.1 < start["mean"] < 0.8
    assert last["low"] > start["high"]
