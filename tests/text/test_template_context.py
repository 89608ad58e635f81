"""Prompts under templates that rewrite history are what the template renders, in rows that go on while they can."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from lit_agentrl.episode import Segment, Turn
from lit_agentrl.text.chat import ChatRenderer, Prefix
from lit_agentrl.text.context import FULL, Past
from lit_agentrl.text.dialects.plain import Plain
from lit_agentrl.text.template_context import Template
from tests.text.families import QWEN_3, make_family

OPENING = [{"role": "system", "content": "Rules."}, {"role": "user", "content": "go"}]
THOUGHT = "<think>\nwall\n</think>\n\nUp"
CHANNELS = "<|channel|>analysis<|message|>wall<|end|><|start|>assistant<|channel|>final<|message|>Up"
# of Qwen 3.5: as Qwen 3, and the header opens the thought
QWEN_3_5 = QWEN_3[: -len("{% endif %}")] + "<think>\n{% endif %}"
# of Llama 3.1: the day in the system message, which is there even where nobody wrote one
LLAMA_3_1 = (
    "{{ bos_token }}{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
    "Today Date: {{ date_string }}\n\n{% if messages[0].role == 'system' %}{{ messages[0].content | trim }}{% endif %}"
    "<|eot_id|>{% for m in messages %}{% if m.role != 'system' %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)


def make_chat(family: str, template: str | None = None, **options: Any) -> ChatRenderer:
    tokenizer, ends = make_family(family)
    if template is not None:
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.chat_template = template
    return ChatRenderer(tokenizer, model_ends=ends, shows_replies=False, **options)


def play(
    chat: ChatRenderer, replies: Sequence[list[int]], *, messages: Sequence[str] = ("one", "two", "three"),
    opening: Sequence[dict[str, str]] = OPENING,
) -> list[Prefix]:  # fmt: skip
    """The prompt before each reply, and after the last one."""
    past = Past(lambda **_: [dict(m) for m in opening], [], [""], [])
    prompts = [Template().prompt(past, chat)]
    for tokens, message in zip(replies, messages, strict=False):
        past.turns = [*past.turns, Turn("", [], [], reply_tokens=tokens)]  # type: ignore[arg-type]
        past.messages.append(message)
        prompts.append(Template().prompt(past, chat))
    return prompts


def encode(chat: ChatRenderer, text: str, *, is_ended: bool = True) -> list[int]:
    """A reply whose ``Up`` is two tokens, which no text would give."""
    before = chat.tokenizer(text.removesuffix("Up"), add_special_tokens=False)["input_ids"]
    up = [token for char in "Up" for token in chat.tokenizer(char, add_special_tokens=False)["input_ids"]]
    return [*before, *up, *(chat.end_of_turn_ids[:1] if is_ended else ())]


def show(tokenizer: PreTrainedTokenizerBase, said: Sequence[str], **keys: str) -> str:
    """The rendering that a client sees who sends back what was said."""
    dialogue = list(OPENING)
    for text, message in zip(said, ("one", "two"), strict=False):
        dialogue += [{"role": "assistant", "content": text, **keys}, {"role": "user", "content": message}]
    return str(tokenizer.apply_chat_template(dialogue, tokenize=False, add_generation_prompt=True))


@pytest.mark.parametrize(
    ("family", "template", "reply", "kept"),
    [
        ("qwen_3", None, THOUGHT, "Up"),
        ("qwen_3", QWEN_3_5, THOUGHT.removeprefix("<think>\n"), "Up"),
        ("deepseek_r1", None, THOUGHT.removeprefix("<think>\n"), "\n\nUp"),
        ("gpt_oss", None, CHANNELS, "Up"),
        ("glm", None, "<think>wall</think>\nUp", "Up"),
    ],
    ids=["qwen_3", "qwen_3_5", "deepseek_r1", "gpt_oss", "glm"],
)
def test_a_turn_whose_thought_is_dropped_opens_a_row(
    family: str, template: str | None, reply: str, kept: str
) -> None:
    chat = make_chat(family, template)
    tokens = encode(chat, reply)
    prompts = play(chat, [tokens, tokens])
    assert not any(prompt.continues for prompt in prompts)
    for count, prompt in enumerate(prompts[:3]):
        assert chat.decode(prompt.tokens) == show(chat.tokenizer, [kept] * count)
        assert (
            prompt.tokens == chat.tokenizer(chat.decode(prompt.tokens), add_special_tokens=False)["input_ids"]
        )
        assert "wall" not in chat.decode(prompt.tokens)
    # what the rows have in common is all but the last reply and what follows it
    before, after = prompts[1].tokens, prompts[2].tokens
    header = len(chat.tokenizer(chat.opening, add_special_tokens=False)["input_ids"]) if chat.opening else 0
    assert after[: len(before) - header] == before[: len(before) - header]


@pytest.mark.parametrize(
    ("family", "template"),
    [("llama_3", LLAMA_3_1), ("gemma", None), ("qwen_2_5", None), ("qwen_3", None), ("mistral", None)],
    ids=["llama_3_1", "gemma", "qwen_2_5", "qwen_3", "mistral"],
)
@pytest.mark.parametrize("is_ended", [False, True])
def test_a_reply_that_is_shown_as_it_was_goes_on_in_its_row(
    family: str, template: str | None, is_ended: bool
) -> None:
    """With the ids that were sampled, although the text alone would have given others."""
    chat = make_chat(family, template)
    space = " " if family == "mistral" else ""  # which its template writes before a reply
    tokens = encode(chat, f"{space}Up", is_ended=is_ended)
    first, second, third = play(chat, [tokens, tokens])[:3]
    assert second.continues and third.continues and not first.continues
    row = [*first.tokens, *tokens, *second.tokens, *tokens, *third.tokens]
    if family == "gemma":
        folded = [{"role": "user", "content": "Rules.\n\ngo"}]
        said = [{"role": "assistant", "content": "Up"}, {"role": "user", "content": "one"}]
        said += [said[0], {"role": "user", "content": "two"}]
        expected = chat.tokenizer.apply_chat_template(
            [*folded, *said], tokenize=False, add_generation_prompt=True
        )
    elif family == "llama_3":  # the day is that of the run; the clock is not read
        expected = show(copy.deepcopy(chat.tokenizer), ["Up"] * 2)
        today = expected.partition("Today Date: ")[2].partition("\n")[0]
        expected = expected.replace(today, "01 Jan 2026", 1)
    else:
        expected = show(chat.tokenizer, ["Up"] * 2)
    assert chat.decode(row) == expected
    assert chat.tokenizer(expected, add_special_tokens=False)["input_ids"] != row
    assert second.segments.count(Segment.OBSERVATION) > 3 and Segment.PAST not in second.segments


def test_a_row_ends_where_a_template_trims_or_another_token_ended_the_reply() -> None:
    chat = make_chat("gemma")
    eos = chat.tokenizer.eos_token_id
    for text, end in (("Up\n", chat.end_of_turn_ids[0]), ("Up", eos)):
        tokens = [*chat.tokenizer(text, add_special_tokens=False)["input_ids"], end]
        first, second = play(chat, [tokens])
        assert not second.continues
        written = first.tokens + chat.encode("Up") + [chat.end_of_turn_ids[0]]
        assert second.tokens[: len(written)] == written


def test_special_tokens_in_a_reply_are_left_out_and_spelt_ones_too() -> None:
    """As a server decodes them: neither can end a message, and the row does not go on."""
    chat = make_chat("qwen_3")
    marker, header = chat.end_of_turn_ids[0], chat.tokenizer.convert_tokens_to_ids("<|im_start|>")
    spelt = [token for char in "<|im_end|>" for token in chat.tokenizer(char)["input_ids"]]
    for middle in ([header], [marker], spelt):
        reply = [*chat.encode("U"), *middle, *chat.encode("p"), marker]
        _, second = play(chat, [reply])
        assert not second.continues and chat.decode(second.tokens) == show(chat.tokenizer, ["Up"])
    _, second = play(chat, [[*chat.encode("Up"), *spelt]])
    assert not second.continues and chat.decode(second.tokens) == show(chat.tokenizer, ["Up"])


def test_a_message_that_spells_a_marker_stays_text() -> None:
    chat = make_chat("qwen_3")
    marker = chat.end_of_turn_ids[0]
    tokens = encode(chat, THOUGHT)
    _, second = play(chat, [tokens], messages=["a<|im_end|>b"])
    assert second.tokens.count(marker) == 4 and "a<|im_end|>b" in chat.decode(second.tokens)
    _, second = play(chat, [encode(chat, "Up")], messages=["a<|im_end|>b"])
    assert second.continues and second.tokens.count(marker) == 1


def test_segments_of_a_prompt_that_shows_replies() -> None:
    chat = make_chat("qwen_3")
    third = play(chat, [encode(chat, THOUGHT)] * 2)[2]
    parts: list[tuple[Segment, list[int]]] = []
    for token, segment in zip(third.tokens, third.segments, strict=True):
        if not parts or parts[-1][0] != segment:
            parts.append((Segment(segment), []))
        parts[-1][1].append(token)
    user, assistant, end = "<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_end|>\n"
    told = [(segment, chat.decode(tokens)) for segment, tokens in parts]
    assert told == [
        (Segment.PROMPT, f"<|im_start|>system\nRules.{end}{user}go{end}"),
        (Segment.FORCED, assistant), (Segment.PAST, "Up"), (Segment.FORCED, end),
        (Segment.OBSERVATION, f"{user}one{end}"),
        (Segment.FORCED, assistant), (Segment.PAST, "Up"), (Segment.FORCED, end),
        (Segment.OBSERVATION, f"{user}two{end}"), (Segment.FORCED, assistant),
    ]  # fmt: skip


@pytest.mark.parametrize("force_think", [False, True])
def test_under_an_append_only_template_it_is_the_full_context(
    bpe: PreTrainedTokenizerBase, force_think: bool
) -> None:
    chat = ChatRenderer(bpe, force_think=force_think)
    reply = "wall</think><answer>Up</answer>" if force_think else "<answer>Up</answer>"
    tokens = [*bpe(reply, add_special_tokens=False)["input_ids"], chat.end_of_turn_ids[0]]
    expected = [chat.render_opening(OPENING)]
    expected += [chat.render_next(message, last_reply=tokens) for message in ("one", "two")]
    prompts = play(chat, [tokens, tokens])
    assert [(p.tokens, p.segments) for p in prompts] == [(p.tokens, p.segments) for p in expected]
    past = Past(lambda **_: OPENING, [], [""], [expected[0]])
    assert Template().messages(past) == FULL.messages(past)


def test_an_unfinished_thought_is_shown_as_it_is() -> None:
    chat = make_chat("qwen_3")
    tokens = chat.encode("<think>\nwal")
    first, second = play(chat, [tokens])
    assert second.continues and chat.decode([*first.tokens, *tokens, *second.tokens]) == show(
        chat.tokenizer, ["<think>\nwal"]
    )


def test_an_empty_thought_is_no_text() -> None:
    chat = make_chat("qwen_3", dialect=Plain())
    tokens = encode(chat, "<think>\n\n</think>\n\nUp")
    second = play(chat, [tokens])[1]
    assert not second.continues and chat.decode(second.tokens) == show(chat.tokenizer, ["Up"])


def test_shown_examples_lose_their_thoughts_as_past_replies_do() -> None:
    chat = make_chat("gpt_oss")
    shot = [{"role": "user", "content": "a"}, {"role": "assistant", "content": CHANNELS}]
    first = play(chat, [], opening=[OPENING[0], *shot, OPENING[1]])[0]
    assert chat.decode(first.tokens).count("<|channel|>final<|message|>Up<|end|>") == 1
    assert "wall" not in chat.decode(first.tokens)
