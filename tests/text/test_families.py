"""Rollouts and exports under the chat templates of nine families: what is read is what the template renders."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lit_agentrl.models.policy import Policy, load_pretrained
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.reply_ends import list_model_ends
from tests.text.families import FAMILIES, make_family

REWRITING = {  # each is refused where prompts show past replies, in these words
    "qwen_3": "it changes the reply of turn 1",
    "mistral": "it changes the reply of turn 1",
    "glm": "it changes the reply of turn 1",
    "phi": "the reply header is not always the same",
    "deepseek_r1": "it changes the reply of turn 1",
    "gpt_oss": "it changes the reply of turn 1",
}
OPENING = [{"role": "system", "content": "Rules."}, {"role": "user", "content": "a\n\nb"}]


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in REWRITING])
def test_later_prompts_are_those_of_the_template(family: str) -> None:
    tokenizer, ends = make_family(family)
    chat = ChatRenderer(tokenizer, model_ends=ends)
    reply = "<think>wall</think><answer>Up</answer>"
    for is_ended in (False, True):  # whether the policy wrote the end of its reply
        tokens = [*chat.encode(reply), *(chat.end_of_turn_ids[:1] if is_ended else ())]
        shown = [
            *chat.render_opening(OPENING).tokens,
            *tokens,
            *chat.render_next("c", last_reply=tokens).tokens,
        ]
        dialogue = [*OPENING, {"role": "assistant", "content": reply}, {"role": "user", "content": "c"}]
        if family == "gemma":
            dialogue[:2] = [{"role": "user", "content": "Rules.\n\na\n\nb"}]
        expected = tokenizer.apply_chat_template(dialogue, tokenize=False, add_generation_prompt=True)
        assert chat.decode(shown) == expected


@pytest.mark.parametrize("family", sorted(REWRITING))
def test_a_template_that_rewrites_shows_single_turns(family: str) -> None:
    tokenizer, ends = make_family(family)
    with pytest.raises(
        ValueError, match=f"not append-only over turns \\({REWRITING[family]}.*or context=single"
    ):
        ChatRenderer(tokenizer, model_ends=ends)
    chat = ChatRenderer(tokenizer, model_ends=ends, shows_replies=False)
    expected = tokenizer.apply_chat_template(OPENING, tokenize=False, add_generation_prompt=True)
    assert chat.decode(chat.render_opening(OPENING).tokens) == expected


def test_a_template_that_leaves_out_texts_is_refused() -> None:
    """As those of models that see images, whose contents are lists of parts."""
    tokenizer = copy.deepcopy(make_family("qwen_2_5")[0])
    parts = (
        "{% if m.content is not string %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}"
    )
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n" + parts + "<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    with pytest.raises(ValueError, match="leaves out contents that are texts; set model.chat_template="):
        ChatRenderer(tokenizer)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_export_renders_encodes_and_ends_as_in_training(family: str, tmp_path: Path) -> None:
    tokenizer, ends = make_family(family)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8,
    )  # fmt: skip
    network = LlamaForCausalLM(config).eval()
    network.generation_config.eos_token_id = list(ends)
    policy = Policy(network=network, tokenizer=copy.deepcopy(tokenizer), name="trained")
    policy.save(tmp_path)
    loaded = load_pretrained(str(tmp_path))
    assert loaded.tokenizer.chat_template == tokenizer.chat_template
    assert list_model_ends(loaded.network, loaded.tokenizer) == list_model_ends(network, tokenizer)
    chats = [
        ChatRenderer(each.tokenizer, model_ends=list_model_ends(each.network, each.tokenizer), shows_replies=False)
        for each in (policy, loaded)
    ]  # fmt: skip
    ours, exported = (
        [*chat.render_opening(OPENING).tokens, *chat.encode("<think>a</think>b")] for chat in chats
    )
    assert ours == exported and chats[0].end_of_turn_ids == chats[1].end_of_turn_ids
    assert set(ends) <= set(chats[1].end_of_turn_ids)
    with torch.no_grad():
        logits = [each.network(torch.tensor([ours])).logits for each in (policy, loaded)]
    assert torch.equal(*logits)
