"""Dialogues of rows as the chat template renders them, reply by reply."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any, NamedTuple

from lit_agentrl.envs.tasks.messages import BadRow, Messages
from lit_agentrl.envs.tasks.spelling import spell_calls, spell_results, spell_tools
from lit_agentrl.episode import Message, Segment
from lit_agentrl.text.chat import REMEDY, ChatRenderer, fold_system
from lit_agentrl.text.template_forms import find_forms

_OPENED = "opened"  # key of a reply whose content begins inside the thought that the header opens
THOUGHTS, TEXTS = "thoughts", "texts beside calls"  # what a rendering may lose


@dataclass(frozen=True)
class RenderedReply:
    """A reply with the tokens before it.

    Attributes:
        starts_row: True if the prefix is the whole prompt; otherwise the prefix continues the previous reply.
        prefix_tokens, prefix_segments: what precedes the reply.
        tokens: the reply, its end included.
        ends: the last of ``tokens``, which end the reply.
        text: the reply without its end.
        is_in_thought: True if the prefix ends inside a thought.
        lost: what the template left out of the reply.
    """

    starts_row: bool
    prefix_tokens: list[int]
    prefix_segments: list[int]
    tokens: list[int]
    ends: list[int]
    text: str
    is_in_thought: bool
    lost: tuple[str, ...]


@dataclass(frozen=True)
class _Covered:
    """The beginning of a rendered text that a row already holds as tokens.

    Attributes:
        text: the beginning that the row holds.
        end: the end marker at the end of ``text``; empty if the template writes none there.
        closed: the rendered text up to where the next message begins.
    """

    text: str = ""
    end: str = ""
    closed: str = ""


class _EndedReply(NamedTuple):
    """A reply and the tokens that end it.

    Attributes:
        tokens: the reply, its end included.
        num_ends: the number of tokens that end it.
        text: the reply without its end, with stand-ins.
        covered: what the row holds after the reply.
    """

    tokens: list[int]
    num_ends: int
    text: str
    covered: _Covered


class DialogueWriter:
    """Writer of dialogues in the form of a chat template.

    Tools, calls, results and thoughts are written by the template where it can, else spelt in contents.

    Args:
        chat: renders text and tokens.
    """

    def __init__(self, chat: ChatRenderer) -> None:
        self._chat = chat
        self.forms = find_forms(chat)
        self._marker_ids = chat.marker_ids
        self._think_tags = chat.dialect.think_start, chat.dialect.think_start.replace("<", "</", 1)
        closing_tag = self._think_tags[1]
        self._thought_end = f"\n{closing_tag}\n\n" if chat.opening.endswith("\n") else closing_tag

    def must_spell(self, messages: Messages) -> bool:
        """Return whether the messages hold tools or calls that the template does not write."""
        return any(
            ("calls" in message and self.forms.calls is None)
            or ("tools" in message and not self.forms.lists_tools)
            for message in messages
        )

    def spell(self, messages: Messages) -> Messages:
        """Spell in the contents what the template does not write itself."""
        if not self.forms.lists_tools:
            messages = spell_tools(messages)
        if self.forms.calls is None:
            has_calls_alone = self._chat.dialect.formats == {"tools"}
            messages = spell_calls(messages, self._chat.dialect.write if has_calls_alone else None)
        if not self.forms.shows_results:
            messages = spell_results(messages)
        messages = [
            self._split_thought(message) if message["role"] == "assistant" else message
            for message in messages
        ]
        return fold_system(messages) if self._chat.folds_system else messages

    def _split_thought(self, message: Message) -> Message:
        """Split a think block off the content where the template writes its beginning."""
        (start, end), opening = self._think_tags, self._chat.opening
        content = message["content"]
        has_block = content.lstrip().startswith(start) or (bool(opening) and end in content)
        if not start or not has_block or message.get("thought"):
            return message
        inside = content.lstrip().removeprefix(start)
        if self.forms.thought_key or not self.forms.keeps_blocks:
            thought, tag, rest = inside.partition(end)
            return (
                {**message, "thought": thought.strip("\n"), "content": rest.lstrip("\n")} if tag else message
            )
        if not opening:
            return message
        # what the header writes is not written again, white space included
        return {**message, "content": inside.removeprefix(opening.partition(start)[2]), _OPENED: "1"}

    def _join_thought(self, message: Message) -> Message:
        """Join the thought of a guarded reply to its content, if it belongs there."""
        (start, end), opening = self._think_tags, self._chat.opening
        if message["role"] != "assistant" or not start:
            return message
        if self.forms.thought_key or not self.forms.keeps_blocks:
            return message
        bare = {key: text for key, text in message.items() if key not in ("thought", _OPENED)}
        thought, content = message.get("thought", ""), message["content"]
        if _OPENED in message:
            content = opening + content
        elif opening:
            content = f"{opening}{thought.strip()}{self._thought_end}{content}"
        elif thought:
            content = f"{start}{thought}{end}{content}"
        return {**bare, "content": content}

    def render(self, messages: Messages) -> Iterator[RenderedReply]:
        """Render each reply of a spelt dialogue, in the prompt of its turn.

        Raises:
            BadRow: the template leaves out a call, or rewrites the messages before a reply.
            ValueError: the template refuses the messages.
        """
        guarded = self._chat.guard(messages)
        joined = [self._join_thought(message) for message in guarded.messages]
        tools = json.loads(joined[0].get("tools", "[]"))
        dialogue = _Dialogue(self._chat, self.forms.shape(joined), tools)
        covered = _Covered()
        for index, message in enumerate(joined):
            if message["role"] != "assistant":
                continue
            prompt = dialogue.render(index, header=True)
            is_continued = bool(covered.text) and prompt.startswith(covered.text)
            if is_continued:
                tokens, segments = self._encode_between(prompt, covered, guarded.contents)
            else:
                prefix = self._chat.encode_prefix(prompt, guarded.contents)
                tokens, segments = prefix.tokens, prefix.segments
            text, lost = self._write_reply(dialogue, index, guarded.messages[index], prompt)
            ended = self._end_reply(dialogue, index, message, prompt, text, guarded.contents)
            covered = ended.covered
            yield RenderedReply(
                starts_row=not is_continued, prefix_tokens=tokens, prefix_segments=segments, tokens=ended.tokens,
                ends=ended.tokens[len(ended.tokens) - ended.num_ends :], lost=lost,
                text="".join(guarded.contents.get(char, char) for char in ended.text),
                is_in_thought=bool(self._chat.opening) and prompt.endswith(self._chat.opening),
            )  # fmt: skip

    def _encode_between(
        self, prompt: str, covered: _Covered, contents: Mapping[str, str]
    ) -> tuple[list[int], list[int]]:
        """Encode the text between two replies as the tokenizer encodes it after the end marker."""
        num_forced = len(covered.closed) - len(covered.text) if prompt.startswith(covered.closed) else 0
        # without the end marker if the tokenizer joins it with the text behind it
        for end in (covered.end, ""):
            bound = len(end) + max(num_forced, 0)
            rest = end + prompt[len(covered.text) :]
            prefix = self._chat.encode_prefix(rest, contents, [(bound, Segment.FORCED)])
            ends = self._chat.encode_text(end, {}).tokens
            if prefix.tokens[: len(ends)] == ends:
                break
        return prefix.tokens[len(ends) :], prefix.segments[len(ends) :]

    def _write_reply(
        self, dialogue: _Dialogue, index: int, message: Message, prompt: str
    ) -> tuple[str, tuple[str, ...]]:
        """Return what the template writes of a reply, and what it leaves out."""
        closed, (start, end) = dialogue.render(index + 1, header=False), self._think_tags
        opening = self._chat.opening if prompt.endswith(self._chat.opening) else ""
        thought, core = message.get("thought", "").strip(), message["content"].strip()
        lost: list[str] = []
        if closed.startswith(prompt):
            text = closed[len(prompt) :]
            if thought and thought not in text:
                if start and not self.forms.thought_key:
                    text = f"{start}\n{thought}\n{end}\n\n{text.lstrip()}"
                else:
                    lost.append(THOUGHTS)
        else:
            before = prompt.removesuffix(opening)
            if not closed.startswith(before):
                before = commonprefix([closed, prompt])
                if not before.startswith(dialogue.render(index, header=False)):
                    raise BadRow(
                        "rewritten",
                        f"the chat template rewrites the messages before a reply once it is there; {REMEDY}",
                    )
            text = closed[len(before) :]
            inside = text.lstrip()
            if end and end in prompt[len(before) :] and end in text:  # the header has closed an empty thought
                text = text.partition(end)[2].lstrip()
                lost += [THOUGHTS] if thought else []
            elif opening and inside.startswith(start):  # after white space that the header lacks
                text = inside.removeprefix(start).removeprefix(opening.partition(start)[2])
            elif opening:  # the template leaves out the thought that its header opens
                text = f"{thought}{self._thought_end}{inside}"
            elif thought and thought not in text:
                lost.append(THOUGHTS)
        if "calls" in message and core not in text:
            lost.append(TEXTS)
        names = [call["name"] for call in json.loads(message.get("calls", "[]"))]
        if missing := [name for name in names if name not in text]:
            raise BadRow(
                "lost_call", f"the chat template leaves out the call of {missing[0][:40]!r}; {REMEDY}"
            )
        return text, tuple(lost)

    def _end_reply(
        self, dialogue: _Dialogue, index: int, message: Message, prompt: str, text: str,
        contents: Mapping[str, str],
    ) -> _EndedReply:  # fmt: skip
        """Return a reply with its end, which the template may also write later, or never."""
        chat = self._chat
        encoded = chat.encode_text(text, contents)
        place = self._find_end(text, encoded.tokens, encoded.starts)
        if place is not None:
            starts = [*encoded.starts, len(text)]
            begin, cut = starts[place], starts[place + 1]
            covered = _Covered(prompt + text[:cut], text[begin:cut], prompt + text)
            return _EndedReply(encoded.tokens[: place + 1], 1, text[:begin], covered)
        body = text.removesuffix(chat.end_text) if chat.end_text else text
        tokens = chat.encode_text(body, contents).tokens
        if not chat.end_text.strip():
            follows = dialogue.find_following(index, is_call="calls" in message)
            opened = chat.encode_text(follows.lstrip(), contents).tokens[:1]
            marker = chat.decode(opened)
            if opened and opened[0] in chat.end_of_turn_ids and follows.lstrip().startswith(marker):
                blank = follows[: len(follows) - len(follows.lstrip())]
                covered = _Covered(prompt + text + blank + marker, marker)
                return _EndedReply([*tokens, *opened], 1, body, covered)
        ends = chat.end_of_turn_ids[:1]
        return _EndedReply([*tokens, *ends], len(ends), body, _Covered(prompt + body, "", prompt + text))

    def _find_end(self, text: str, tokens: Sequence[int], starts: Sequence[int]) -> int | None:
        """Find the token that ends a reply among the markers and blanks behind it."""
        bounds = [*starts, len(text)]
        markers: list[int] = []
        for place in range(len(tokens) - 1, -1, -1):
            if tokens[place] in self._marker_ids:
                markers.insert(0, place)
            elif not text[bounds[place] : bounds[place + 1]].isspace():
                break
        ends = [place for place in markers if tokens[place] in self._chat.end_of_turn_ids]
        return next(iter([*ends, *markers[-1:]]), None)


@dataclass(frozen=True)
class _Dialogue:
    """Guarded messages in the form of the template.

    Attributes:
        chat: renders them.
        shaped: the messages.
        tools: the tools that the template lists.
    """

    chat: ChatRenderer
    shaped: Sequence[Mapping[str, Any]]
    tools: Sequence[Any]

    def render(self, count: int, *, header: bool) -> str:
        """Render the first ``count`` messages."""
        return self.chat.render_text(self.shaped[:count], tools=self.tools, header=header)

    def find_following(self, index: int, *, is_call: bool) -> str:
        """Return what the template writes after a reply before the content of the next message."""
        closed = self.render(index + 1, header=False)
        last = {"role": "tool" if is_call else "user", "content": "q9"}
        after = [*self.shaped[: index + 1], *(self.shaped[index + 1 : index + 2] or [last])]
        try:
            text = self.chat.render_text(after, tools=self.tools, header=False)
        except ValueError:
            return ""
        return text.removeprefix(closed) if text.startswith(closed) else ""
