"""Commands that once were refused late, in the words of a library, or not at all: one line, and no run is begun."""

from __future__ import annotations

from pathlib import Path

import pytest

from lit_agentrl.entry.overrides import parse
from tests.entry.conftest import files
from tests.entry.test_malformed import Refused, main_evaluate

CASES = [
    ("update.minibatches=5 rollout.prompts=2 rollout.members=2", "update.minibatches=5 exceeds the 4 traj"),
    ("+trainer.max_steps=0", "trainer.max_steps=0 would cut iterations out of the run"),
    ("+trainer.limit_train_batches=0", "trainer.limit_train_batches=0 would cut"),
    ("trainer.precision=16-true", "use bf16-mixed or 32-true"),
    ("trainer.accelerator=tpu", "trainer.accelerator=tpu"),
    ("rollout.prompts=1000000000000", "rollout.prompts=1000000000000 must be a whole number from 1 to"),
    ("rollout.prompts=10000 rollout.members=10000", "are held in memory"),
    ("val=5", "val is a section"),
    ("algo.clip=null", "write algo/clip=NAME; valid:"),
    ("env=mixture env.weights=[1,-1]", "env.weights is a section; set one of its options: "),
    ("optim.optimizer=adam", "name the class of one"),
    ("hydra.output_subdir=/tmp/elsewhere", "would write outside of the run folder"),
    ("--cfg jobb", "valid: --cfg job"),
]


@pytest.mark.parametrize(("command", "told"), CASES, ids=[case[0] for case in CASES])
def test_training(refused: Refused, in_empty_folder: Path, command: str, told: str) -> None:
    assert told in refused(f"env=bandit {command}" if "env=" not in command else command)
    assert not files(in_empty_folder)


def test_a_variable_of_a_launcher(
    refused: Refused, in_empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "banana")
    assert "variable RANK=banana must be a whole number" in refused("env=bandit")


def test_a_sweep_of_evaluations(refused: Refused, in_empty_folder: Path) -> None:
    assert "split=[…] where a list is meant" in refused("run=. split=train,test", main_evaluate)


def test_the_folder_of_a_run_of_a_sweep_needs_no_quotes() -> None:
    (found,) = parse(["run=outputs/0_algo=grpo,seed=1"])
    assert found.value() == "outputs/0_algo=grpo,seed=1"


@pytest.mark.parametrize("place", ["checkpoints", "transcripts"])
def test_a_file_where_a_resumed_run_has_a_folder(tmp_path: Path, place: str) -> None:
    from lit_agentrl.entry.run_folder import UserError, require_writable

    (tmp_path / place).write_text("mine")
    with pytest.raises(UserError, match=f"{place} is no folder, as a run leaves one there"):
        require_writable(tmp_path)
    assert (tmp_path / place).read_text() == "mine"
