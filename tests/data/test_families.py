"""Rows under the chat templates of nine families: each reply stands in the prompt that the template renders for it."""

from __future__ import annotations

import copy
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lit_agentrl.data.conversations import Reader
from lit_agentrl.data.demonstrations import Demonstrations
from lit_agentrl.data.pairs import Pairs
from lit_agentrl.data.reading import Student, read
from lit_agentrl.envs.tasks.messages import BadRow
from lit_agentrl.episode import Episode, Segment
from lit_agentrl.rollout.pack import pack
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.dialects.llama_call import LlamaCalls
from lit_agentrl.text.dialects.plain import Plain
from lit_agentrl.text.token_bytes import hash_tokenizer
from tests.text.families import FAMILIES, make_family

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "of a town",
            "parameters": {"type": "object", "properties": {"town": {"type": "string"}}},
        },
    }
]
CALL = {"name": "weather", "arguments": {"town": "Zürich"}}
Message = dict[str, str]


def user(text: str, **more: str) -> Message:
    return {"role": "user", "content": text, **more}


def says(text: str, **more: str) -> Message:
    return {"role": "assistant", "content": text, **more}


ROWS: dict[str, list[Message]] = {
    "plain": [user("one"), says("two\n\nlines")],
    "talk": [{"role": "system", "content": "Be brief."}, user("one"), says("two"), user("three"), says("four")],
    "calls": [user("Ulm?", tools=json.dumps(TOOLS)), says("", calls=json.dumps([CALL])),
              {"role": "tool", "content": "sun"}, says("Sun."), user("Sure?"), says("Yes.")],
    "thoughts": [user("one"), says("two", thought="I count."), user("three"), says("four", thought="I go on.")],
    "weight": [user("one"), says("bad", weight="0"), user("no"), says("good"), user("more"), says("end", weight="0")],
}  # fmt: skip
KEYS = {"qwen_3": "reasoning_content", "glm": "reasoning_content", "gpt_oss": "thinking"}
NO_CALLS = {"gemma", "phi"}  # whose templates know no tools
EMPTY_THOUGHT = "\n</think>\n\n"


@lru_cache
def make_chat(family: str) -> ChatRenderer:
    tokenizer, ends = make_family(family)
    return ChatRenderer(tokenizer, shows_replies=False, model_ends=ends)


def read_row(family: str, messages: list[Message], context: int = 0) -> Episode:
    return Reader(make_chat(family), 4000).make_episode(messages[:context], messages[context:])


def shape(family: str, messages: list[Message]) -> list[dict[str, Any]]:
    """The messages as a user of the template writes them, by hand."""
    shaped: list[dict[str, Any]] = []
    for message in messages:
        made: dict[str, Any] = {"role": message["role"], "content": message["content"]}
        if "calls" in message:
            arguments: Any = CALL["arguments"]
            if family == "deepseek_r1":
                arguments, made["content"] = json.dumps(arguments, ensure_ascii=False), None
            function = {"name": CALL["name"], "arguments": arguments}
            made["tool_calls"] = [{"id": "call00000", "type": "function", "function": function}]
        if message["role"] == "tool":
            made |= {"tool_call_id": "call00000", "name": "weather"}
        if "thought" in message and family in KEYS:
            made[KEYS[family]] = message["thought"]
        elif "thought" in message and family != "deepseek_r1":
            made["content"] = f"<think>{message['thought']}</think>{made['content']}"
        shaped.append(made)
    if family == "deepseek_r1" and "tools" in messages[0]:  # whose template lists none
        shaped.insert(0, {"role": "system", "content": f"<tools>\n{json.dumps(TOOLS[0])}\n</tools>"})
    if family == "gemma" and shaped[0]["role"] == "system":
        shaped[:2] = [{"role": "user", "content": "Be brief.\n\none"}]
    return shaped


def render(family: str, shaped: list[dict[str, Any]], *, header: bool, tools: bool) -> str:
    return str(
        make_chat(family).tokenizer.apply_chat_template(
            shaped, tokenize=False, add_generation_prompt=header, tools=TOOLS if tools else None
        )
    )


def expect(family: str, messages: list[Message]) -> list[tuple[str, str]]:
    """The prompt and the reply of each assistant message that is learnt, by the template itself."""
    shaped, tools = shape(family, messages), "tools" in messages[0]
    replies = [message for message in messages if message["role"] == "assistant"]
    places = [k for k, message in enumerate(shaped) if message["role"] == "assistant"]
    found: list[tuple[str, str]] = []
    for message, place in zip(replies, places, strict=True):
        prompt = render(family, shaped[:place], header=True, tools=tools)
        closed = render(family, shaped[: place + 1], header=False, tools=tools)
        if family == "deepseek_r1" and prompt.endswith(
            "<think>\n"
        ):  # whose header opens what its replies lack
            rest = closed.removeprefix(prompt.removesuffix("<think>\n"))
            reply = message.get("thought", "") + EMPTY_THOUGHT + rest
        else:
            assert closed.startswith(prompt)
            reply = closed.removeprefix(prompt)
        if family == "phi":
            reply = reply.removesuffix("<|endoftext|>")
        if family == "glm":  # nothing ends a message, so that the next role does
            reply += "<|observation|>" if "calls" in message else "<|user|>"
        if message.get("weight") != "0":
            found.append((prompt, reply.rstrip("\n")))
    return found


