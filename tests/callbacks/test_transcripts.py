"""Episodes as JSON lines and as Markdown that no policy text can break."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.plugin_util import markdown_to_safe_html
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lit_agentrl.callbacks.markup import (
    clean,
    decode_forced,
    format_code_block,
    format_code_span,
    format_episode,
    split_reply,
)
from lit_agentrl.callbacks.token_notes import UpdateNotes, list_texts
from lit_agentrl.callbacks.transcript_lines import from_line, read, to_line
from lit_agentrl.callbacks.transcripts import Transcripts, pick
from lit_agentrl.episode import Episode, Segment
from lit_agentrl.rollout.pack import pack

Make = Callable[..., Episode]


def who(episodes: list[Episode]) -> list[tuple[int, int]]:
    return [(e.group, e.member) for e in episodes]


def test_picks_first_members_of_first_groups_in_any_order_of_arrival(make_episode: Make) -> None:
    episodes = [make_episode(g, m, success=(g + m) % 2 == 0) for g in range(8) for m in range(4)]
    random.Random(0).shuffle(episodes)
    assert who(pick(episodes, 4)) == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert len(pick(episodes, 99)) == 32 and pick([], 4) == []


@pytest.mark.parametrize("rare", [True, False])
def test_the_only_success_or_failure_is_among_them(make_episode: Make, rare: bool) -> None:
    episodes = [make_episode(g, m, success=((g, m) == (5, 2)) == rare) for g in range(8) for m in range(4)]
    assert who(pick(episodes, 3)) == [(0, 0), (1, 0), (5, 2)]
    assert who(pick(episodes, 1)) == [(0, 0)]
    uniform = [e for e in episodes if e.success != rare]
    assert who(pick(uniform, 3)) == [(0, 0), (1, 0), (2, 0)]


def test_a_line_holds_all_of_an_episode(make_episode: Make) -> None:
    episode = make_episode(3, 1, error="boom\nline", wave=2, num_prefilled=17)
    episode.turns[0].reply_text = "\udcff\u2028\x00 é"
    episode.turns[0].reward_parts = {"step": -0.1}
    line = to_line(episode, 5, "train")
    assert line.count("\n") == 1 and line.isascii()
    assert from_line(line) == (5, episode)
    plain = json.loads(line)
    assert plain["iteration"] == 5 and plain["split"] == "train"
    assert plain["episode"]["end"] == "TURN_LIMIT" and plain["episode"]["turns"][0]["finish"] == "LENGTH"


def test_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="schema 2"):
        from_line('{"schema": 2}')


def test_rewind_drops_later_and_broken_lines_and_tells(
    tmp_path: Path, make_episode: Make, caplog: pytest.LogCaptureFixture
) -> None:
    transcripts, path = Transcripts(tmp_path), tmp_path / "train.jsonl"
    lines = [to_line(make_episode(i), i, "train") for i in range(4)]
    path.write_text("".join(lines) + '{"schema": 1, "it')
    assert len(list(read(path))) == 4
    transcripts.rewind(2)
    assert path.read_text() == "".join(lines[:3]) and len(caplog.messages) == 1
    (tmp_path / "train.jsonl.tmp").write_text("half")
    transcripts.rewind(2)
    assert path.read_text() == "".join(lines[:3]) and len(caplog.messages) == 1
    assert {file.name for file in tmp_path.iterdir()} == {"train.jsonl"}
    path.write_bytes((lines[0] + lines[1][:30] + lines[1]).encode() + b"\xff\x00\n" + lines[2].encode())
    transcripts.rewind(9)  # an earlier version wrote on behind a torn line
    assert path.read_text() == lines[0] + lines[2] and len(caplog.messages) == 2
    transcripts.rewind(-1)
    assert path.read_text() == ""


def test_an_episode_reads_turn_by_turn_with_its_roles(make_episode: Make) -> None:
    episode = make_episode(2, 1, success=True)
    episode.turns[0].problem, episode.turns[0].num_surplus_actions = "no_think", 3
    text = format_episode(episode, decode=lambda ids: f"<forced {ids}>")
    expected = [
        "### `sokoban` group 2, member 1: success", "**return** +1.5", "**end** success", "#### turn 1",
        "**observation**\n\n```\nP _\n_ O\n```", "**forced**\n\n```\n<forced [3]>\n```",
        "**think**\n\n```\n<think>a wall</think>\n```", "**answer**\n\n```\n<answer>Up</answer>\n```",
        "**reward** +1.5", "**actions** `Up`", "**surplus actions** 3", "**problem** `no_think`",
        "**reply ended by** length",
    ]  # fmt: skip
    positions = [text.index(part) for part in expected]
    assert positions == sorted(positions)
    html = markdown_to_safe_html(text)
    assert html.count("<pre><code>") == 4 and "P _\n_ O" in html  # the board keeps its lines


def test_what_a_turn_is_trained_on_is_shown_where_there_are_reward_parts(make_episode: Make) -> None:
    episode = make_episode(success=True)
    assert "trained on" not in format_episode(episode)
    episode.turns[0].shaping, episode.turns[0].shaped_reward = (
        {"format": 0.1, "caps": 0.0, "count": -0.2},
        1.4,
    )
    line = "**reward** +1.5 · **trained on** +1.4 (format +0.1, count -0.2) · **actions** `Up`"
    assert line in format_episode(episode)
    _, again = from_line(to_line(episode, 1, "train"))
    assert again.turns == episode.turns


def test_forced_tokens_are_counted_without_a_tokenizer(make_episode: Make) -> None:
    assert decode_forced(make_episode().turns[0], None) == "(1 tokens)"


def test_replies_are_split_where_the_parser_splits_them(make_episode: Make) -> None:
    turn = make_episode().turns[0]
    turn.reply_segments = []
    turn.reply_text = "well <think>a</think>, <answer>Up</answer> done"
    assert [p for p in split_reply(turn) if p[1]] == [
        ("other", "well "), ("think", "<think>a</think>"), ("other", ", "),
        ("answer", "<answer>Up</answer>"), ("other", " done"),
    ]  # fmt: skip
    turn.reply_text, turn.reply_segments = "cut off while thin", [Segment.THINK] * 3
    assert [p for p in split_reply(turn) if p[1]] == [("think", "cut off while thin")]


def test_a_prompt_of_its_own_is_shown_as_it_was_read(make_episode: Make) -> None:
    episode = make_episode()
    later = make_episode().turns[0]
    later.starts_row, later.prefix_tokens = True, [1, 9, 9, 3]
    episode.turns.append(later)
    first, second = format_episode(episode, decode=lambda ids: f"<{ids}>").split("#### turn 2")
    assert "**observation**" in first and "**prompt**" not in first
    assert "**prompt**\n\n```\n<[1, 9, 9, 3]>\n```" in second and "**observation**" not in second
    assert "**prompt**\n\n```\n(4 tokens)\n```" in format_episode(episode)
    assert from_line(to_line(episode, 1, "train")) == (1, episode)


def test_notes_of_an_update_are_those_of_the_sampled_tokens(make_episode: Make) -> None:
    """Two turns in one row, a longer row beside it, a token that a mask leaves out, and an episode that was removed."""
    two, other, removed = make_episode(0, 0), make_episode(0, 1), make_episode(1, 0)
    two.turns.append(make_episode().turns[0])
    two.turns[1].prefix_tokens, two.turns[1].prefix_segments = [7], [Segment.OBSERVATION]
    two.turns[1].reply_tokens = [8, 9, 9]
    two.turns[1].reply_segments = two.turns[1].reply_logps = two.turns[1].reply_entropies = [0] * 3
    rows = pack([two, other]).to_dict()
    notes = UpdateNotes()
    advantage_BT = torch.arange(rows["tokens_BT"].numel()).view_as(rows["tokens_BT"]) / 3
    kept_BT = rows["tokens_BT"] != 8
    notes.keep({**rows, "advantage_BT": advantage_BT, "is_kept_BT": kept_BT})
    width = rows["tokens_BT"].shape[1]
    assert notes.describe(two) == {
        "trained": [[1, 1], [0, 1, 1]], "advantages": [[1.0, 1.33333], [2.0, 2.33333, 2.66667]],
    }  # fmt: skip
    expected = [float(f"{(width + i) / 3:.6g}") for i in (3, 4)]
    assert notes.describe(other) == {"trained": [[1, 1]], "advantages": [expected]}
    assert notes.describe(removed) == {"trained": [[0, 0]], "advantages": [[]]}
    notes.keep(rows)
    assert notes.describe(two) == {"trained": [[1, 1], [1, 1, 1]], "advantages": None}
    notes.clear()  # no step was taken
    assert notes.describe(two) == {"trained": [[0, 0], [0, 0, 0]], "advantages": None}


def test_texts_of_tokens_are_those_of_the_tokenizer(make_episode: Make) -> None:
    vocabulary = {char: number for number, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    ids = tokenizer.encode("é <b>")
    episode = make_episode()
    episode.turns[0].prefix_tokens, episode.turns[0].reply_tokens = ids[:1], ids[1:]
    texts = list_texts(episode, tokenizer)
    assert [texts[str(token)] for token in ids] == ["\\xc3", "\\xa9", " ", "<", "b", ">"]


NASTY = st.text(
    alphabet=st.sampled_from("`~ \n\t<>&#*[]()_-=|\\!\"'ab\r\x00\x02\x1b\u2028\udcff"), max_size=60
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(texts=st.lists(NASTY, min_size=4, max_size=4))
def test_no_text_of_a_policy_breaks_the_markup(make_episode: Make, texts: list[str]) -> None:
    episode = make_episode(task_name=texts[0], error="e" + texts[1])
    turn = episode.turns[0]
    turn.observation, turn.reply_text = "o" + texts[1], "r" + texts[2]
    turn.actions, turn.problem = ["a" + texts[3]], "p" + texts[0]
    html = markdown_to_safe_html(format_episode(episode))
    # blocks: observation, forced count, and the reply as one piece, since it has no whole tag
    assert html.count("<pre><code>") == html.count("</code></pre>") == 3
    shown = "".join(unescape(html).split())
    for text in (turn.observation, turn.reply_text):
        assert "<code>" + "".join(clean(text).split()) + "</code></pre>" in shown
    assert html.count("<strong>") == html.count("</strong>") == 12
    assert not set("\x00\x02\x1b\r") & set(html)
    html.encode("utf-8")


@pytest.mark.parametrize(
    "attack",
    [
        "```\n# pwned\n```", "````\n# pwned", "<script>alert(1)</script>", "~~~\n# pwned\n~~~",
        "\x02wzxhzdk:0\x03", "![x](http://x/y.png)", "</code></pre><h1>pwned</h1>",
    ],
)  # fmt: skip
def test_known_attacks_stay_text(attack: str) -> None:
    html = markdown_to_safe_html(f"{format_code_block(attack)}\n\n{format_code_span(attack)}\n\nafter")
    assert "<h1" not in html and "<img" not in html and "<script" not in html
    assert html.count("<pre>") == 1 and html.rstrip().endswith("<p>after</p>")


@pytest.mark.parametrize("option", ["every", "episodes"])
def test_wrong_options_are_named(option: str) -> None:
    with pytest.raises(ValueError, match=rf"^{option}=0 must be"):
        Transcripts("x", **{option: 0})


def test_each_game_of_a_validation_is_shown_once_each_time(tmp_path: Path, make_episode: Make) -> None:
    shown: list[tuple[str, int]] = []
    writer = SimpleNamespace(add_text=lambda tag, text, step: shown.append((tag, step)))
    trainer: Any = SimpleNamespace(
        current_epoch=4, is_global_zero=True, loggers=[SimpleNamespace(experiment=writer)],
        state=SimpleNamespace(fn="validate"), ckpt_path=None,
    )  # fmt: skip

    def batch_of(episodes: list[Episode]) -> Any:
        return SimpleNamespace(episodes=episodes, outcomes=[each.outcome for each in episodes])

    mixed = batch_of([make_episode(g, task_name=name) for g in range(3) for name in "ba"])
    other = batch_of([make_episode(task_name=name) for name in "ac"])
    callback = Transcripts(tmp_path, episodes=2)
    for fn in ("validate", "fit"):
        trainer.state.fn = fn
        callback.on_validation_start(trainer, SimpleNamespace())
        for batch_idx, batch in enumerate((mixed, mixed, other)):
            callback.on_validation_batch_end(trainer, SimpleNamespace(), None, batch, batch_idx)
    tags = [f"transcripts/val/{name}" for name in "abc"]
    assert shown == [(tag, 4) for tag in tags] + [(tag, 5) for tag in tags]
    names = [(iteration, e.task_name) for iteration, e in read(tmp_path / "val.jsonl")]
    assert names == [(i, name) for i in (4, 5) for name in "aabbc"]
    # the last weights, validated once more when training has ended; then the best ones, of another iteration
    before = (tmp_path / "val.jsonl").read_text()
    trainer.current_epoch, trainer.state.fn, shown[:] = 5, "validate", []
    later = Transcripts(tmp_path, episodes=2)  # of a launch that resumes
    for again, path in ((callback, None), (later, None), (later, "best.ckpt")):
        trainer.ckpt_path = path
        again.on_validation_start(trainer, SimpleNamespace())
        again.on_validation_batch_end(trainer, SimpleNamespace(), None, mixed, 0)
    assert not shown and (tmp_path / "val.jsonl").read_text() == before
    changed = batch_of([make_episode(9, task_name="a")])  # as a kill left it: not the whole of it
    trainer.ckpt_path = None
    later.on_validation_start(trainer, SimpleNamespace())
    later.on_validation_batch_end(trainer, SimpleNamespace(), None, changed, 0)
    names = [(iteration, e.task_name, e.group) for iteration, e in read(tmp_path / "val.jsonl")]
    assert names[5:] == [(5, "b", 0), (5, "b", 1), (5, "c", 0), (5, "a", 9)] and len(shown) == 1
