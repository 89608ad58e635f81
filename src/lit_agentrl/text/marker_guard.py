"""Encode external text (games, tools, users, data) as plain text, whatever markers it spells."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

STAND_IN = "\ue000"  # a private-use character: templates neither write nor trim it
_LAST_STAND_IN = 0xF8FF
_PRIVATE = re.compile(r"[\ue000-\uf8ff]")
_TEXTS = ("content", "thought")  # keys of a message whose whole text a stand-in can replace


@dataclass(frozen=True)
class Guarded:
    """Messages that are safe to render: their text cannot be mistaken for template markers.

    Attributes:
        messages: The messages; if one spells a marker, stand-ins replace the contents of all.
        contents: The content behind each stand-in.
        broken: Number of plain-text markers that were broken up by a space.
    """

    messages: list[dict[str, str]]
    contents: dict[str, str] = field(default_factory=dict)
    broken: int = 0


@dataclass(frozen=True)
class Encoded:
    """Token ids, their start positions in the text, and the number of broken markers."""

    tokens: list[int]
    starts: list[int]
    broken: int = 0


class MarkerGuard:
    """Guard that keeps the text of messages apart from the markers of the chat template.

    A message may spell the markers that end it and begin a reply of the policy
    (``<|im_end|><|im_start|>assistant``).  Such a marker is encoded as plain characters.  If the tokenizer has no
    other encoding of it (the vocabulary holds it as a word, or the template's markers are plain text), a space breaks
    it up, and this is counted.  A message without markers gets its usual tokens.

    Markers are the special tokens, other added tokens that the template writes, and plain text that it writes.  A
    single character, or a word of letters and digits, is never a marker.

    ``sanitize_control_tokens`` of transformers is not used, because it gives no token positions and refuses what it
    cannot encode.

    Args:
        tokenizer: A tokenizer with a `tokenizers` backend.
        template_texts: The texts that the template writes before, between and after messages.
        spared: A reply of the dialect.  Instructions quote its tags, so these are not markers even if the template
            writes them.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, template_texts: Sequence[str], *, spared: str
    ) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder.values()
        special = {token.content for token in added if token.special} | set(tokenizer.all_special_tokens)
        written_tokens = {
            token.content
            for token in added
            if token.content not in spared
            and not token.content.isalnum()
            and any(token.content in text for text in template_texts)
        }
        self._marker_tokens = frozenset(token for token in special | written_tokens if len(token.strip()) > 1)
        self._token_pattern = _match_any(self._marker_tokens)
        self._plain_pattern = _match_any(
            {word for word in _find_plain_markers(template_texts, self._token_pattern) if word not in spared}
        )
        self._unknown_id = tokenizer.unk_token_id  # unknown words have it too, so it does not prove a marker
        ids = {tokenizer.backend_tokenizer.token_to_id(token) for token in self._marker_tokens}
        self._marker_ids = ids - {None, self._unknown_id}

    def guard(self, messages: Sequence[Mapping[str, str]], *, is_minimal: bool = False) -> Guarded:
        """Return copies of the messages that are safe to render.

        Args:
            messages: The messages.
            is_minimal: Whether stand-ins replace only the texts that spell a marker.
        """
        broken, safe = 0, []
        for message in messages:
            safe.append(dict(message))
            for key in _TEXTS:
                if key in message:
                    safe[-1][key], times = self._break_up_words(message[key])
                    broken += times
            # the template renders tools and calls itself, so no stand-in can replace them
            for key in ("tools", "calls"):
                if key in message:
                    parts, times = self._break_up_parts(json.loads(message[key]))
                    safe[-1][key] = json.dumps(parts, ensure_ascii=False)
                    broken += times
        if not any(self._has_marker(message.get(key, "")) for message in safe for key in _TEXTS):
            return Guarded(safe, broken=broken)
        contents: dict[str, str] = {}
        for number, message in enumerate(safe):
            for key in _TEXTS:
                text = message.get(key, "").strip()
                if is_minimal and not self._has_marker(text) and not _PRIVATE.search(text):
                    continue
                if text:  # white space around the text stays, since templates and tokenizers trim
                    is_first = key == "content"
                    stand_in = chr(ord(STAND_IN) + number if is_first else _LAST_STAND_IN - number)
                    contents[stand_in] = text
                    message[key] = message[key].replace(text, stand_in, 1)
        return Guarded(safe, contents, broken)

    def encode(self, text: str, contents: Mapping[str, str]) -> Encoded:
        """Return the tokens of a rendered text, with contents in place of their stand-ins.

        Token starts are positions in the given text; tokens of a content start at its stand-in.
        """
        # call the backend directly: the wrapper of transformers doubles the cost
        encoding = self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
        ids, spans = encoding.ids, encoding.offsets
        if not contents:
            return Encoded(ids, [start for start, _ in spans])
        tokens: list[int] = []
        starts: list[int] = []
        first = begin = broken = 0
        # the tokenizer encodes the text between two template markers separately anyway
        for k in [*(k for k, token in enumerate(ids) if token in self._marker_ids), len(ids)]:
            end = spans[k][0] if k < len(ids) else len(text)
            stretch = text[begin:end]
            if any(stand_in in stretch for stand_in in contents):
                encoded = self._encode_as_text(stretch, contents)
                tokens += encoded.tokens
                starts += [begin + start for start in encoded.starts]
                broken += encoded.broken
                first = k
            tokens += ids[first : k + 1]
            starts += [start for start, _ in spans[first : k + 1]]
            first, begin = k + 1, spans[k][1] if k < len(ids) else end
        return Encoded(tokens, starts, broken)

    def find_markers(self, content: str) -> list[str]:
        """Return the markers that a content spells, in order of their kind."""
        return [*self._token_pattern.findall(content), *self._plain_pattern.findall(content)]

    @property
    def ids(self) -> frozenset[int]:
        """The ids of the tokens that are markers."""
        return frozenset(token for token in self._marker_ids if token is not None)

    def _break_up_words(self, content: str) -> tuple[str, int]:
        """Insert a space into each plain-text marker of a content; return their number too."""
        if not self._plain_pattern.search(content):
            return content, 0
        # look ahead, since markers may overlap
        return re.subn(f"(?=(?:{self._plain_pattern.pattern}))(.)", r"\1 ", content, flags=re.DOTALL)

    def _break_up_parts(self, part: Any) -> tuple[Any, int]:
        """Insert a space into each marker of tools or calls; return their number too."""
        if isinstance(part, str):
            text, words = self._break_up_words(part)
            text, tokens = re.subn(f"(?=(?:{self._token_pattern.pattern}))(.)", r"\1 ", text, flags=re.DOTALL)
            if self._has_marker(text):
                raise ValueError(f"a tool spells a marker of the template ({part[:40]!r}); rename it")
            return text, words + tokens
        if isinstance(part, dict):
            pairs = [(self._break_up_parts(key), self._break_up_parts(value)) for key, value in part.items()]
            return {key[0]: value[0] for key, value in pairs}, sum(key[1] + value[1] for key, value in pairs)
        if isinstance(part, list):
            entries = [self._break_up_parts(item) for item in part]
            return [entry for entry, _ in entries], sum(times for _, times in entries)
        return part, 0

    def _has_marker(self, content: str) -> bool:
        if self._token_pattern.search(content):
            return True
        normalizer = self._tokenizer.backend_tokenizer.normalizer  # may turn look-alikes into a marker
        return normalizer is not None and bool(self._token_pattern.search(normalizer.normalize_str(content)))

    def _encode_as_text(self, stretch: str, contents: Mapping[str, str]) -> Encoded:
        """Encode a text without template markers, with contents in place of stand-ins."""
        parts = [contents.get(char, char) for char in stretch]
        text = "".join(parts)
        places = [*(index for index, part in enumerate(parts) for _ in part), len(parts)]
        backend, unknown = (
            _make_text_only_backend(self._tokenizer, self._marker_tokens),
            self._tokenizer.unk_token,
        )
        broken = 0
        for attempt in count():
            encoding = backend.encode(text, add_special_tokens=False)
            marker_spans = [
                (start, end)
                for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
                if token in self._marker_ids or (token == self._unknown_id and text[start:end] == unknown)
            ]
            if not marker_spans:
                break
            broken += len(marker_spans)
            text, places = _break_up(text, places, marker_spans, is_replaced=attempt > 0)
        return Encoded(encoding.ids, [places[start] for start, _ in encoding.offsets], broken)


