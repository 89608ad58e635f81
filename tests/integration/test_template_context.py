"""Runs under a chat template that drops earlier thoughts: trained, resumed, evaluated and played."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from lit_agentrl.callbacks.transcript_lines import read
from lit_agentrl.cli.evaluate import main as main_evaluate
from lit_agentrl.cli.play import main as main_play
from lit_agentrl.cli.train import main as main_train
from lit_agentrl.models.policy import load_nano
from tests.integration.conftest import assert_equal_runs
from tests.rollout.test_template_rows import DROPS

LAKE = [
    "env=frozen_lake", "model=hf", "context=template", "rollout.prompts=2", "rollout.members=4",
    "rollout.max_context_tokens=400", "val.episodes=2", "val.every=1", "test.episodes=0", "engine.num_slots=8",
    "trainer.accelerator=cpu", "~callbacks.progress", "callbacks.transcripts.every=1",
]  # fmt: skip


@pytest.mark.slow
def test_training_resume_evaluation_and_play(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = load_nano()
    policy.tokenizer.chat_template = DROPS
    policy.save(tmp_path / "model")
    straight, extended = tmp_path / "straight", tmp_path / "extended"
    for folder, iterations in ((straight, 2), (extended, 1)):
        main_train([
            *LAKE, f"model.name={tmp_path}/model", f"trainer.max_epochs={iterations}", f"hydra.run.dir={folder}"
        ])  # fmt: skip
    main_train([f"resume={extended}", "trainer.max_epochs=2"])
    assert_equal_runs(straight, extended)
    with (straight / "metrics.csv").open(newline="") as file:
        row = list(csv.DictReader(file))[-1]
    assert float(row["train/logp_gap"]) < 1e-5 and float(row["train/grad_norm"]) > 0
    assert 1 < float(row["rollout/context_cost"]) < 1.3
    turns = [turn for _, e in read(straight / "transcripts" / "train.jsonl") for turn in e.turns[1:]]
    assert any(turn.starts_row for turn in turns)
    main_evaluate([f"run={straight}", "episodes=2", "split=val"])
    capsys.readouterr()
    main_play([f"run={straight}"])
    assert "turn" in capsys.readouterr().out
