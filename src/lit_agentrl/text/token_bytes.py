"""The bytes that each token adds to the text, to find tags split over tokens."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_LIBRARIES = ("transformers", "tokenizers")  # that make a tokenizer from its files
_FALLBACK_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _map_chars_to_bytes() -> dict[str, int]:
    """Return the inverse of byte-level BPE's alphabet.

    Printable bytes map to themselves; the others follow from 256.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


BYTE_OF_CHAR = _map_chars_to_bytes()


def require_fast(tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a tokenizer without a fast backend or with ``split_special_tokens``.

    Raises:
        ValueError: If the tokenizer has no `tokenizers` backend, or one that encodes the template's markers as text.
    """
    if not tokenizer.is_fast:
        name = type(tokenizer).__name__
        raise ValueError(f"the tokenizer {name} has no `tokenizers` backend; load its fast version")
    if tokenizer.backend_tokenizer.encode_special_tokens:
        raise ValueError(
            "the tokenizer has split_special_tokens=true, so the markers of its chat template would be text like any "
            "other; set it to false in tokenizer_config.json"
        )


class TokenPieces:
    """The bytes of single tokens, cached.

    The joined pieces of a reply equal its decoded text up to white space at the start.  Unlike decoding token by token,
    they are exact if a token holds only part of a UTF-8 character.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        require_fast(tokenizer)
        self._tokenizer = tokenizer
        decoder = tokenizer.backend_tokenizer.decoder
        state = b"" if decoder is None else decoder.__getstate__()
        self._is_byte_level = b'"ByteLevel"' in state
        self._has_byte_fallback = b'"ByteFallback"' in state
        self._cache: dict[int, bytes] = {}
        self._anchor = self._find_anchor()

    def __call__(self, token_id: int) -> bytes:
        """Return the bytes of a token.

        The bytes are those of a token that is not the first of its text, and empty for an id without text.
        """
        piece = self._cache.get(token_id)
        if piece is None:
            piece = self._cache[token_id] = self._compute(token_id)
        return piece

    def _compute(self, token_id: int) -> bytes:
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        if not isinstance(token, str):  # an id beyond the vocabulary (padded embedding rows)
            return b""
        if self._is_byte_level:
            try:
                return bytes(BYTE_OF_CHAR[char] for char in token)
            except KeyError:  # an added token is plain text, outside the byte alphabet
                return token.encode()
        if self._has_byte_fallback and (match := _FALLBACK_BYTE.fullmatch(token)):
            return bytes([int(match[1], 16)])
        # decode after an anchor: many decoders put a space before every token but the first
        before, both = self._decode([self._anchor]), self._decode([self._anchor, token_id])
        text = both[len(before) :] if both.startswith(before) else self._decode([token_id])
        return text.encode(errors="replace")

    def _find_anchor(self) -> int:
        if self._is_byte_level:
            return 0
        ids = sorted(self._tokenizer.get_vocab().values())
        return next((i for i in ids if self._decode([i]).strip().isalnum()), ids[0])

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


@lru_cache(maxsize=8)
def get_token_pieces(tokenizer: PreTrainedTokenizerBase) -> TokenPieces:
    """Return the shared :class:`TokenPieces` of a tokenizer."""
    return TokenPieces(tokenizer)


def hash_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the SHA-256 of the mapping from texts to ids."""
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()


def hash_template(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the SHA-256 of a tokenizer's chat templates; empty if it has none."""
    template = tokenizer.chat_template
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest() if template else ""


def describe_tokenizer(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """Return a tokenizer's name and the versions of the libraries that made it.

    Two versions of transformers may make different tokenizers from one file.
    """
    name = str(tokenizer.name_or_path or type(tokenizer).__name__)
    short = Path(name).name if Path(name).is_absolute() else name
    return {"name": short, **{library: version(library) for library in _LIBRARIES}}


def format_tokenizer(described: Mapping[str, str] | None) -> str:
    """Format what `describe_tokenizer` returned; None for ids recorded without it."""
    if not described:
        return "an unnamed one"
    libraries = " and ".join(f"{library} {described.get(library, '?')}" for library in _LIBRARIES)
    return f"{described.get('name', 'an unnamed one')} by {libraries}"
