"""Two processes play and learn what one does, whichever structure groups have."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.conftest import command, outcome, run
from tests.integration.small_runs import BASE, EACH, LAKE, VARIANTS, small

RUNS = {
    **EACH,
    **{name: options for name, options in VARIANTS.items() if "," not in name},
    "experience": f"{LAKE} algo=training_free_grpo",  # its server: tests/experimental/test_experience_runs.py
}
PER_PROCESS = "structure/asked_tokens"  # each reads once what its own questions begin alike in
PLAYED = ("rollout/success", "rollout/return_mean", "rollout/action_tokens", "val/success")
SMALL = BASE | {
    "callbacks.transcripts.every": "9",
    "trainer.max_epochs": "2",
    "optim.lr": "1e-4",
    "test.episodes": "0",
}


@pytest.mark.long  # tests/experimental/test_experience_runs.py runs one on two processes
@pytest.mark.parametrize("name", RUNS)
def test_two_processes_are_one(name: str, tmp_path: Path) -> None:
    """The same episodes, and weights within rounding: sums over two ranks are added in another order.

    Adam takes a whole step where a gradient is near 0, so rounding shows there in proportion to the learning rate.
    """
    found = []
    for layout in ("strategy=single", "strategy=ddp trainer.devices=2"):
        folder = tmp_path / layout[9:12]
        done = run(command(*small(RUNS[name], SMALL), *layout.split(), f"hydra.run.dir={folder}"))
        assert done.returncode == 0, done.stderr
        found.append(outcome(folder))
    (weights, rows), (of_both, rows_of_both) = found
    for key, weight in weights.items():
        torch.testing.assert_close(
            of_both[key], weight, rtol=0, atol=1e-5, msg=lambda m, key=key: f"{key}: {m}"
        )
    assert len(rows) == len(rows_of_both) == 3
    acted = 0
    for alone, both in zip(rows, rows_of_both, strict=True):
        for key, value in alone.items():
            if value and (key in PLAYED or (key.startswith("structure/") and key != PER_PROCESS)):
                acted += key.startswith("structure/")
                assert float(both[key]) == pytest.approx(float(value), abs=1e-5), key
    assert acted or not any(key.startswith("structure/") for key in rows[1]), (
        "what it measures is not nothing"
    )
