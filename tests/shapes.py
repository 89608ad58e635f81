"""Folders with the config of published models, and no weights."""

from __future__ import annotations

from pathlib import Path

from transformers import Qwen2Config

# model -> layers, width, heads, key heads, inner width, vocabulary, whether the head is the embedding
SHAPES = {
    "Qwen/Qwen2.5-0.5B-Instruct": (24, 896, 14, 2, 4864, 151_936, True),
    "Qwen/Qwen2.5-3B-Instruct": (36, 2048, 16, 2, 11_008, 151_936, True),
    "Qwen/Qwen2.5-7B-Instruct": (28, 3584, 28, 4, 18_944, 152_064, False),
}


def write_shape(folder: Path, name: str) -> Path:
    """Write the config of a published model into a new folder below ``folder``."""
    layers, width, heads, key_heads, inner, vocabulary, is_tied = SHAPES[name]
    place = folder / name.replace("/", "--")
    Qwen2Config(
        num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads, num_key_value_heads=key_heads,
        intermediate_size=inner, vocab_size=vocabulary, tie_word_embeddings=is_tied, max_position_embeddings=32_768,
    ).save_pretrained(place)  # fmt: skip
    return place
