"""Characters that a byte-level tokenizer drops, since its vocabulary lacks their bytes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from lit_agentrl.text.token_bytes import BYTE_OF_CHAR

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_NAMED = 5  # characters that a line names


@lru_cache(maxsize=8)
def find_missing_bytes(tokenizer: PreTrainedTokenizerBase) -> bytes:
    """Return the bytes of UTF-8 that a tokenizer drops without a trace.

    These bytes are the letters of byte-level BPE that the vocabulary lacks.  For example, SmolLM2 lacks six control
    characters and the first bytes of planes 4 to 11.  Other kinds of tokenizers write an unknown token instead, or know
    all bytes.
    """
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    decoder = tokenizer.backend_tokenizer.decoder
    is_byte_level = decoder is not None and b'"ByteLevel"' in decoder.__getstate__()
    if (
        not is_byte_level
        or model.get("type") != "BPE"
        or model.get("unk_token")
        or model.get("byte_fallback")
    ):
        return b""
    never = {0xC0, 0xC1, *range(0xF5, 0x100)}  # in no text
    missing = {byte for char, byte in BYTE_OF_CHAR.items() if char not in model["vocab"]}
    return bytes(sorted(missing - never))


def count_lost(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> Counter[str]:
    """Count the characters of texts that a tokenizer drops, whole or in part."""
    missing = find_missing_bytes(tokenizer)
    lost: Counter[str] = Counter()
    for text in texts if missing else ():
        data = text.encode(errors="replace")
        if len(data.translate(None, missing)) < len(data):
            lost.update(char for char in text if not set(missing).isdisjoint(char.encode(errors="replace")))
    return lost


def format_lost(lost: Counter[str]) -> str:
    """Format which characters are lost, and how often.

    >>> format_lost(Counter("aab"))
    '3 characters that the tokenizer has no tokens for, and drops: U+0061 (2 times), U+0062'
    """
    named = [
        f"U+{ord(char):04X}{f' ({count} times)' if count > 1 else ''}"
        for char, count in lost.most_common(_NAMED)
    ]
    more = ", …" if len(lost) > _NAMED else ""
    total = lost.total()
    return (
        f"{total} character{'s' * (total != 1)} that the tokenizer has no tokens for, and drops: "
        f"{', '.join(named)}{more}"
    )
