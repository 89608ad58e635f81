"""The smallest run of a program whose process takes long to start."""

from __future__ import annotations

import csv
import subprocess
from pathlib import Path

from tests.conftest import ROOT
from tests.integration.conftest import command, environment

TOOLS = ["dialect=tool_call", "model=nano_tools", "context.show_tools=false", "rollout.max_reply_tokens=48"]
SMALL = [
    "algo=reinforce", "experiment=quick", "trainer.max_epochs=1", "filter=none", "test.episodes=0", "val.episodes=2",
    "rollout.prompts=2", "rollout.members=2", "env.game.timeout_s=300", "env.hosting.workers=4",
]  # fmt: skip


def train_once(folder: Path, *options: str) -> dict[str, str]:
    """Train for one iteration with the policy that knows tools; return the row of the iteration."""
    given = ["env=program", "context=program", *TOOLS, *SMALL, *options, f"hydra.run.dir={folder}"]
    # an episode takes ten seconds of CPU time to import its packages, so the limit is that of a busy machine
    done = subprocess.run(
        command(*given), cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=2400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))[1]


def assert_whole_and_rewarded(row: dict[str, str]) -> None:
    """No episode failed, each is one row, and the policy learns from the rewards of its calls of tools."""
    assert float(row["rollout/failed"]) == 0
    assert not row.get("rollout/context_cost")  # which is there if an episode has several rows
    assert float(row["rollout/return_mean"]) > 0 and float(row["rollout/turns"]) > 1
    assert float(row["train/grad_norm"]) > 0
