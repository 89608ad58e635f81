"""Characters that a byte-level vocabulary lacks: found, counted and named."""

from __future__ import annotations

import json
import shlex
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lit_agentrl.callbacks.rollout import RolloutCallback
from lit_agentrl.cli.evaluate import main as main_evaluate
from lit_agentrl.cli.train import main as main_train
from lit_agentrl.data.conversations import Reader
from lit_agentrl.episode import Episode
from lit_agentrl.models.policy import read_shipped_template
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.lost_characters import count_lost, find_missing_bytes
from lit_agentrl.text.token_bytes import BYTE_OF_CHAR
from tests.conftest import nano_tokenizer

LACKING = b"\x04#\xa9"  # a control character, the wall of Sokoban, the end of é and of other characters


@lru_cache
def make_lossy(lacking: bytes = LACKING) -> PreTrainedTokenizerBase:
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    letters = [char for char, byte in BYTE_OF_CHAR.items() if byte not in lacking]
    tokenizer = Tokenizer(models.BPE({token: k for k, token in enumerate([*specials, *letters])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|endoftext|>", unk_token="<|endoftext|>"
    )
    fast.chat_template = read_shipped_template("append_only_chatml")
    return fast


@given(st.text(st.one_of(st.sampled_from("#é\x04ab"), st.characters(exclude_categories=["Cs"])), max_size=8))
@settings(max_examples=80)
def test_a_character_is_lost_where_encoding_does_not_return_it(text: str) -> None:
    for tokenizer in (make_lossy(), make_lossy(b"")):
        returned = [
            char
            for char in text
            if tokenizer.decode(tokenizer.backend_tokenizer.encode(char, add_special_tokens=False).ids)
            != char
        ]
        assert sorted(count_lost(tokenizer, [text]).elements()) == sorted(returned)


def test_other_tokenizers_lose_nothing_in_silence(bpe: PreTrainedTokenizerBase) -> None:
    assert find_missing_bytes(make_lossy()) == LACKING
    assert find_missing_bytes(bpe) == find_missing_bytes(nano_tokenizer()) == b""


def test_rows_that_lose_characters_are_counted(tmp_path: Path) -> None:
    reader = Reader(ChatRenderer(make_lossy()), 200)
    reader.make_episode([{"role": "user", "content": "a # and"}], [{"role": "assistant", "content": "é#"}])
    assert reader.lost == {"#": 2, "é": 1}
    reader.make_stepwise_episode([{"role": "user", "content": "a"}], ["b", "#"], "\n")
    assert reader.lost == {"#": 3, "é": 1} and not reader.markers


@pytest.fixture(scope="module")
def lossy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, tokenizer = tmp_path_factory.mktemp("lossy"), make_lossy()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_rollouts_and_evaluations_say_what_is_lost(
    lossy_model: Path, in_empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = f"model=hf model.name={lossy_model} prompt=bare rollout.max_reply_tokens=4"
    main_evaluate(shlex.split(f"{model} env=sokoban episodes=2"))
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "prompts of sokoban hold" in said
        and "that the tokenizer has no tokens for, and drops: U+0023 (" in said
    )
    options = "rollout.prompts=1 rollout.members=2 trainer.max_epochs=1 val.episodes=1 test.episodes=0"
    with pytest.warns(UserWarning, match="lost_characters") as warned:
        main_train(shlex.split(f"{model} env=sokoban {options} hydra.run.dir=run trainer.accelerator=cpu"))
    assert sum("(val/lost_characters); remove them" in str(each.message) for each in warned) == 1
    header, _, row = Path("run/metrics.csv").read_text().splitlines()
    cells = dict(zip(header.split(","), row.split(","), strict=True))
    assert float(cells["rollout/lost_characters"]) > 10 and float(cells["val/lost_characters"]) > 10


@pytest.mark.slow
def test_data_says_which_rows_lose_characters_or_spell_markers(
    lossy_model: Path, in_empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["fine", "a # and #", "<|im_end|>\n<|im_start|>user", "also fine"]
    rows = [
        {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "b"}]}
        for text in texts
    ]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = "data.batch=2 trainer.max_epochs=1 trainer.accelerator=cpu val.episodes=1 test.episodes=0"
    model = f"model=hf model.name={lossy_model} env=bandit hydra.run.dir=run"
    main_train(shlex.split(f"algo=sft data=demonstrations data.path=rows.jsonl {model} {options}"))
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "1 of 4 rows hold 2 characters that the tokenizer has no tokens for, and drops: U+0023 (2 times)"
        in said
    )
    assert "the first: rows.jsonl line 2; remove them" in said
    assert "1 of 4 rows spell markers of the chat template ('<|im_end|>', '<|im_start|>')" in said
    assert "the first: rows.jsonl line 3; write roles" in said


def test_a_run_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    player: Any = SimpleNamespace(settings=None)
    callback = RolloutCallback(player, player, val=player, test=player)
    agent: Any = SimpleNamespace(policy=SimpleNamespace(tokenizer=make_lossy()))
    episode = Episode(0, 0, 0, 0, "sokoban", 0, opening=[{"role": "user", "content": "##"}], num_lost=2)
    batch: Any = SimpleNamespace(episodes=[episode])
    with pytest.warns(UserWarning, match=r"U\+0023 \(2 times\) \(val/lost_characters\)"):
        callback._warn_of_lost_characters("val", agent, batch)
    callback._warn_of_lost_characters("val", agent, batch)  # a second warning would be an error of the test
