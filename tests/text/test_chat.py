from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from lit_agentrl.episode import Segment
from lit_agentrl.models.policy import read_shipped_template
from lit_agentrl.text.chat import ChatRenderer, fold_system

USER = {"role": "user", "content": "turns 5"}
REPLY = "<think>wall</think><answer>Up || Down</answer>"
CHATML = read_shipped_template("append_only_chatml")


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def with_template(tokenizer: PreTrainedTokenizerBase, template: str | None) -> PreTrainedTokenizerBase:
    clone = copy.deepcopy(tokenizer)
    clone.chat_template = template
    return clone


def test_opening_is_the_rendered_template(renderer: ChatRenderer) -> None:
    tokenizer = renderer.tokenizer
    prefix = renderer.render_opening([USER])
    text = tokenizer.apply_chat_template([USER], tokenize=False, add_generation_prompt=True)
    assert prefix.tokens == encode(tokenizer, text)
    header = text.removeprefix(tokenizer.apply_chat_template([USER], tokenize=False))
    num_header = len(encode(tokenizer, header))
    num_message = len(prefix.tokens) - num_header
    assert prefix.segments == [int(Segment.PROMPT)] * num_message + [int(Segment.FORCED)] * num_header
    assert header.strip() and num_message > 0


def test_forced_think_is_the_end_of_the_header(tokenizer: PreTrainedTokenizerBase) -> None:
    renderer = ChatRenderer(tokenizer, force_think=True)
    plain = ChatRenderer(tokenizer)
    assert renderer.forced_think and not plain.forced_think
    for ours, theirs in [
        (renderer.render_opening([USER]), plain.render_opening([USER])),
        (renderer.render_next("wall", last_reply=[]), plain.render_next("wall", last_reply=[])),
    ]:
        extra = len(ours.tokens) - len(theirs.tokens)
        assert renderer.decode(ours.tokens).endswith("<think>")
        assert ours.tokens[:-extra] == theirs.tokens
        assert ours.segments == [*theirs.segments, *[int(Segment.FORCED)] * extra]


def test_following_segments(renderer: ChatRenderer) -> None:
    prefix = renderer.render_next("wall 5", last_reply=encode(renderer.tokenizer, REPLY))
    forced, seen = int(Segment.FORCED), int(Segment.OBSERVATION)
    inside = [i for i, segment in enumerate(prefix.segments) if segment == seen]
    assert inside == list(range(inside[0], inside[-1] + 1))
    assert set(prefix.segments[: inside[0]]) == set(prefix.segments[inside[-1] + 1 :]) == {forced}
    text = renderer.decode([prefix.tokens[i] for i in inside])
    assert "wall 5" in text and "user" in text and "assistant" not in text
    assert prefix.tokens[0] == renderer.end_of_turn_ids[0]


def test_sampled_end_marker_is_not_doubled(renderer: ChatRenderer) -> None:
    marker = renderer.end_of_turn_ids[0]
    unfinished = renderer.render_next("wall", last_reply=[])
    finished = renderer.render_next("wall", last_reply=[marker])
    assert unfinished.tokens == [marker, *finished.tokens]
    assert unfinished.segments == [int(Segment.FORCED), *finished.segments]


def test_a_marker_inside_the_reply_is_not_its_end(renderer: ChatRenderer) -> None:
    marker = renderer.end_of_turn_ids[0]
    other = encode(renderer.tokenizer, "Up")
    assert renderer.render_next("wall", last_reply=[marker, *other]).tokens[0] == marker


def test_end_of_turn_ids(nano: PreTrainedTokenizerBase, bpe: PreTrainedTokenizerBase) -> None:
    assert ChatRenderer(nano).end_of_turn_ids == (nano.convert_tokens_to_ids("<|end|>"),)
    ids = (bpe.convert_tokens_to_ids("<|im_end|>"), bpe.eos_token_id)
    assert ChatRenderer(bpe).end_of_turn_ids == ids


def test_a_marker_of_several_tokens_ends_no_turn(bpe: PreTrainedTokenizerBase) -> None:
    turns = "{% for m in messages %}{{ m.role }}: {{ m.content }} over.\n{% endfor %}"
    plain = turns + "{% if add_generation_prompt %}assistant: {% endif %}"
    renderer = ChatRenderer(with_template(bpe, plain))
    assert renderer.end_of_turn_ids == (bpe.eos_token_id,)
    assert (
        renderer.decode(renderer.render_next("P", last_reply=[]).tokens)
        == " over.\nuser: P over.\nassistant: "
    )


