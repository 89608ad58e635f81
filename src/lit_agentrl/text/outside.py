"""Text from outside (games, tools, users, data): it is encoded as text, whatever it spells."""

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

STAND_IN = "\ue000"  # of the private use area: templates write none, and trim none


@dataclass(frozen=True)
class Guarded:
    """Messages that may be rendered: what they spell is not taken for the template's.

    Attributes:
        messages: as they were; where one spells a marker, stand-ins in place of the contents.
        held: the content that each stand-in stands for.
        broken: markers of plain text that were broken up.
    """

    messages: list[dict[str, str]]
    held: dict[str, str] = field(default_factory=dict)
    broken: int = 0


@dataclass(frozen=True)
class Encoded:
    """Token ids, where each starts in the text that was given, and how many markers were broken up for it."""

    tokens: list[int]
    starts: list[int]
    broken: int = 0


class Outside:
    """Keeps what messages say apart from what the chat template says.

    A message may spell what a policy takes for the end of a message and the beginning of its own
    (``<|im_end|><|im_start|>assistant``).  Such a marker is encoded as the characters that spell it.  Where the
    tokenizer has no other encoding of it (a vocabulary that holds it as a word, a template whose markers are
    plain text), a space breaks it up, and it is counted.  A message that spells no marker gets the tokens that it
    has anyhow.

    Markers are the special tokens, the other added tokens that the template writes, and what it writes in plain
    text.  Neither a single character nor a word of letters and digits is one.

    (``sanitize_control_tokens`` of transformers does not tell where tokens start, and refuses what it cannot encode.)

    Args:
        tokenizer: one with a `tokenizers` backend.
        around: the texts that the template writes before, between and after messages.
        spared: a reply of the dialect: instructions quote its tags, so the template's use of them makes no marker.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, around: Sequence[str], *, spared: str) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder.values()
        special = {token.content for token in added if token.special} | set(tokenizer.all_special_tokens)
        written = {
            token.content
            for token in added
            if token.content not in spared
            and not token.content.isalnum()
            and any(token.content in text for text in around)
        }
        self._tokens = frozenset(token for token in special | written if len(token.strip()) > 1)
        self._token = _any_of(self._tokens)
        self._word = _any_of({word for word in _words(around, self._token) if word not in spared})
        self._unknown = tokenizer.unk_token_id  # what unknown words become as well
        found = {tokenizer.backend_tokenizer.token_to_id(token) for token in self._tokens}
        self._ids = found - {None, self._unknown}

    def guard(self, messages: Sequence[Mapping[str, str]]) -> Guarded:
        """What to render in place of these messages."""
        broken, safe = 0, []
        for message in messages:
            content, times = self._words_broken_up(message["content"])
            broken += times
            safe.append({**message, "content": content})
            if "tools" in message:  # which the template writes itself, so no stand-in can take their place
                tools, times = self._tools_broken_up(json.loads(message["tools"]))
                safe[-1]["tools"] = json.dumps(tools, ensure_ascii=False)
                broken += times
        if not any(self._is_spelt(message["content"]) for message in safe):
            return Guarded(safe, broken=broken)
        held: dict[str, str] = {}
        for number, message in enumerate(safe):
            core, stand_in = message["content"].strip(), chr(ord(STAND_IN) + number)
            if core:  # white space stays around it, since templates and tokenizers trim
                held[stand_in] = core
                message["content"] = message["content"].replace(core, stand_in, 1)
        return Guarded(safe, held, broken)

    def encode(self, text: str, held: Mapping[str, str]) -> Encoded:
        """Tokens of a rendered text, with the contents that are held in place of their stand-ins.

        Tokens start where they do in the text that was given; those of a content start at its stand-in.
        """
        # the library's own call: transformers' wrapping of it costs as much again
        encoding = self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
        ids, spans = encoding.ids, encoding.offsets
        if not held:
            return Encoded(ids, [start for start, _ in spans])
        tokens: list[int] = []
        starts: list[int] = []
        first = begin = broken = 0
        # what stands between two markers of the template is encoded by itself anyhow
        for k in [*(k for k, token in enumerate(ids) if token in self._ids), len(ids)]:
            end = spans[k][0] if k < len(ids) else len(text)
            stretch = text[begin:end]
            if any(stand_in in stretch for stand_in in held):
                found = self._as_text(stretch, held)
                tokens += found.tokens
                starts += [begin + start for start in found.starts]
                broken += found.broken
                first = k
            tokens += ids[first : k + 1]
            starts += [start for start, _ in spans[first : k + 1]]
            first, begin = k + 1, spans[k][1] if k < len(ids) else end
        return Encoded(tokens, starts, broken)

    def _words_broken_up(self, content: str) -> tuple[str, int]:
        """A content with a space in each marker of plain text, and their number."""
        if not self._word.search(content):
            return content, 0
        # looking ahead, since markers may overlap
        return re.subn(f"(?=(?:{self._word.pattern}))(.)", r"\1 ", content, flags=re.DOTALL)

    def _tools_broken_up(self, part: Any) -> tuple[Any, int]:
        """Tools with a space in each marker that a name or a text of theirs spells, and their number."""
        if isinstance(part, str):
            text, words = self._words_broken_up(part)
            text, tokens = re.subn(f"(?=(?:{self._token.pattern}))(.)", r"\1 ", text, flags=re.DOTALL)
            if self._is_spelt(text):
                raise ValueError(f"a tool spells a marker of the template ({part[:40]!r}); rename it")
            return text, words + tokens
        if isinstance(part, dict):
            pairs = [
                (self._tools_broken_up(key), self._tools_broken_up(value)) for key, value in part.items()
            ]
            return {key[0]: value[0] for key, value in pairs}, sum(key[1] + value[1] for key, value in pairs)
        if isinstance(part, list):
            found = [self._tools_broken_up(each) for each in part]
            return [each for each, _ in found], sum(times for _, times in found)
        return part, 0

    def _is_spelt(self, content: str) -> bool:
        if self._token.search(content):
            return True
        normalizer = self._tokenizer.backend_tokenizer.normalizer  # may make a marker of look-alikes
        return normalizer is not None and bool(self._token.search(normalizer.normalize_str(content)))

    def _as_text(self, stretch: str, held: Mapping[str, str]) -> Encoded:
        """Tokens of a text in which the template writes no marker, with the contents in it."""
        parts = [held.get(char, char) for char in stretch]
        text = "".join(parts)
        places = [*(at for at, part in enumerate(parts) for _ in part), len(parts)]
        backend, unknown = _text_only(self._tokenizer, self._tokens), self._tokenizer.unk_token
        broken = 0
        for attempt in count():
            encoding = backend.encode(text, add_special_tokens=False)
            bad = [
                (start, end)
                for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
                if token in self._ids or (token == self._unknown and text[start:end] == unknown)
            ]
            if not bad:
                break
            broken += len(bad)
            text, places = _broken_up(text, places, bad, is_stubborn=attempt > 0)
        return Encoded(encoding.ids, [places[start] for start, _ in encoding.offsets], broken)


def _broken_up(
    text: str, places: Sequence[int], spans: Sequence[tuple[int, int]], *, is_stubborn: bool
) -> tuple[str, list[int]]:
    """A text with a space in the middle of each span, or in place of it, and where its characters come from."""
    parts: list[str] = []
    found: list[int] = []
    done = 0
    for start, end in spans:
        cut = start if is_stubborn else (start + end + 1) // 2
        parts += [text[done:cut], " "]
        found += [*places[done:cut], places[start]]
        done = end if is_stubborn else cut
    return "".join([*parts, text[done:]]), [*found, *places[done:]]


def _words(around: Sequence[str], token: re.Pattern[str]) -> set[str]:
    """What a template writes in plain text and nobody else should."""
    found = set()
    for text in around:
        parts = token.split(text)
        for part in parts:
            word = part.strip()
            if not any(char.isalnum() for char in word):
                continue
            if not word.isalnum():
                found.add(word)
            elif len(parts) == 1 and part[:1].isspace() and part[-1:].isspace():
                found.add(part)  # a word between white space; by itself it is anybody's
    return found


def _any_of(texts: Collection[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(texts, key=lambda text: (-len(text), text)))) or "(?!)")


@lru_cache(maxsize=8)
def _text_only(tokenizer: PreTrainedTokenizerBase, tokens: frozenset[str]) -> Tokenizer:
    """A copy of the backend that takes these tokens for text; made where the first of them is met."""
    plan = json.loads(tokenizer.backend_tokenizer.to_str())
    for added in plan["added_tokens"]:
        added["special"] = added["special"] or added["content"] in tokens
    copy = Tokenizer.from_str(json.dumps(plan))
    copy.encode_special_tokens = True
    return copy
