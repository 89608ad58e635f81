"""The context of chat templates that rewrite history, such as earlier thoughts.

Each prompt is the template's own rendering of the dialogue.  If it begins with the text of the row so far, prompt and
reply, the row goes on with the tokens that were sampled.  Otherwise the turn starts a row with the rendering as its
prompt, which is what a server would show the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from os.path import commonprefix
from typing import ClassVar

from lit_agentrl.episode import Message, Segment, Turn
from lit_agentrl.text.chat import ChatRenderer, Prefix, fold_system
from lit_agentrl.text.context import Past, build_dialogue
from lit_agentrl.text.template_forms import find_forms


@dataclass(frozen=True)
class Template:
    """The whole dialogue as the chat template renders it.

    A reply is rendered as a server hands it on: without its end token and special tokens, and with its thought apart if
    the template takes thoughts apart.  Thoughts that the template drops are trained on in the row that wrote them.
    """

    is_append_only: ClassVar[bool] = False
    shows_replies: ClassVar[bool] = False

    def prompt(self, past: Past, chat: ChatRenderer) -> Prefix:
        """Return the tokens after the last reply if the row continues, else the whole prompt."""
        writer, count = _make_writer(chat), len(past.turns)
        shown = writer.render(_list_messages(past, chat, count))
        if count:
            before = writer.render(_list_messages(past, chat, count - 1))
            prefix = writer.continue_row(before, past.turns[-1], shown)
            if prefix is not None:
                return prefix
        return writer.begin_row(shown, count)

    def messages(self, past: Past) -> list[Message]:
        """See `ShowsMessages`."""
        return build_dialogue(past, 0)


def _list_messages(past: Past, chat: ChatRenderer, count: int) -> list[Message]:
    """Return the dialogue after ``count`` replies, which begin with what the header opens."""
    dialogue = list(past.opening())
    for turn, message in zip(past.turns[:count], past.messages[1 : count + 1], strict=True):
        tokens = turn.reply_tokens.tolist()
        text = chat.opening + chat.decode(tokens[: len(tokens) - _count_ends(chat, tokens)])
        dialogue += [{"role": "assistant", "content": text}, {"role": "user", "content": message}]
    return dialogue


def _count_ends(chat: ChatRenderer, tokens: Sequence[int]) -> int:
    return int(bool(tokens) and tokens[-1] in chat.end_of_turn_ids)


@dataclass(frozen=True)
class _Shown:
    """A rendered dialogue that ends with the header of a reply.

    Attributes:
        text: The rendering, with stand-ins for contents that spell markers.
        contents: The content of each stand-in.
        messages: The messages as rendered.
        tools: The tools that the template lists.
        broken: Number of markers that a space broke up.
    """

    text: str
    contents: Mapping[str, str]
    messages: Sequence[Message]
    tools: Sequence[object]
    broken: int


class _Writer:
    """Renders dialogues, and finds where a template writes the thought of a reply."""

    def __init__(self, chat: ChatRenderer) -> None:
        self._chat, self._forms = chat, find_forms(chat)
        added = chat.tokenizer.added_tokens_decoder.values()
        special = {token.content for token in added if token.special} | set(chat.tokenizer.all_special_tokens)
        self._special = sorted(special, key=len, reverse=True)
        user, key = {"role": "user", "content": "u"}, self._forms.thought_key
        base = chat.render_text([user], header=False)
        opened = chat.render_text([user], header=True)
        self._header = opened.removeprefix(base).removesuffix(chat.opening)
        reply = {"role": "assistant", "content": "q2"}
        written = chat.render_text([user, {**reply, key: "q1"} if key else reply], header=False)
        before = written.removeprefix(base).removeprefix(self._header).partition("q2")[0]
        self._thought_start, _, self._thought_end = before.partition("q1") if key else ("", "", "")
        # what the template writes before a reply without a thought, such as an empty think block
        bare = chat.render_text([user, reply], header=False)
        self._without_thought = bare.removeprefix(base).removeprefix(self._header).partition("q2")[0]

    def render(self, messages: Sequence[Message]) -> _Shown:
        """Render messages and the header of the next reply."""
        chat = self._chat
        shown = [self._split_reply(m) if m["role"] == "assistant" else m for m in messages]
        guarded = chat.guard(fold_system(shown) if chat.folds_system else shown)
        tools = [tool for message in guarded.messages for tool in json.loads(message.get("tools", "[]"))]
        text = chat.render_text(self._forms.shape(guarded.messages), tools=tools, header=True)
        return _Shown(text, guarded.contents, guarded.messages, tools, guarded.broken)

    def _split_reply(self, message: Message) -> Message:
        """Return a reply without special tokens, its thought apart if the template wants that."""
        content, thought = message["content"], None
        start, end, inside = self._thought_start.strip(), self._thought_end.strip(), content.lstrip()
        skipped = self._thought_start if inside.startswith(self._thought_start) else start
        body = inside.removeprefix(skipped)
        if start and end and body != inside and end in body:
            at, num_blanks = body.index(end), self._thought_end.index(end)
            # blanks beside the tag are the template's own
            if body.startswith(self._thought_end, max(0, at - num_blanks)):
                thought, content = body[: at - num_blanks], body[at - num_blanks + len(self._thought_end) :]
            else:
                thought, content = body[:at], body[at + len(end) :]
        elif self._without_thought and content.startswith(self._without_thought):
            content = content.removeprefix(self._without_thought)
        elif (plain := self._without_thought.strip()) and inside.startswith(plain):
            content = inside.removeprefix(plain)
        shown = {**message, "content": self._drop_special(content)}
        return shown if thought is None else {**shown, "thought": self._drop_special(thought)}

    def _drop_special(self, text: str) -> str:
        for token in self._special:
            text = text.replace(token, "")
        return text

    def continue_row(self, before: _Shown, turn: Turn, shown: _Shown) -> Prefix | None:
        """Return the tokens after a reply; None if the template rewrites what was before."""
        chat, tokens = self._chat, turn.reply_tokens.tolist()
        ends = tokens[len(tokens) - _count_ends(chat, tokens) :]
        text, end = chat.decode(tokens[: len(tokens) - len(ends)]), chat.decode(ends)
        row = before.text + text + end
        if self._drop_special(text) != text or not shown.text.startswith(row) or shown.text == row:
            return None
        rest = end + shown.text[len(row) :]  # the tokens of a text may depend on the end token before it
        bound = len(chat.end_text) if rest.startswith(chat.end_text) else 0
        prefix = chat.encode_prefix(rest, shown.contents, [(bound, Segment.FORCED)])
        if prefix.tokens[: len(ends)] != ends:
            return None
        broken = prefix.broken + max(0, shown.broken - before.broken)
        return Prefix(prefix.tokens[len(ends) :], prefix.segments[len(ends) :], broken, continues=True)

    def begin_row(self, shown: _Shown, count: int) -> Prefix:
        """Return the tokens of a whole prompt that shows ``count`` replies."""
        bounds = self._find_bounds(shown, count) if count else []
        prefix = self._chat.encode_prefix(shown.text, shown.contents, bounds)
        return replace(prefix, broken=prefix.broken + shown.broken)

    def _find_bounds(self, shown: _Shown, count: int) -> list[tuple[int, Segment]]:
        """Find the ends of the opening, of replies, and of later messages in a rendering."""
        chat, text, first = self._chat, shown.text, len(shown.messages) - 2 * count
        opening = chat.render_text(self._forms.shape(shown.messages[:first]), tools=shown.tools, header=False)
        place = len(commonprefix([opening, text]))
        bounds = [(place, Segment.PROMPT)]
        for message in shown.messages[first + 1 :: 2]:
            start = place + len(self._header) * text.startswith(self._header, place)
            content = message["content"].strip()
            found = text.find(content, start)
            if found < 0:
                break
            cut = text.rfind(chat.end_text, start, found) if chat.end_text else -1
            end, after = (cut, cut + len(chat.end_text)) if cut >= 0 else (found, found)
            place = max(found + len(content), text.find(self._header, found + len(content)))
            bounds += [(start, Segment.FORCED), (end, Segment.PAST), (after, Segment.FORCED)]
            bounds.append((place, Segment.OBSERVATION))
        return bounds


@lru_cache(maxsize=4)
def _make_writer(chat: ChatRenderer) -> _Writer:
    return _Writer(chat)
