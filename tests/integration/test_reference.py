"""Whole runs whose reference is not the start."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from lit_agentrl.cli.evaluate import main as main_evaluate
from lit_agentrl.cli.train import main as main_train
from tests.integration.conftest import TINY, assert_equal_runs, checkpoint_of, command, run

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


WORDS = ("Up", "Down", "Left", "Right")
PAIRS = [
    {"prompt": f"P {one}", "chosen": f"<answer>{one}</answer>", "rejected": f"<answer>{two}||{two}</answer>"}
    for one in WORDS[:3] for two in WORDS[2:]
]  # fmt: skip


def compared(folder: Path) -> list[str]:
    """Options of a run of pairs of which nobody knows what the reference says."""
    file = folder / "pairs.jsonl"
    file.write_text("\n".join(map(json.dumps, PAIRS)))
    small = [each for each in TINY if not each.startswith(("rollout.prompts", "rollout.members"))]
    return [*small, "algo=dpo", "data=pairs", f"data.path={file}", "data.batch=4", "trainer.accelerator=cpu"]


def test_a_run_that_keeps_what_the_reference_says_is_the_same_however_often_it_is_cut_off(
    tmp_path: Path,
) -> None:
    options = compared(tmp_path)
    folders = [tmp_path / name for name in ("plain", "straight", "resumed", "lost", "shared")]
    plain, straight, resumed, lost, shared = folders
    main_train([*options, "trainer.max_epochs=4", f"hydra.run.dir={plain}"])
    kept = [*options, "data.cache_reference=true"]
    main_train([*kept, "trainer.max_epochs=4", f"hydra.run.dir={straight}"])
    [file] = (straight / "reference").iterdir()
    for folder in (resumed, lost):
        main_train([*kept, "trainer.max_epochs=2", f"hydra.run.dir={folder}"])
        assert (folder / "reference" / file.name).read_bytes() == file.read_bytes()
        if folder is lost:
            shutil.rmtree(folder / "reference")
        main_train([f"resume={folder}", "trainer.max_epochs=4"])
        assert_equal_runs(straight, folder)
    where = f"data.cache_reference={straight / 'reference'}"
    main_train([*options, where, "trainer.max_epochs=4", f"hydra.run.dir={shared}"])
    assert_equal_runs(straight, shared)
    assert [file] == list((straight / "reference").iterdir()) and not (shared / "reference").exists()
    assert not (plain / "reference").exists()
    one, other = (checkpoint_of(folder)["state_dict"] for folder in (plain, straight))
    for name, weight in one.items():
        torch.testing.assert_close(other[name], weight, rtol=0, atol=1e-6)


def test_two_processes_keep_what_one_does(tmp_path: Path) -> None:
    options = [*compared(tmp_path), "data.cache_reference=true", "trainer.max_epochs=3", "optim.lr=1e-4"]
    for name, devices in (("one", 1), ("two", 2)):
        done = run(
            command(
                *options, "strategy=ddp", f"trainer.devices={devices}", f"hydra.run.dir={tmp_path / name}"
            )
        )
        assert done.returncode == 0, done.stderr[-2000:]
    [one], [two] = (list((tmp_path / name / "reference").iterdir()) for name in ("one", "two"))
    assert one.name == two.name and one.read_bytes() == two.read_bytes()
    one_weights, other = (checkpoint_of(tmp_path / name)["state_dict"] for name in ("one", "two"))
    for name, weight in one_weights.items():
        torch.testing.assert_close(other[name], weight, rtol=0, atol=1e-6)