def list_learnt(episode: Episode, chat: ChatRenderer) -> list[tuple[str, str]]:
    """The text before each learnt reply, in its row, and the reply."""
    found: list[tuple[str, str]] = []
    before = ""
    for turn in episode.turns:
        before = ("" if turn.starts_row else before) + chat.decode(turn.prefix_tokens.tolist())
        found.append((before, chat.decode(turn.reply_tokens.tolist())))
        before += found[-1][1]
    return found


@pytest.mark.parametrize(
    "family, row",
    [(family, row) for family in FAMILIES for row in ROWS if row != "calls" or family not in NO_CALLS],
)
def test_replies_stand_where_the_template_puts_them(family: str, row: str) -> None:
    chat, episode = make_chat(family), read_row(family, ROWS[row])
    expected = expect(family, ROWS[row])
    assert list_learnt(episode, chat) == expected
    packed = pack([episode])  # what counts in training is these replies alone
    is_learnt = packed.is_action_BT.numpy()
    learnt = [
        chat.decode(tokens[mask].tolist()) for tokens, mask in zip(packed.tokens_BT, is_learnt, strict=True)
    ]
    assert "".join(learnt) == "".join(reply for _, reply in expected)
    rewrites = family in {"qwen_3", "glm", "deepseek_r1", "gpt_oss"} or (family, row) == ("mistral", "calls")
    assert len(learnt) == 1 or rewrites  # a template that only appends needs a single row


@pytest.mark.parametrize("family", sorted(NO_CALLS))
def test_calls_that_no_template_knows_are_spelt(family: str) -> None:
    chat = make_chat(family)
    (prompt, call), (after, reply), _ = list_learnt(read_row(family, ROWS["calls"]), chat)
    assert '<tools>\n{"type": "function"' in prompt and "Ulm?" in prompt
    assert call.startswith(f"<tool_call>{json.dumps(CALL, ensure_ascii=False)}</tool_call><")
    assert ("<tool_response>\nsun\n</tool_response>" in after) == (family == "gemma") and "sun" in after
    assert reply.startswith("Sun.")
    tokenizer, ends = make_family(family)
    of_run = ChatRenderer(tokenizer, dialect=LlamaCalls(), shows_replies=False, model_ends=ends)
    reader = Reader(of_run, 4000)
    written = reader.make_episode([], ROWS["calls"])  # by the dialect of the run
    assert ["1 of 1 rows hold tools or calls" in note for note in reader.write_notes(1)] == [True]
    assert written.turns[0].reply_text == '{"name": "weather", "parameters": {"town": "Zürich"}}'


