"""What ends a reply: the template's marker, and the end tokens that the model's files name, one or many."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
from transformers import LlamaConfig, PreTrainedTokenizerBase

from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.reply_ends import list_model_ends

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ROLES = (  # as GLM: nothing ends a message, the next role does
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def network(generation: object, config: object = 2) -> SimpleNamespace:
    made = LlamaConfig(vocab_size=300, eos_token_id=config)
    return SimpleNamespace(config=made, generation_config=SimpleNamespace(eos_token_id=generation))


@pytest.fixture
def tokenizer(bpe: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    clone = copy.deepcopy(bpe)
    clone.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|assistant|>", "<|eom|>"]})
    clone.chat_template = CHATML
    return clone


def find_ids(tokenizer: PreTrainedTokenizerBase, *names: str) -> list[int]:
    return [int(tokenizer.convert_tokens_to_ids(name)) for name in names]


def test_all_ends_of_a_list_end_a_reply(tokenizer: PreTrainedTokenizerBase) -> None:
    marker, eom = find_ids(tokenizer, "<|im_end|>", "<|eom|>")
    tokenizer_eos = tokenizer.eos_token_id
    size = len(tokenizer)
    made = network([eom, tokenizer_eos])
    made.config.vocab_size = size
    ends = list_model_ends(made, tokenizer)
    assert ends == (eom, tokenizer_eos)
    chat = ChatRenderer(tokenizer, model_ends=ends)
    assert chat.end_of_turn_ids == (marker, tokenizer_eos, eom)  # the first is what is learnt
    made.config.eos_token_id = [eom]
    assert list_model_ends(SimpleNamespace(config=made.config), tokenizer) == (eom,)


def test_a_default_and_a_word_are_no_ends(tokenizer: PreTrainedTokenizerBase) -> None:
    assert list_model_ends(network(2), tokenizer) == ()  # the default of LlamaConfig
    word = tokenizer("a", add_special_tokens=False)["input_ids"][0]
    assert list_model_ends(network([word, 10**6]), tokenizer) == ()
    assert list_model_ends(None, tokenizer) == ()


def test_the_next_role_ends_a_reply_without_a_marker(tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.chat_template = ROLES
    (user,) = find_ids(tokenizer, "<|user|>")
    assert ChatRenderer(tokenizer).end_of_turn_ids == (
        tokenizer.eos_token_id,
    )  # of which the template knows nothing
    endless = copy.deepcopy(tokenizer)
    endless.eos_token = None
    with pytest.raises(
        ValueError, match="a token that ends replies; set model.chat_template=append_only_chatml"
    ):
        ChatRenderer(endless)
    chat = ChatRenderer(tokenizer, model_ends=[tokenizer.eos_token_id, user])
    assert chat.end_of_turn_ids[0] == user
    reply = chat.encode("yes")
    opened = chat.render_next("more", last_reply=reply)
    ended = chat.render_next("more", last_reply=[*reply, user])
    assert opened.tokens == [user, *ended.tokens] and len(ended.segments) == len(ended.tokens)
    dialogue = [
        {"role": role, "content": text}
        for role, text in (("user", "u"), ("assistant", "yes"), ("user", "more"))
    ]
    tokens = [*chat.render_opening(dialogue[:1]).tokens, *reply, user, *ended.tokens]
    assert chat.decode(tokens) == tokenizer.apply_chat_template(
        dialogue, tokenize=False, add_generation_prompt=True
    )
