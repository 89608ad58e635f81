"""Whole runs whose reference is not the start."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lit_agentrl.commands.evaluate import main as main_evaluate
from lit_agentrl.commands.train import main as main_train
from tests.integration.conftest import TINY, assert_equal_runs, checkpoint_of

pytestmark = [pytest.mark.slow, pytest.mark.sweep]
MOVING = ["algo=grpo", "algo/kl=loss_k3", "algo.kl.coef=0.1", "reference=moving", "reference.alpha=0.5"]


def test_a_run_with_a_moving_reference_goes_on_to_the_bit_and_is_evaluated(tmp_path: Path) -> None:
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    main_train([*TINY, *MOVING, "trainer.max_epochs=4", f"hydra.run.dir={straight}"])
    main_train([*TINY, *MOVING, "trainer.max_epochs=2", f"hydra.run.dir={resumed}"])
    main_train([f"resume={resumed}", "trainer.max_epochs=4"])
    assert_equal_runs(straight, resumed)
    held = checkpoint_of(straight)["state_dict"]
    moved = {name: weight for name, weight in held.items() if name.startswith("reference.")}
    assert moved and all(
        not torch.equal(w, held[name.replace("reference.", "network.")]) for name, w in moved.items()
    )
    main_evaluate([f"run={straight}", "episodes=8"])