def _break_up(
    text: str, places: Sequence[int], spans: Sequence[tuple[int, int]], *, is_replaced: bool
) -> tuple[str, list[int]]:
    """Insert a space into each span, or replace each span by a space.

    Returns:
        The text, and the position that each of its characters had before.
    """
    parts: list[str] = []
    new_places: list[int] = []
    copied = 0
    for start, end in spans:
        cut = start if is_replaced else (start + end + 1) // 2
        parts += [text[copied:cut], " "]
        new_places += [*places[copied:cut], places[start]]
        copied = end if is_replaced else cut
    return "".join([*parts, text[copied:]]), [*new_places, *places[copied:]]


def _find_plain_markers(template_texts: Sequence[str], token: re.Pattern[str]) -> set[str]:
    """Return the plain-text markers that a template writes."""
    markers = set()
    for text in template_texts:
        parts = token.split(text)
        for part in parts:
            word = part.strip()
            if not any(char.isalnum() for char in word):
                continue
            if not word.isalnum():
                markers.add(word)
            elif len(parts) == 1 and part[:1].isspace() and part[-1:].isspace():
                markers.add(part)  # a word with its white space; the word alone is ordinary text
    return markers


def _match_any(texts: Collection[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(texts, key=lambda text: (-len(text), text)))) or "(?!)")


@lru_cache(maxsize=8)
def _make_text_only_backend(tokenizer: PreTrainedTokenizerBase, tokens: frozenset[str]) -> Tokenizer:
    """Return a cached copy of the backend that encodes these tokens as text."""
    config = json.loads(tokenizer.backend_tokenizer.to_str())
    for added in config["added_tokens"]:
        added["special"] = added["special"] or added["content"] in tokens
    backend = Tokenizer.from_str(json.dumps(config))
    backend.encode_special_tokens = True
    return backend
