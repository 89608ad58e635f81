"""A pretrained model from the package index: its tokenizer in the ledger, and every command with it."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from lit_agentrl.cli.collect import main as main_collect
from lit_agentrl.cli.evaluate import main as main_evaluate
from lit_agentrl.cli.train import main as main_train
from lit_agentrl.data.episodes import open_folder
from lit_agentrl.models.packages import fetch
from lit_agentrl.models.pretrained import load_tokenizer
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.ledger import check_ledger, reply_segments
from lit_agentrl.text.lost_characters import count_lost, find_missing_bytes

pytestmark = pytest.mark.slow
MARKERS = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|im_end|>\n<|im_start|>assistant\n",
    "<repo_name>",
]
LACKING = b"\x04\x06\x13\x14\x16\x1d\xf1\xf2"  # bytes without a token
texts = st.lists(
    st.one_of(st.sampled_from([*MARKERS, "<answer>", "</answer>", " Up", "\n"]), st.text(max_size=6)),
    max_size=6,
).map(lambda parts: "".join(parts).encode(errors="ignore").decode())


@pytest.fixture(scope="module")
def folder() -> Path:
    pytest.importorskip("gguf", reason="needs gguf; pip install 'lit-agentrl[gguf]'")
    try:
        return fetch("smollm2")
    except ValueError as error:
        if "could not be downloaded" in str(error):
            pytest.skip(f"SmolLM2 cannot be fetched here: {error}")
        raise


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    return load_tokenizer(str(folder))


def test_the_folder_says_what_it_is(folder: Path) -> None:
    about = json.loads((folder / "source.json").read_text())
    assert about["license"] == "Apache-2.0" and "rounded to 4 bits" in about["note"]
    assert "Apache License" in (folder / "LICENSE").read_text()
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())


@given(texts, texts, texts)
@settings(max_examples=60)
def test_markers_from_outside_never_act(
    tokenizer: PreTrainedTokenizerBase, system: str, user: str, later: str
) -> None:
    chat = ChatRenderer(tokenizer)
    special = set(tokenizer.added_tokens_decoder)
    reply = [*chat.encode("<answer>Up</answer>"), *chat.end_of_turn_ids[:1]]
    opening = chat.render_opening([{"role": "system", "content": system}, {"role": "user", "content": user}])
    between = chat.render_next(later, last_reply=reply)
    start, end = (tokenizer.convert_tokens_to_ids(marker) for marker in MARKERS[:2])
    assert [token for token in opening.tokens if token in special] == [start, end, start, end, start]
    assert [token for token in between.tokens if token in special] == [start, end, start]
    assert chat.end_of_turn_ids == (end,)
    assert not special & set(chat.encode(user))


characters = st.characters(exclude_categories=["Cs"], exclude_characters="<|")
known = characters.filter(lambda char: not set(LACKING) & set(char.encode()))


def test_it_lacks_six_control_characters_and_unassigned_planes(tokenizer: PreTrainedTokenizerBase) -> None:
    assert find_missing_bytes(tokenizer) == LACKING


@given(st.text(st.one_of(characters, st.sampled_from("\x04\x1d\U00040000\U000bffff")), max_size=20))
@settings(max_examples=100)
def test_what_it_loses_is_counted(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    chat = ChatRenderer(tokenizer)
    lost = count_lost(tokenizer, [text])
    assert lost.keys() == {char for char in text if chat.decode(chat.encode(char)) != char}
    if not lost:
        assert chat.decode(chat.encode(text)) == text


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=3), texts)
@settings(max_examples=60)
def test_the_text_of_an_episode_is_what_games_and_replies_wrote(
    tokenizer: PreTrainedTokenizerBase, turns: list[tuple[str, str]], system: str
) -> None:
    """Also where they spell the markers of the template, of which none acts; nothing is broken up by a space."""
    chat = ChatRenderer(tokenizer)
    start, end = (tokenizer.convert_tokens_to_ids(marker) for marker in MARKERS[:2])
    turns = [(shown, reply) for shown, reply in turns if not count_lost(tokenizer, [shown, reply, system])]
    prefix = chat.render_opening([{"role": "system", "content": system}, {"role": "user", "content": "go"}])
    tokens, broken = list(prefix.tokens), prefix.broken
    written = (
        f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n"
    )
    for shown, text in turns:
        reply = [*chat.encode(text), end]
        between = chat.render_next(shown, last_reply=reply)
        assert len(between.tokens) == len(between.segments)
        tokens += [*reply, *between.tokens]
        broken += between.broken
        written += f"{text}<|im_end|>\n<|im_start|>user\n{shown}<|im_end|>\n<|im_start|>assistant\n"
    if not count_lost(tokenizer, [system]):
        assert chat.decode(tokens) == written
    assert not broken
    assert sum(token in (start, end) for token in tokens) == 5 + 4 * len(turns)


@given(st.text(known, min_size=1, max_size=30))
@settings(max_examples=60)
def test_the_ledger_is_the_rendering_and_the_answer_tag_stops(
    tokenizer: PreTrainedTokenizerBase, text: str
) -> None:
    chat = ChatRenderer(tokenizer)
    answer = f"<answer>{text}</answer>"
    dialogue = [
        {"role": "user", "content": text}, {"role": "assistant", "content": answer}, {"role": "user", "content": "go"},
    ]  # fmt: skip
    reply = chat.encode(answer)
    ledger = [
        *chat.render_opening(dialogue[:1]).tokens,
        *reply,
        *chat.render_next("go", last_reply=reply).tokens,
    ]
    expected = tokenizer.apply_chat_template(dialogue, tokenize=False, add_generation_prompt=True)
    assert chat.decode(ledger) == expected
    assert len(reply_segments(tokenizer, reply, forced_think=False)) == len(reply)
    rule, state, is_complete = chat.dialect.stop(tokenizer), "", False
    for place, token in enumerate(reply):
        assert not is_complete, (place, chat.decode(reply[:place]))
        state, is_complete = rule.update(state, token)
    assert is_complete


def test_every_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = "env=bandit prompt=bare rollout.max_reply_tokens=16 rollout.max_context_tokens=192"
    best, sft, grpo = tmp_path / "best", tmp_path / "sft", tmp_path / "grpo"
    main_collect(
        shlex.split(
            "model=smollm2 env=bandit prompt=bare rollout.max_context_tokens=192 plays=best members=1 episodes=8 "
            f"out={best}"
        )
    )
    recorded = open_folder(best)
    assert recorded is not None and recorded.described["tokenizer_made_with"]["name"] == "smollm2"
    assert all(episode.success for episode in recorded.read())
    common = "val.episodes=2 test.episodes=0 engine.num_slots=4 callbacks.transcripts=null"
    main_train(
        shlex.split(
            f"algo=sft data=demonstrations data.path={best} data.batch=8 model=smollm2 {limits} {common} optim.lr=1e-4 "
            f"trainer.max_epochs=1 hydra.run.dir={sft}"
        )
    )
    started = (
        f"algo=grpo model=hf model.name={sft / 'hf'} {limits} {common} rollout.prompts=2 rollout.members=2"
    )
    main_train(shlex.split(f"{started} optim.lr=1e-6 trainer.max_epochs=1 hydra.run.dir={grpo}"))
    main_train([f"resume={grpo}", "trainer.max_epochs=2"])
    with (grpo / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["iteration"] for row in rows] == ["0", "1", "2"]
    assert all(float(row["train/logp_gap_max"]) < 1e-3 for row in rows[1:])  # nats
    capsys.readouterr()
    main_evaluate([f"run={grpo}", "episodes=2"])
    assert "bandit" in capsys.readouterr().out
    main_collect([f"run={grpo}", "episodes=2", "members=1", f"out={tmp_path / 'played'}"])
    played = open_folder(tmp_path / "played")
    assert played is not None and len(episodes := list(played.read())) == 2
    for episode in episodes:
        check_ledger(episode)
    exported = AutoModelForCausalLM.from_pretrained(grpo / "hf")
    assert exported.config.num_hidden_layers == 30
    assert load_tokenizer(str(grpo / "hf")).get_vocab() == load_tokenizer(str(folder)).get_vocab()
