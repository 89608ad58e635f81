"""Rewards of sentences: worked tokens, any text against a reader of single bytes, and what each token is paid."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_agentrl.episode import Episode
from lit_agentrl.experimental.sentences.part import Sentences, find_last_tokens, split_spans
from lit_agentrl.rewards.function import Function
from lit_agentrl.rewards.pipeline import RewardPipeline
from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.credit.advantages import mc_return
from lit_agentrl.rollout.pack import pack
from tests.conftest import nano_tokenizer
from tests.rewards.conftest import context, episode, turn

PATTERN = re.compile(Sentences.split)


def test_worked_tokens() -> None:
    text = "It is. No? \n\nEnd"
    spans = split_spans(text, PATTERN)
    assert [text[a:b] for a, b in spans] == ["It is. ", "No? \n\n", "End"]
    pieces = [b"It", b" is", b". N", b"o", b"? \n", b"\n", b"E", b"nd"]
    assert find_last_tokens([b for _, b in spans], text, pieces) == [2, 5, 7]
    assert split_spans("", PATTERN) == [] and split_spans(" . ", PATTERN) == [(0, 3)]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(["a", "é", ". ", "!", "\n", " ", "..", "b c"]), max_size=10).map("".join),
    st.lists(st.integers(0, 40), max_size=12),
)
def test_each_byte_has_one_sentence_which_ends_at_its_last_byte(text: str, cuts: list[int]) -> None:
    raw = text.encode()
    ends = [*sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    pieces = [raw[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    decoded = raw.decode("utf-8", "surrogateescape")
    spans = split_spans(decoded, PATTERN)
    assert "".join(decoded[a:b] for a, b in spans) == text
    token_of_byte = [k for k, piece in enumerate(pieces) for _ in piece]
    sizes = [len(decoded[:b].encode()) for _, b in spans]
    found = find_last_tokens([b for _, b in spans], decoded, pieces)
    assert found == [token_of_byte[size - 1] for size in sizes]
    # a reader of characters: an end is white space after a mark, a line end, or a mark at the end of the text
    closed, k = [], 0
    while k < len(text):
        after = k
        if text[k] in ".!?":
            while after < len(text) and text[after] in ".!?":
                after += 1
            mark = after
            while after < len(text) and text[after].isspace():
                after += 1
            if after == mark and after < len(text):
                k = after
                continue
        elif text[k] == "\n":
            while after < len(text) and text[after] == "\n":
                after += 1
        if after > k:
            closed.append(after)
        k = max(after, k + 1)
    expected = [end for end in sorted({*closed, len(text)} - {0})]
    kept = [
        end
        for start, end in zip([0, *expected], expected, strict=False)
        if start == 0 or text[start:end].strip()
    ]
    assert len(spans) == len(kept)


def make(fn: Any, **options: Any) -> Sentences:
    part = Sentences(fn=fn, **options)
    part.name = "sentences"
    part.setup(context())
    return part


def say(text: str) -> list[int]:
    ids: list[int] = nano_tokenizer()(text, add_special_tokens=False)["input_ids"]
    return ids


def play() -> list[Episode]:
    words = [say("Up\nDown\nLeft"), say("Up"), say("Down\nUp")]
    return [
        episode([turn(sampled=words[0], reward=1.0), turn(sampled=words[1], reward=0.5)], member=0),
        episode([turn(sampled=words[2])], member=1),
    ]


def rate(sentence: str, index: int) -> float:
    return {"Up": 1.0, "Down": -0.5, "Left": 0.25}[sentence] + 0.1 * index


def test_each_token_is_paid_for_its_sentence() -> None:
    episodes, heard = play(), []
    made = make(
        lambda sentence, index: heard.append(sentence) or rate(sentence, index), weight=2.0, split=r"\n"
    )
    pipeline = RewardPipeline({"sentences": made})
    pipeline.score(episodes, iteration=0)
    assert heard == ["Up", "Down", "Left", "Up", "Down", "Up"]
    # 1 - 0.4 + 0.45 = 1.05, times 2
    assert [each.shaped_reward for each in episodes[0].turns] == pytest.approx([1 + 2.1, 0.5 + 2.0])
    rows = pack(episodes)
    assert rows.reward_BT.sum(1).tolist() == pytest.approx([5.6, 2 * (-0.5 + 1.1)])
    paid = [round(x, 5) for x in rows.reward_BT[0].tolist() if x]
    assert paid == [2.0, -0.8, 1.9, 2.5]  # the game's reward stands at the end of its turn
    ends = rows.is_turn_end_BT[0].nonzero().flatten().tolist()
    assert [t for t, x in enumerate(rows.reward_BT[0].tolist()) if x][2:] == ends
    # each token sees its own sentence and the later ones alone
    columns = rows.to_dict()
    advantage_BT = bind(partial(mc_return, discount=1.0), columns).advantage_BT
    steps = columns["is_action_BT"][0].nonzero().flatten().tolist()
    expected = [sum(float(rows.reward_BT[0, k]) for k in steps if k >= t) for t in steps]
    assert advantage_BT[0, steps].tolist() == pytest.approx(expected)
    assert float(advantage_BT[0, steps[0]]) == pytest.approx(5.6)
    restored = [Episode.from_plain(json.loads(json.dumps(each.to_plain()))) for each in episodes]
    assert torch.equal(pack(restored).reward_BT, rows.reward_BT)
    # scored again after another wave: nothing is counted twice
    pipeline.score(episodes, iteration=0)
    assert torch.equal(pack(episodes).reward_BT, rows.reward_BT)


def test_a_later_part_changes_what_the_last_token_is_paid() -> None:
    episodes = play()
    parts = {"sentences": make(rate, split=r"\n"), "function": Function(fn=lambda turn: 10.0)}
    parts["function"].name = "function"
    RewardPipeline(parts).score(episodes, iteration=0)
    paid = [round(x, 5) for x in pack(episodes).reward_BT[0].tolist() if x]
    assert paid == [1.0, -0.4, 0.45 + 1.0 + 10.0, 1.0 + 0.5 + 10.0]


def test_bytes_that_are_no_text_are_read() -> None:
    made = make(lambda reply: float(len(reply)))
    made._get_piece = {1: b"\xff.", 2: b" a"}.__getitem__
    episodes = [episode([turn(sampled=[1, 2])])]
    assert made.score(episodes, iteration=0) == [[8.0]]
    assert made.places(episodes) == [[{1: 8.0}]]


class Misplaced(Sentences):
    def places(self, episodes: Any) -> Any:
        return [[{9: 1.0} for _ in each.turns] for each in episodes]


def test_wrong_options_are_one_line() -> None:
    with pytest.raises(ValueError, match="asks for world; it may ask for sentence, index, reply"):
        Sentences(fn=lambda world: 0.0)
    with pytest.raises(ValueError, match=r"split=\( is not a valid regular expression"):
        Sentences(fn=rate, split="(")
    with pytest.raises(ValueError, match="turn 1, sentence 2 .*KeyError.*mend the function"):
        make(lambda sentence: {"Up": 1.0}[sentence], split=r"\n").score(play(), iteration=0)
    made = Misplaced(fn=rate, split=r"\n")
    made.name = "sentences"
    made.setup(context())
    with pytest.raises(ValueError, match=r"reward.sentences pays token 9 of a reply of \d+ tokens"):
        RewardPipeline({"sentences": made}).score(play(), iteration=0)
