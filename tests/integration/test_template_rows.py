"""Rows of several turns under a template that rewrites earlier ones: trained on, counted, and exported."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lit_agentrl.cli.train import main as main_train
from tests.commands import Refused
from tests.text.families import make_family

TALK = [
    {"role": role, "content": text}
    for role, text in (("user", "one"), ("assistant", "two"), ("user", "three"), ("assistant", "four"))
]
OTHER = [*TALK[:3], {"role": "assistant", "content": "five"}]
ROWS = {
    "sft data=demonstrations": {"messages": TALK},
    "dpo data=pairs": {"prompt": TALK[:1], "chosen": TALK[1:], "rejected": OTHER[1:]},
}


def write_model_and_rows(folder: Path, job: str) -> str:
    """Write a tiny model and a row; return the options of a run that learns from it."""
    tokenizer, ends = make_family("qwen_3")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=2048, eos_token_id=list(ends),
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "rows.jsonl").write_text(json.dumps(ROWS[job]) + "\n")
    return f"algo={job} data.path={folder}/rows.jsonl data.batch=1 model=hf model.name={folder}/model"


@pytest.mark.slow
@pytest.mark.parametrize("job", ROWS)
def test_the_whole_episode_as_sampled_is_refused_with_the_remedy(
    tmp_path: Path, job: str, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    options = write_model_and_rows(tmp_path, job)
    capsys.readouterr()  # a progress bar
    said = refused(f"{options} context=full hydra.run.dir={tmp_path}/run", main_train)
    assert "not append-only over turns (it changes the reply of turn 1); set context=template, " in said


@pytest.mark.slow
@pytest.mark.parametrize("context", ["single", "template"])
@pytest.mark.parametrize("job", ROWS)
def test_each_turn_is_a_row_and_the_template_is_exported(tmp_path: Path, job: str, context: str) -> None:
    options = write_model_and_rows(tmp_path, job)
    tokenizer, _ = make_family("qwen_3")
    main_train([
        *options.split(),
        *[f"context={context}", "env=bandit", "prompt=full", "rollout.max_context_tokens=1500", "trainer.max_epochs=1"],
        *f"val.episodes=1 test.episodes=0 hydra.run.dir={tmp_path}/run".split(),
    ])  # fmt: skip
    notes = json.dumps(json.loads((tmp_path / "run" / "summary.json").read_text()))
    count = 1 if "sft" in job else 2
    assert f"so {count} of {count} episodes have several rows" in notes
    learnt = ["two", "four"] if "sft" in job else ["two", "four", "two", "five"]
    texts = [f"<think>\n\n</think>\n\n{text}<|im_end|>" for text in learnt]
    expected = sum(len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts)
    with (tmp_path / "run" / "metrics.csv").open(encoding="utf-8") as file:
        tokens = [
            float(row["data/action_tokens"]) for row in csv.DictReader(file) if row["data/action_tokens"]
        ]
    assert tokens == [expected]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["action_tokens"] == expected
    exported = (tmp_path / "run" / "hf" / "chat_template.jinja").read_text(encoding="utf-8")
    assert exported == tokenizer.chat_template
