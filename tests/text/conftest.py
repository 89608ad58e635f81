"""Two tokenizers that differ in all that matters here: one token per word, and byte pieces."""

from __future__ import annotations

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lit_agentrl.models.policy import read_shipped_template
from lit_agentrl.text.chat import ChatRenderer

NANO_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WORDS = "<unk> <pad> <|system|> <|user|> <|assistant|> <|end|> <think> </think> <answer> </answer> || \n"
MORE_WORDS = (
    "0 1 2 3 4 5 6 7 8 9 . - + # _ O X P S Up Down Left Right sokoban turns actions reward invalid wall u"
)


def make_nano() -> PreTrainedTokenizerBase:
    words = [*WORDS.split(" "), *MORE_WORDS.split(" ")]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    unit = Regex(r"<[^<>\s]+>|\|\||\n|[A-Za-z]+|[^\sA-Za-z]")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(unit, behavior="removed", invert=True)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>")
    fast.eos_token = "<|end|>"
    fast.chat_template = NANO_TEMPLATE
    return fast


def make_bpe() -> PreTrainedTokenizerBase:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    lines = [
        "<think>a wall</think><answer>Up || Down</answer>",
        "turns 5 actions 10\n# # #\n# P _\n# O X",
        "user\nassistant\nsystem\nreward -0.1 é 日本",
    ]
    tokenizer.train_from_iterator(lines * 3, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")
    fast.chat_template = read_shipped_template("append_only_chatml")
    return fast


@pytest.fixture(scope="session")
def nano() -> PreTrainedTokenizerBase:
    return make_nano()


@pytest.fixture(scope="session")
def bpe() -> PreTrainedTokenizerBase:
    return make_bpe()


@pytest.fixture(scope="session", params=["nano", "bpe"])
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerBase:
    found: PreTrainedTokenizerBase = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def renderer(tokenizer: PreTrainedTokenizerBase) -> ChatRenderer:
    return ChatRenderer(tokenizer)
