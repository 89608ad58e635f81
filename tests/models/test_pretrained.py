"""Models of others: what cannot be trained is refused in one line, and nothing of it is run; and their export."""

from __future__ import annotations

import json
import logging
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi
from safetensors.torch import load_file, save_file
from transformers import AutoModel, BertConfig, BertForMaskedLM

from lit_agentrl.files import replace_folder
from lit_agentrl.models.policy import load_pretrained
from lit_agentrl.models.pretrained import is_causal, load_network
from tests.conftest import nano_tokenizer, tiny_network, tiny_policy


@pytest.fixture
def model(tiny_model_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model_folder, tmp_path / "model"))


def masked_lm(folder: Path) -> None:
    shutil.rmtree(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(nano_tokenizer()), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32,
    )  # fmt: skip
    BertForMaskedLM(config).save_pretrained(folder)
    nano_tokenizer().save_pretrained(folder)


def rewritten(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        file = folder / "model.safetensors"
        weights = load_file(file)
        change(weights)
        save_file(weights, file, metadata={"format": "pt"})

    return write


def cut_short(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def pointer(folder: Path) -> None:
    """What git leaves where large files were not fetched."""
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")


def own_code(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "mine",
        "auto_map": dict.fromkeys(("AutoConfig", "AutoModelForCausalLM"), "mine.Mine"),
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text("raise SystemExit('run')")


class Evil:
    def __reduce__(self) -> Any:
        return print, ("run",)


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"lm_head.weight": Evil()}, folder / "pytorch_model.bin")


BROKEN = [
    (masked_lm, "BertLMHeadModel is not causal"),
    (
        rewritten(lambda w: w.pop("lm_head.weight")),
        "1 of its weights are missing, such as lm_head.weight, and would",
    ),
    (
        rewritten(lambda w: w.update({"model.norm.weight": torch.ones(7)})),
        "1 of its weights are of another shape, such as model.norm.weight",
    ),
    (cut_short, "model.safetensors is damaged or incomplete"),
    (pointer, "model.safetensors is damaged or incomplete"),
    (own_code, "it contains its own code, which is not run"),
    (pickled, "its weights are a pickle of more than tensors, which is not read"),
    (lambda folder: (folder / "config.json").write_text("{"), "config.json is damaged"),
    (lambda folder: (folder / "tokenizer.json").write_text("{"), "tokenizer.json is damaged"),
]


@pytest.mark.parametrize(("damage", "reason"), BROKEN, ids=[reason for _, reason in BROKEN])
def test_a_model_that_cannot_be_trained(
    model: Path, damage: Callable[[Path], Any], reason: str, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def asked(*_: object) -> str:
        raise AssertionError("a question on the keyboard")

    monkeypatch.setattr("builtins.input", asked)
    damage(model)
    capfd.readouterr()
    with pytest.raises(ValueError, match=rf"^name={model} could not be loaded \(.*{reason}") as raised:
        load_pretrained(str(model))
    assert "\n" not in str(raised.value)
    assert capfd.readouterr() == ("", "") and not caplog.records


def test_a_hub_that_is_away_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: object, **__: object) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(HfApi, "model_info", away)
    with pytest.raises(
        ValueError, match=r"^name=no/such-model could not be loaded \(there is no such folder"
    ):
        load_pretrained("no/such-model")
    assert not caplog.records


def test_a_critic_of_its_own_kind_is_loaded_as_carefully(model: Path) -> None:
    load_network(AutoModel, str(model), torch.float32)  # its head is not needed
    masked_lm(model)
    with pytest.raises(ValueError, match="not causal"):
        load_network(AutoModel, str(model), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_causal_networks_are_seen_to_be(family: str, dtype: torch.dtype) -> None:
    assert is_causal(tiny_network(family).to(dtype))


def test_what_is_said_of_a_model_that_loads_is_let_out(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    rewritten(lambda weights: weights.update({"more.weight": torch.ones(1)}))(model)
    logger = logging.getLogger("transformers")
    before = logger.level
    logger.setLevel(logging.WARNING)  # the embedded policy, once loaded, turns it down
    try:
        load_pretrained(str(model))
    finally:
        logger.setLevel(before)
    assert "more.weight" in caplog.text


@pytest.mark.parametrize("what", ["weights", "tokenizer"])
def test_a_disk_that_fills_up_while_exporting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Both are written by libraries in Rust, with errors of their own."""
    policy = tiny_policy()
    if what == "tokenizer":
        monkeypatch.setattr(policy.network, "save_pretrained", lambda folder: None)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, most))
    try:
        with pytest.raises(OSError, match="File too large"):
            replace_folder(tmp_path / "hf", policy.save)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert not list(tmp_path.iterdir())
