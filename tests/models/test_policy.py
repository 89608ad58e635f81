"""What is loaded and what is written: the chat template that a policy was trained with goes with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lit_agentrl.models.lora import LoRA
from lit_agentrl.models.policy import load_nano, load_pretrained, read_shipped_template


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
    with pytest.raises(
        ValueError,
        match="^chat_template=nope must be one of append_only_chatml, a file that",
    ):
        load_pretrained("nowhere", chat_template="nope")


def test_a_template_may_be_a_file(tiny_model_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    with pytest.raises(ValueError, match="^chat_template=.*own.jinja cannot be read: No such file"):
        load_pretrained(str(tiny_model_folder), chat_template=str(file))
    file.write_text(" \n")
    with pytest.raises(ValueError, match="own.jinja must be a file that holds a template"):
        load_pretrained(str(tiny_model_folder), chat_template=str(file))
    file.write_text("{% for m in messages %}[{{ m.role }}] {{ m.content }}<|end|>{% endfor %}")
    load_pretrained(str(tiny_model_folder), chat_template=str(file)).save(tmp_path / "out")
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template == file.read_text()


def test_an_adapter_folder_is_named_with_its_remedy(tiny_model_folder: Path, tmp_path: Path) -> None:
    load_pretrained(str(tiny_model_folder), lora=LoRA(r=2)).save(tmp_path / "hf")
    inside = tmp_path / "hf" / "adapter"
    with pytest.raises(
        ValueError, match="it is an adapter of .*, and no model; .* merged in: set model.name=.*/hf$"
    ):
        load_pretrained(str(inside))
    alone = inside.rename(tmp_path / "alone")
    with pytest.raises(ValueError, match="alone: it is an adapter of .*merge_and_unload"):
        load_pretrained(str(alone))
    assert load_pretrained(str(tmp_path / "hf")).adapters is None


@pytest.mark.parametrize("lora", [None, LoRA(r=2)])
def test_the_export_may_have_another_precision(
    tiny_model_folder: Path, tmp_path: Path, lora: LoRA | None
) -> None:
    policy = load_pretrained(str(tiny_model_folder), export_dtype="bfloat16", lora=lora)
    before = {name: weight.clone() for name, weight in policy.network.named_parameters()}
    policy.save(tmp_path / "hf")
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["dtype"] == "bfloat16"
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    plain = AutoModelForCausalLM.from_pretrained(tiny_model_folder)
    assert exported.dtype == torch.bfloat16 and exported.state_dict().keys() == plain.state_dict().keys()
    for name, weight in plain.state_dict().items():
        assert torch.equal(exported.state_dict()[name], weight.to(torch.bfloat16)), name
    for name, weight in policy.network.named_parameters():  # the network in training is as before
        assert weight.dtype == torch.float32 and torch.equal(weight, before[name])
    with pytest.raises(ValueError, match="^export_dtype=int8 must be one of float32, bfloat16, float16"):
        load_pretrained(str(tiny_model_folder), export_dtype="int8")


def test_a_wrong_date_is_refused(tiny_model_folder: Path) -> None:
    with pytest.raises(ValueError, match="^date=tomorrow must be a date as YEAR-MONTH-DAY"):
        load_pretrained(str(tiny_model_folder), date="tomorrow")
    assert load_pretrained(str(tiny_model_folder), date="2024-02-29").date == "2024-02-29"


def test_saving_shows_no_progress_bar_in_a_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub.utils import enable_progress_bars
    from transformers.utils import logging as transformers_logging

    policy = load_nano()
    monkeypatch.setattr(transformers_logging, "_tqdm_active", True)
    enable_progress_bars()
    policy.save(tmp_path)
    assert capfd.readouterr().err == ""
    assert transformers_logging.is_progress_bar_enabled()
