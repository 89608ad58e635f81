from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lit_agentrl.episode import Episode, Segment, Turn
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.dialects.answer import ANSWER
from lit_agentrl.text.ledger import check_ledger, reply_segments
from lit_agentrl.text.token_bytes import get_token_pieces

T, A, X = int(Segment.THINK), int(Segment.ANSWER), int(Segment.OTHER)
PARTS = [
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
    "</ANSWER>",
    " || ",
    "Up",
    "wall ",
    "\n",
    "é日",
    "</",
    "answer>",
]
texts = st.lists(
    st.one_of(st.sampled_from(PARTS), st.text(st.characters(exclude_categories=["Cs"]), max_size=3)),
    max_size=10,
)
joined = texts.map("".join)


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def segment_of_text(
    tokenizer: PreTrainedTokenizerBase, text: str, forced: bool = False
) -> list[tuple[str, int]]:
    tokens = encode(tokenizer, text)
    segments = reply_segments(tokenizer, tokens, forced_think=forced)
    return list(zip([tokenizer.decode([token]) for token in tokens], segments, strict=True))


def text_of(pairs: list[tuple[str, int]], segment: int) -> str:
    return "".join(text for text, found in pairs if found == segment).replace(" ", "")


def test_blocks_with_their_tags(tokenizer: PreTrainedTokenizerBase) -> None:
    pairs = segment_of_text(tokenizer, "Up <think>wall</think> Down <answer>Up || Down</answer> Left")
    assert text_of(pairs, T) == "<think>wall</think>"
    assert text_of(pairs, A) == "<answer>Up||Down</answer>"
    assert text_of(pairs, X) == "UpDownLeft"


def test_forced_think_begins_inside_the_block(tokenizer: PreTrainedTokenizerBase) -> None:
    text = "wall</think> <answer>Up</answer>"
    assert text_of(segment_of_text(tokenizer, text, forced=True), T) == "wall</think>"
    truncated = segment_of_text(tokenizer, "wall wall", forced=True)
    assert {segment for _, segment in truncated} == {T}
    assert {segment for _, segment in segment_of_text(tokenizer, "wall wall")} == {X}


def test_unclosed_think_ends_where_the_answer_begins(tokenizer: PreTrainedTokenizerBase) -> None:
    pairs = segment_of_text(tokenizer, "<think>wall <answer>Up</answer>")
    assert text_of(pairs, T) == "<think>wall" and text_of(pairs, A) == "<answer>Up</answer>"


def test_token_of_two_blocks_belongs_to_the_first(bpe: PreTrainedTokenizerBase) -> None:
    pairs = dict(segment_of_text(bpe, "<think>a</think><answer>Up</answer>"))
    assert pairs["><"] == T and pairs["Up"] == A


@given(data=st.data(), forced=st.booleans())
@settings(max_examples=80, deadline=None)
def test_any_tokens_have_one_segment_each(
    tokenizer: PreTrainedTokenizerBase, data: st.DataObject, forced: bool
) -> None:
    tokens = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=30))
    segments = reply_segments(tokenizer, tokens, forced_think=forced)
    assert len(segments) == len(tokens) and set(segments) <= {T, A, X}


@given(
    before=st.text("wal ", max_size=8), inside=st.text("é日 w", max_size=8), after=st.text("wal", max_size=5)
)
@settings(max_examples=100, deadline=None)
def test_bytes_of_a_block_are_its_tokens(
    bpe: PreTrainedTokenizerBase, before: str, inside: str, after: str
) -> None:
    """Characters split over tokens: every token that touches the block is in it, and no other."""
    block = f"<answer>{inside}</answer>"
    tokens = encode(bpe, before + block + after)
    segments = reply_segments(bpe, tokens, forced_think=False)
    start, end = len(before.encode()), len((before + block).encode())
    position = 0
    for token, segment in zip(tokens, segments, strict=True):
        size = len(get_token_pieces(bpe)(token))
        assert (segment == A) == (position < end and position + size > start)
        position += size


def naive_stop(tokenizer: PreTrainedTokenizerBase, tokens: list[int]) -> int | None:
    """Number of tokens after which the decoded text first holds the tag."""
    for end in range(1, len(tokens) + 1):
        text = tokenizer.decode(tokens[:end], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if re.search("</answer>", text, re.IGNORECASE | re.ASCII):
            return end
    return None


def our_stop(tokenizer: PreTrainedTokenizerBase, tokens: list[int]) -> int | None:
    detector, state = ANSWER.stop(tokenizer), ""
    for end, token in enumerate(tokens, start=1):
        state, is_done = detector.update(state, token)
        assert len(state) < len("</answer>")
        if is_done:
            return end
    return None


@pytest.mark.parametrize("text", ["<answer>Up</answer>", "Up </answer>\nDown", "</ANSWER>", "</answer", "Up"])
def test_stop_on_plain_replies(bpe: PreTrainedTokenizerBase, text: str) -> None:
    tokens = encode(bpe, text)
    found = our_stop(bpe, tokens)
    assert found == naive_stop(bpe, tokens)
    assert (found is None) == ("</answer>" not in text.lower())


def test_stop_where_the_tag_is_one_token(nano: PreTrainedTokenizerBase) -> None:
    tokens = encode(nano, "<answer>Up</answer>Down")
    assert our_stop(nano, tokens) == 3


def test_stop_once_per_tag(tokenizer: PreTrainedTokenizerBase) -> None:
    detector, state, stops = ANSWER.stop(tokenizer), "", 0
    for token in encode(tokenizer, "</answer>Up Up</answer>Down"):
        state, is_done = detector.update(state, token)
        stops += is_done
    assert stops == 2


def test_words_joined_by_spaces_make_no_tag() -> None:
    words = {"<unk>": 0, "</": 1, "answer>": 2, "</answer>": 3}
    split = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<unk>")))
    assert split.decode([1, 2]) == "</ answer>"
    assert our_stop(split, [1, 2]) is None and our_stop(split, [1, 2, 3]) == 3


def test_sentencepiece_style_bytes_and_spaces() -> None:
    words = {"<unk>": 0, "▁a": 1, "</ans": 2, "wer>": 3, "<0xC3>": 4, "<0xA9>": 5, "▁": 6}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    pieces = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    assert our_stop(pieces, [1, 4, 5, 2, 3]) == 5
    assert our_stop(pieces, [2, 6, 3]) is None
    assert b"".join(get_token_pieces(pieces)(token) for token in (1, 4, 5, 1)) == " aé a".encode()


@given(data=st.data(), text=joined)
@settings(max_examples=150, deadline=None)
def test_stop_agrees_with_decoding_everything(
    tokenizer: PreTrainedTokenizerBase, data: st.DataObject, text: str
) -> None:
    tokens = encode(tokenizer, text)
    noise = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=4))
    cut = data.draw(st.integers(0, len(tokens)))
    mixed = [*tokens[:cut], *noise, *tokens[cut:]]
    assert our_stop(tokenizer, mixed) == naive_stop(tokenizer, mixed)


