"""Tests of whether a tokenizer knows the words of a text, or only their letters."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_WORD = re.compile(r"[A-Za-z]{3,}")
# tokens per letter: at most 0.21 for the embedded policies in their own worlds, at least 0.40 in others
_SPELT = 1 / 3


def count_tokens_per_letter(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> float:
    """Return tokens per letter of the distinct English words of texts; 0 without words.

    A word counts with or without a space before it, whichever takes fewer tokens.
    """
    words = sorted({word for text in texts for word in _WORD.findall(text)})
    encode = tokenizer.backend_tokenizer.encode
    fewest = [min(len(encode(text, add_special_tokens=False).ids) for text in (w, f" {w}")) for w in words]
    return sum(fewest) / max(sum(map(len, words)), 1)


def is_spelt(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> bool:
    """Return whether the words of texts are mostly spelt letter by letter."""
    return count_tokens_per_letter(tokenizer, texts) > _SPELT