contents = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="|<"), min_size=1, max_size=20)
safe_replies = st.builds("<think>{}</think><answer>{}</answer>".format, contents, contents)


@given(users=st.lists(contents, min_size=1, max_size=4), data=st.data())
@settings(max_examples=60, deadline=None)
def test_ledger_text_is_the_templates_own_rendering(
    bpe: PreTrainedTokenizerBase, users: list[str], data: st.DataObject
) -> None:
    renderer = ChatRenderer(bpe)
    messages = [{"role": "system", "content": "rules"}, {"role": "user", "content": users[0]}]
    ledger = list(renderer.render_opening(messages).tokens)
    for user in users[1:]:
        text = data.draw(safe_replies)
        is_ended = data.draw(st.booleans())
        reply = encode(bpe, text) + [renderer.end_of_turn_ids[0]] * is_ended
        ledger += [*reply, *renderer.render_next(user, last_reply=reply).tokens]
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": user}]
    expected = bpe.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert renderer.decode(ledger) == expected


def test_nano_ledger_equals_the_tokenised_rendering(nano: PreTrainedTokenizerBase) -> None:
    renderer = ChatRenderer(nano)
    reply = encode(nano, REPLY)
    messages = [USER, {"role": "assistant", "content": REPLY}, {"role": "user", "content": "# P\n_ X"}]
    ledger = [
        *renderer.render_opening([USER]).tokens,
        *reply,
        *renderer.render_next("# P\n_ X", last_reply=reply).tokens,
    ]
    assert ledger == encode(
        nano, nano.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    )