@given(text=joined)
@settings(max_examples=100, deadline=None)
def test_byte_pieces_join_to_the_text(bpe: PreTrainedTokenizerBase, text: str) -> None:
    assert b"".join(get_token_pieces(bpe)(token) for token in encode(bpe, text)) == text.encode()


def test_added_tokens_outside_the_byte_alphabet_are_plain_text(bpe: PreTrainedTokenizerBase) -> None:
    import copy

    clone = copy.deepcopy(bpe)
    clone.add_special_tokens({"pad_token": "<a 日>"})
    assert get_token_pieces(clone)(clone.pad_token_id) == "<a 日>".encode()


def test_ids_beyond_the_vocabulary_have_no_text(tokenizer: PreTrainedTokenizerBase) -> None:
    assert get_token_pieces(tokenizer)(len(tokenizer) + 7) == b""
    tokens = [*encode(tokenizer, "<answer>Up"), len(tokenizer) + 7, *encode(tokenizer, "</answer>")]
    assert set(reply_segments(tokenizer, tokens, forced_think=False)) == {A}


def episode(**changes: Any) -> Episode:
    values: dict[str, Any] = {
        "observation": "P",
        "prefix_tokens": [1, 2, 3],
        "prefix_segments": [int(Segment.PROMPT), int(Segment.OBSERVATION), int(Segment.FORCED)],
        "reply_tokens": [4, 5, 6],
        "reply_segments": [T, A, X],
        "reply_logps": [-0.5, 0.0, -30.0],
        "reply_entropies": [0.7, 0.0, 2.0],
    }
    good = Turn(**values)
    bad = Turn(**(values | changes))
    return Episode(iteration=0, group=3, member=1, task=0, task_name="g", instance_seed=0, turns=[good, bad])


def test_good_ledger_passes() -> None:
    check_ledger(episode())
    check_ledger(episode(reply_tokens=[], reply_segments=[], reply_logps=[], reply_entropies=[]))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"reply_segments": [T]}, "reply_segments has 1 entries for 3 reply_tokens"),
        ({"reply_logps": [-1.0] * 4}, "reply_logps has 4 entries"),
        ({"reply_entropies": []}, "reply_entropies has 0 entries"),
        ({"prefix_segments": [0]}, "prefix_segments has 1 entries for 3 prefix_tokens"),
        ({"prefix_tokens": [], "prefix_segments": []}, "prefix_tokens is empty"),
        ({"prefix_segments": [0, 0, T]}, "prefix_segments must be"),
        ({"reply_segments": [T, A, int(Segment.FORCED)]}, "reply_segments must be"),
        ({"prefix_tokens": [1, 2, -3]}, "token ids must not be negative, got -3"),
        ({"reply_logps": [-1.0, -1.0, math.nan]}, "reply_logps must be finite and at most 0, got nan"),
        ({"reply_logps": [-1.0, -math.inf, -1.0]}, "reply_logps must be finite"),
        ({"reply_logps": [-1.0, 0.01, -1.0]}, "reply_logps must be finite and at most 0, got 0.01"),
        ({"reply_entropies": [1.0, -0.1, 1.0]}, "reply_entropies must be finite and at least 0"),
    ],
)
def test_broken_ledger_is_named(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=f"group 3 member 1 turn 1: .*{match}"):
        check_ledger(episode(**changes))


def test_the_documented_episode(nano: PreTrainedTokenizerBase) -> None:
    """The worked example of docs/formats.md."""
    renderer = ChatRenderer(nano)
    first = renderer.render_opening([{"role": "user", "content": "sokoban\nturns 5 actions 10\n# P"}])
    reply = encode(nano, "<think>wall Left</think><answer>Up || Right</answer>")
    second = renderer.render_next("reward -0.2\nturns 4 actions 8\n# S", last_reply=reply)
    segments = [
        [Segment.PROMPT] * 12 + [Segment.FORCED],
        [Segment.THINK] * 4 + [Segment.ANSWER] * 5,
        [Segment.FORCED] + [Segment.OBSERVATION] * 15 + [Segment.FORCED],
    ]
    found = [first.segments, reply_segments(nano, reply, forced_think=False), second.segments]
    assert found == [[int(segment) for segment in row] for row in segments]
    assert [nano.decode([t]) for t in second.tokens[:3]] == ["<|end|>", "<|user|>", "reward"]
