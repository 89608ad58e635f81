"""What each token id contributes to the decoded text, as bytes, so that tags split over tokens are seen."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_FALLBACK_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_of_char() -> dict[str, int]:
    """Inverse of byte-level BPE's alphabet: printable bytes stand for themselves, others follow from 256."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


_BYTE_OF_CHAR = _byte_of_char()


def require_fast(tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a tokenizer that can neither say where its tokens start nor how it decodes, or that has no markers.

    Raises:
        ValueError: If the tokenizer has no `tokenizers` backend, or one that takes the template's markers for text.
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
    """Bytes of single tokens, looked up once and kept.

    The joined pieces of a reply equal its decoded text up to white space at the start and, unlike decoding
    token by token, are exact where a token holds only part of a UTF-8 character.
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
        """The bytes of a token that is not the first of the text; empty for an id without text."""
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
                return bytes(_BYTE_OF_CHAR[char] for char in token)
            except KeyError:  # an added token is plain text, not in the byte alphabet
                return token.encode()
        if self._has_byte_fallback and (match := _FALLBACK_BYTE.fullmatch(token)):
            return bytes([int(match[1], 16)])
        # After an anchor, since many decoders put a space before all tokens but the first.
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
def pieces_of(tokenizer: PreTrainedTokenizerBase) -> TokenPieces:
    """The shared :class:`TokenPieces` of a tokenizer."""
    return TokenPieces(tokenizer)


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 of what maps texts to ids."""
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
