"""What is loaded and what is written: the chat template that a policy was trained with goes with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from lit_agentrl.models.policy import load_pretrained, read_shipped_template


def test_the_export_has_the_template_of_the_training(tiny_model_folder: Path, tmp_path: Path) -> None:
    own = AutoTokenizer.from_pretrained(tiny_model_folder).chat_template
    load_pretrained(str(tiny_model_folder)).save(tmp_path / "own")
    load_pretrained(str(tiny_model_folder), chat_template="append_only_chatml").save(tmp_path / "other")
    assert AutoTokenizer.from_pretrained(tmp_path / "own").chat_template == own
    exported = AutoTokenizer.from_pretrained(tmp_path / "other")
    assert exported.chat_template == read_shipped_template("append_only_chatml") != own
    messages = [{"role": "user", "content": "go"}]
    assert exported.apply_chat_template(messages, tokenize=False) == "<|im_start|>user\ngo<|im_end|>\n"


def test_unknown_shipped_template() -> None:
    with pytest.raises(ValueError, match="^chat_template=nope must be one of append_only_chatml, or null"):
        load_pretrained("nowhere", chat_template="nope")


def test_a_wrong_date_is_refused(tiny_model_folder: Path) -> None:
    with pytest.raises(ValueError, match="^date=tomorrow must be a date as YEAR-MONTH-DAY"):
        load_pretrained(str(tiny_model_folder), date="tomorrow")
    assert load_pretrained(str(tiny_model_folder), date="2024-02-29").date == "2024-02-29"