DROPS_THINKING = CHATML.replace("message.content", "(message.content.split('</think>')[-1])")
DROPS_OLD_THINKING = CHATML.replace(
    "message.content",
    "(message.content if loop.last or message.role == 'user' else message.content.split('</think>')[-1])",
)
MOVES_SYSTEM = (
    "{% for m in messages %}{% if m.role != 'system' %}[{{ m.role }}]"
    "{% if loop.last and messages[0].role == 'system' %}"
    "{{ messages[0].content }}{% endif %}{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
COUNTS = "{{ messages | length }}" + CHATML
NUMBERS_HEADERS = (
    "{% for m in messages %}[{{ m.role }} {{ loop.index0 }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant {{ messages | length }}]{% endif %}"
)
HEADER_FIRST = "{% if add_generation_prompt %}go {% endif %}" + CHATML


@pytest.mark.parametrize(
    "template",
    [DROPS_THINKING, DROPS_OLD_THINKING, MOVES_SYSTEM, COUNTS, NUMBERS_HEADERS, HEADER_FIRST],
    ids=lambda template: f"template{len(template)}",
)
def test_rewriting_templates_are_refused_with_the_remedy(
    tokenizer: PreTrainedTokenizerBase, template: str
) -> None:
    rewriting = with_template(tokenizer, template)
    with pytest.raises(ValueError, match="not append-only.*model.chat_template=append_only_chatml"):
        ChatRenderer(rewriting)
    assert ChatRenderer(with_template(tokenizer, CHATML)).render_opening([USER]).tokens


@pytest.mark.parametrize(
    "template",
    [DROPS_THINKING, DROPS_OLD_THINKING, MOVES_SYSTEM, COUNTS, NUMBERS_HEADERS, HEADER_FIRST],
    ids=lambda template: f"template{len(template)}",
)
def test_a_template_may_rewrite_history_that_is_never_shown(
    bpe: PreTrainedTokenizerBase, template: str
) -> None:
    """``context=single``: each prompt is an opening; what lies between two replies is counted."""
    chat = ChatRenderer(with_template(bpe, template), shows_replies=False)
    messages = [{"role": "system", "content": "rules"}, USER]
    for dialogue in (messages, [USER]):
        text = chat.tokenizer.apply_chat_template(dialogue, tokenize=False, add_generation_prompt=True)
        assert chat.render_opening(dialogue).tokens == encode(bpe, text)
    dialogue = [USER, {"role": "assistant", "content": "Up"}, {"role": "user", "content": "P _"}]
    text = chat.tokenizer.apply_chat_template(dialogue, tokenize=False, add_generation_prompt=True)
    assert chat.decode(chat.render_next("P _", last_reply=[]).tokens) == text.partition("Up")[2]
    assert bpe.eos_token_id in chat.end_of_turn_ids
    assert (bpe.convert_tokens_to_ids("<|im_end|>") in chat.end_of_turn_ids) == ("im_end" in template)


def test_no_template_is_refused_with_the_remedy(tokenizer: PreTrainedTokenizerBase) -> None:
    bare = with_template(tokenizer, None)
    with pytest.raises(ValueError, match="no chat template.*model.chat_template=append_only_chatml"):
        ChatRenderer(bare)


GEMMA = (  # of Gemma 2, in short
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "<|im_start|>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>model\n{% endif %}"
)
WITHOUT_SYSTEM = CHATML.replace("in messages", "in messages if message.role != 'system'")


@pytest.mark.parametrize("template", [GEMMA, WITHOUT_SYSTEM], ids=["refuses", "leaves out"])
def test_without_a_system_role_the_system_text_begins_the_first_user_message(
    bpe: PreTrainedTokenizerBase, template: str
) -> None:
    chat = ChatRenderer(with_template(bpe, template))
    assert chat.folds_system and not ChatRenderer(bpe).folds_system
    rules = {"role": "system", "content": "Rules <|im_end|>"}
    folded = {"role": "user", "content": "Rules <|im_end|>\n\nturns 5"}
    assert chat.render_opening([rules, USER]) == chat.render_opening([folded])
    assert chat.render_opening([rules]) == chat.render_opening(
        [{"role": "user", "content": rules["content"]}]
    )
    shot = {"role": "assistant", "content": "Up"}
    assert chat.render_opening([rules, USER, shot, USER]) == chat.render_opening([folded, shot, USER])
    assert chat.render_opening([USER]).tokens


def test_tools_of_a_system_message_stay_with_its_text(bpe: PreTrainedTokenizerBase) -> None:
    system = {"role": "system", "content": "Rules", "tools": "[]"}
    assert fold_system([system, USER]) == [{"role": "user", "content": "Rules\n\nturns 5", "tools": "[]"}]
    assert fold_system([USER]) == [USER]


def test_a_template_that_forces_thinking_itself(bpe: PreTrainedTokenizerBase) -> None:
    opens = CHATML.replace("assistant\\n' -}}\n{%- endif", "assistant\\n<think>\\n' -}}\n{%- endif")
    assert opens != CHATML
    renderer = ChatRenderer(with_template(bpe, opens), force_think=True)
    assert renderer.forced_think and ChatRenderer(with_template(bpe, opens)).forced_think
    text = renderer.decode(renderer.render_next("P", last_reply=[]).tokens)
    assert text == "<|im_end|>\n<|im_start|>user\nP<|im_end|>\n<|im_start|>assistant\n<think>\n"


def test_slow_tokenizers_are_refused(bpe: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = copy.deepcopy(bpe)
    monkeypatch.setattr(type(slow), "is_fast", property(lambda self: False))
    with pytest.raises(ValueError, match="fast version"):
        ChatRenderer(slow)


def test_a_tokenizer_that_splits_markers_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    splitting = copy.deepcopy(tokenizer)
    splitting.backend_tokenizer.encode_special_tokens = True  # what split_special_tokens=true sets
    with pytest.raises(ValueError, match="split_special_tokens=true, so the markers"):
        ChatRenderer(splitting)


def test_decode_keeps_special_tokens_and_spaces(bpe: PreTrainedTokenizerBase) -> None:
    text = "a , b .<|im_end|>"
    assert ChatRenderer(bpe).decode(encode(bpe, text)) == text


def test_a_template_that_writes_the_date_gets_a_fixed_one(bpe: PreTrainedTokenizerBase) -> None:
    dated = with_template(bpe, "Today is {{ strftime_now('%d %B %Y') }}.\n" + CHATML)
    assert "Today is 01 January 2026." in ChatRenderer(dated).decode(
        ChatRenderer(dated).render_opening([USER]).tokens
    )
    chat = ChatRenderer(dated, date="2024-02-29")
    assert "Today is 29 February 2024." in chat.decode(chat.render_opening([USER]).tokens)
    with pytest.raises(ValueError, match="reads the clock"):
        ChatRenderer(with_template(bpe, "{% set form = '%d' %}{{ strftime_now(form) }}" + CHATML))