@pytest.mark.parametrize("family", FAMILIES)
def test_pairs_are_rendered_as_rows_are(family: str, tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    sides = {
        "chosen": [user("three"), says("four")],
        "rejected": [user("three"), says("five"), user("x"), says("y")],
    }
    path.write_text(json.dumps({"prompt": [user("one"), says("two")], **sides}) + "\n", encoding="utf-8")
    chat = make_chat(family)
    student = Student(chat, None, hash_tokenizer(chat.tokenizer), len(chat.tokenizer), 1.0, 4000)
    [pair] = read(Pairs(path=str(path), batch=1), student, seed=0).groups
    for episode, side in zip(pair, sides.values(), strict=True):
        expected = expect(family, [user("one"), says("two", weight="0"), *side])
        assert list_learnt(episode, chat) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_markers_from_outside_never_act(family: str) -> None:
    chat = make_chat(family)
    special = [token.content for token in chat.tokenizer.added_tokens_decoder.values() if token.special]
    spelt, tidy = "".join(special), "-"
    rows = [
        [user(f"a{text}", tools=json.dumps(TOOLS)), says(f"b{text}", thought=f"c{text}"), user("d"),
         says("", calls=json.dumps([{"name": "weather", "arguments": {"town": f"e{text}"}}])),
         {"role": "tool", "content": f"f{text}"}, says("g")]
        for text in (spelt, tidy)
    ]  # fmt: skip
    ids = set(chat.tokenizer.convert_tokens_to_ids(special))
    counts = []
    for row in rows:
        parts = [
            part for turn in read_row(family, row).turns for part in (turn.prefix_tokens, turn.reply_tokens)
        ]
        counts.append(int(np.isin(np.concatenate(parts), list(ids)).sum()))
    assert counts[0] == counts[1]


def test_a_thought_is_not_opened_twice() -> None:
    """Rows that spell the block whose beginning the header writes, with and without its white space."""
    for text in ("<think>\none\n</think>\n\n4", "<think>one</think>4", "one</think>\n\n4"):
        [(prompt, reply)] = list_learnt(
            read_row("deepseek_r1", [user("2+2?"), says(text)]), make_chat("deepseek_r1")
        )
        assert prompt.endswith("<｜Assistant｜><think>\n") and reply == "one\n</think>\n\n4<｜eos｜>"
    tokenizer, ends = make_family("qwen_2_5")
    forced = ChatRenderer(tokenizer, force_think=True, model_ends=ends)
    cases = {"<think>one</think>4": "one</think>4", "4": "</think>4", "4 <|im_end|>": "</think>4 <|im_end|>"}
    for text, learnt in cases.items():  # the last spells a marker, so that a stand-in is rendered
        episode = Reader(forced, 4000).make_episode([], [user("a"), says(text), user("b"), says(text)])
        assert [reply for _, reply in list_learnt(episode, forced)] == [f"{learnt}<|im_end|>"] * 2
        assert [turn.starts_row for turn in episode.turns] == [True, False]
        assert episode.turns[0].reply_segments[0] == Segment.THINK
    spaced = ChatRenderer(
        make_family("mistral")[0], force_think=True, shows_replies=False
    )  # whose replies begin with a space
    reader = Reader(spaced, 4000)
    for text, learnt in (("<think>one</think>4", "one</think>4</s>"), ("4", "</think>4</s>")):
        found = list_learnt(reader.make_episode([], [user("a"), says(text)]), spaced)
        assert found == [("<s>[INST] a[/INST]<think>", learnt)]
    assert not list(reader.write_notes(2))


def test_steps_are_no_part_of_a_thought() -> None:
    chat = make_chat("deepseek_r1")
    episode = Reader(chat, 4000).make_stepwise_episode(
        [user("a"), says("b"), user("c")], ["one", "two"], "\n"
    )
    (prompt, first), (_, second) = list_learnt(episode, chat)
    assert prompt.endswith("<｜User｜>c<｜Assistant｜><think>\n")
    assert (first, second) == ("\n</think>\n\none\n", "two<｜eos｜>")


def test_what_a_template_leaves_out_is_counted_or_refused() -> None:
    reader = Reader(make_chat("llama_3"), 4000)
    call = json.dumps([CALL])
    reader.make_episode([], [user("a"), says("I look.", calls=call)])
    assert "1 of 2 rows lose their texts beside calls, which the chat template" in next(reader.write_notes(2))
    tokenizer, ends = make_family("deepseek_r1")
    odd = ChatRenderer(tokenizer, shows_replies=False, model_ends=ends)
    with pytest.raises(BadRow, match="leaves out the call of 'weather'"):
        Reader(odd, 4000).make_episode([], [user("a"), says("I look.", calls=call)])
    with pytest.raises(ValueError, match="one call at once"):
        reader.make_episode([], [user("a"), says("", calls=json.dumps([CALL, CALL]))])


NO_THINK = (  # as Qwen 3.5: the header closes an empty thought
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}"
    "<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}"
)


def test_no_thought_is_learnt_behind_a_closed_one() -> None:
    tokenizer, ends = make_family("qwen_3")
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = NO_THINK
    chat = ChatRenderer(tokenizer, shows_replies=False, model_ends=ends)
    reader = Reader(chat, 4000)
    for more in ({}, {"thought": "I count."}):
        [(prompt, reply)] = list_learnt(reader.make_episode([], [user("one"), says("two", **more)]), chat)
        assert prompt.endswith("<think>\n\n</think>\n\n") and reply == "two<|im_end|>"
        assert len(list(reader.write_notes(1))) == len(more)


class NoThoughts(Plain):
    think_start = ""


def test_lost_thoughts_are_told_once_a_row() -> None:
    tokenizer, ends = make_family("llama_3")
    reader = Reader(ChatRenderer(tokenizer, dialect=NoThoughts(), model_ends=ends), 4000)
    for number, row in enumerate(("talk", "thoughts", "thoughts"), 1):
        reader.row_name = f"d.jsonl line {number}"
        for _ in ("chosen", "rejected"):
            reader.make_episode([], ROWS[row])
    assert list(reader.write_notes(3)) == [
        "data: 2 of 3 rows lose their thoughts, which the chat template leaves out; the first: d.jsonl line 2; write "
        "them into the contents, or set model.chat_template"
    ]


def test_rows_that_a_template_splits_are_told(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text("".join(json.dumps({"messages": ROWS[row]}) + "\n" for row in ("talk", "plain")))
    notes = {}
    for family in ("llama_3", "qwen_3"):
        chat = make_chat(family)
        student = Student(chat, None, hash_tokenizer(chat.tokenizer), len(chat.tokenizer), 1.0, 4000)
        notes[family] = read(Demonstrations(path=str(path), batch=1), student, seed=0).notes
    assert len(notes["llama_3"]) == 1 and [note for note in notes["qwen_3"] if "1 of 2 episodes" in note]


def test_replies_before_a_learnt_one_are_past() -> None:
    episode = read_row("llama_3", ROWS["weight"])
    chat = make_chat("llama_3")
    past = episode.turns[0].prefix_tokens[episode.turns[0].prefix_segments == Segment.PAST]
    assert chat.decode(past.tolist()) == "bad<|eot_id|>"
    with pytest.raises(BadRow, match="no assistant message to train on"):
        read_row("llama_3", [user("a"), says("b", weight="0")])
