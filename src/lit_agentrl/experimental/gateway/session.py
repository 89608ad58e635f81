"""The calls of one episode: their prompts, their replies and the rows of the record."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lit_agentrl.actions import Actions, ToolSpec
from lit_agentrl.engines.base import TurnResult
from lit_agentrl.episode import FinishReason, Segment, Turn
from lit_agentrl.experimental.gateway.messages import (
    CallOfTool,
    ChatMessage,
    ChatRequest,
    hash_messages,
    hash_tools,
)
from lit_agentrl.text.chat import ChatRenderer, Prefix
from lit_agentrl.text.dialects.base import has_tools_in_template
from lit_agentrl.text.ledger import reply_segments

MOST_CHARACTERS = 64  # average characters per token, which no real text reaches


@dataclass(eq=False)
class Call:
    """A request of the program with the tokens of its prompt and its reply.

    Attributes:
        number: Number of earlier requests of the episode.
        request: The request.
        parent: Earlier call that this call continues; None: this call opens a dialogue.
        new: Tokens of the prompt after the prompt and the reply of ``parent``.
        digest: Hash of the prompt.
        repeat: Number of earlier calls with the same prompt.
        address: Key of the call's random draws within the episode.
        turn: Record of the call.
        is_too_long: True if the new messages were too long to be tokenised; ``new`` then has placeholders.
        children: Answered calls that continue this call.
    """

    number: int
    request: ChatRequest
    parent: Call | None
    new: Prefix
    digest: int
    repeat: int
    address: tuple[int, ...]
    turn: Turn
    is_too_long: bool = False
    children: list[Call] = field(default_factory=list)

    @property
    def is_answered(self) -> bool:
        """True if the call has a reply."""
        return len(self.turn.reply_tokens) > 0

    @property
    def line(self) -> list[Call]:
        """The calls from the beginning of the dialogue to this call."""
        calls = [self]
        while calls[-1].parent is not None:
            calls.append(calls[-1].parent)
        return calls[::-1]

    @property
    def prompt(self) -> list[int]:
        """The tokens before the reply; earlier replies keep the ids that were sampled."""
        *before, _ = self.line
        tokens = [token for call in before for token in (*call.new.tokens, *call.turn.reply_tokens.tolist())]
        return [*tokens, *self.new.tokens]


class ChatSession:
    """The dialogues of one episode, matched by their messages and never tokenised twice.

    A request continues the longest earlier call whose messages and reply are the beginning of its own, message by
    message.  Its prompt is then that call's tokens, with the reply as it was sampled, and the rendering of what is
    new.  A request that continues nothing, or whose history was edited, begins with the rendering of its messages.

    The draws of a call are keyed by its prompt, and by how often the prompt was asked before.  Calls of a program that
    makes one call at a time are ordered; the first call and its continuations then have the keys of a game's turns.

    Args:
        chat: Renderer of the run's template.
        is_parallel: Whether the program may make several calls at once; their order then changes nothing.
        max_tokens: Maximum number of tokens of a prompt.  New messages of over ``64 * max_tokens`` characters are not
            tokenised, since all other episodes would wait: 8 MB take a minute.
        show_tools: See `Calls`.
    """

    def __init__(
        self, chat: ChatRenderer, *, is_parallel: bool, max_tokens: int, show_tools: bool = True
    ) -> None:
        self._chat = chat
        self._show_tools = show_tools
        self._max_tokens = max_tokens
        self._is_parallel = is_parallel
        self.calls: list[Call] = []  # in the order of the requests
        self._ends: dict[bytes, Call] = {}  # answered calls by the hash of their messages and reply
        self._repeats: Counter[int] = Counter()
        self._main: Call | None = None  # the last of the calls that continue the first one

    def ask(self, request: ChatRequest) -> Call:
        """Record a request, and return it with the tokens of its prompt.

        Raises:
            ValueError: The template or the dialect cannot show the request; the message names the remedy.
        """
        parent, shown = self._find_parent(request)
        tools = request.tools if parent is None else ()
        size = sum(map(_count_characters, request.messages[shown:])) + sum(map(len, tools))
        is_too_long = size > MOST_CHARACTERS * self._max_tokens
        if is_too_long:
            new = Prefix([0] * (self._max_tokens + 1), [int(Segment.PROMPT)] * (self._max_tokens + 1))
        else:
            new = self._render(request, parent, request.messages[shown:])
        before = [] if parent is None else [*parent.prompt, *parent.turn.reply_tokens.tolist()]
        digest = _hash_tokens([*before, *new.tokens])
        repeat, self._repeats[digest] = self._repeats[digest], self._repeats[digest] + 1
        depth = 0 if parent is None else len(parent.line)
        is_main = not self._is_parallel and (self._main is parent if self.calls else True)
        last = request.messages[-1].content
        turn = Turn(
            observation=last,
            prefix_tokens=np.array(new.tokens),
            prefix_segments=np.array(new.segments, np.int8),
            message="" if parent is None else "\n".join(each.content for each in request.messages[shown:]),
            starts_row=parent is None,
        )
        address = (depth,) if is_main else (depth, repeat, digest)
        call = Call(len(self.calls), request, parent, new, digest, repeat, address, turn, is_too_long)
        if is_main:
            self._main = call
        self.calls.append(call)
        return call

    def _find_parent(self, request: ChatRequest) -> tuple[Call | None, int]:
        """Return the longest call that a request continues, and its number of messages."""
        digest, parent, shown = hash_tools(request.tools), None, 0
        for number, message in enumerate(request.messages[:-1], start=1):
            digest = hash_messages(digest, [message])
            if message.role == "assistant" and (call := self._ends.get(digest)) is not None:
                parent, shown = call, number
        return parent, shown

    def receive(self, call: Call, result: TurnResult) -> dict[str, Any]:
        """Record the reply to a call; return its message and finish reason.

        A reply that holds a stop text of the request is recorded up to the token that completes it.

        Raises:
            ValueError: The dialect fails.
        """
        tokens, is_cut = self._cut(result.tokens, call.request.stop)
        size, turn = len(tokens), call.turn
        turn.reply_tokens = np.array(tokens)
        turn.reply_logps, turn.reply_entropies = (
            np.array(result.logps[:size]),
            np.array(result.entropies[:size]),
        )
        turn.policy_version = result.policy_version
        turn.finish = FinishReason.STOP if is_cut else result.finish
        turn.reply_text = self._chat.decode(tokens)
        dialect = self._chat.dialect
        turn.reply_segments = np.array(
            reply_segments(
                self._chat.tokenizer, tokens, forced_think=self._chat.forced_think, dialect=dialect
            ),
            np.int8,
        )
        text = self._decode_content(tokens, call.request.stop)
        message = self._read_reply(call, text)
        turn.actions = [f"{each.name} {each.arguments}" for each in message.calls] or [message.content]
        end = hash_messages(hash_tools(call.request.tools), [*call.request.messages, message])
        self._ends.setdefault(end, call)
        if call.parent is not None:
            call.parent.children.append(call)
        is_long = turn.finish in (FinishReason.LENGTH, FinishReason.CONTEXT)
        reason = "length" if is_long else "tool_calls" if message.calls else "stop"
        return {"message": _write_message(message), "finish_reason": reason}

    def _cut(self, tokens: Sequence[int], stops: Sequence[str]) -> tuple[list[int], bool]:
        """Return the tokens up to the first stop text, and whether there is one."""
        tokens = list(tokens)
        if not any(stop in self._chat.decode(tokens) for stop in stops):
            return tokens, False
        low, high = 1, len(tokens)  # the shortest beginning that holds one
        while low < high:
            middle = (low + high) // 2
            if any(stop in self._chat.decode(tokens[:middle]) for stop in stops):
                high = middle
            else:
                low = middle + 1
        return tokens[:low], True

    def _decode_content(self, tokens: Sequence[int], stops: Sequence[str]) -> str:
        """Return the text of a reply without end tokens and stop texts."""
        tokens = list(tokens)
        while tokens and tokens[-1] in self._chat.end_of_turn_ids:
            tokens.pop()
        text = self._chat.decode(tokens)
        text = text[: min((text.index(stop) for stop in stops if stop in text), default=len(text))]
        return (self._chat.dialect.think_start if self._chat.forced_think else "") + text

    def _read_reply(self, call: Call, text: str) -> ChatMessage:
        turn = call.turn
        turn.is_valid = turn.is_well_formed = True
        turn.has_think = bool((turn.reply_segments == Segment.THINK).any())
        if not call.request.tools:
            return ChatMessage("assistant", text)
        actions = Actions("tools", (), _read_tools(call.request.tools))
        reply = self._chat.dialect.parse(text, actions, think=True)
        turn.is_valid, turn.problem, turn.is_well_formed = reply.is_valid, reply.problem, reply.is_well_formed
        if not reply.is_valid:  # the program reads the text, and decides what to do
            return ChatMessage("assistant", text)
        called = [json.loads(action) for action in reply.actions]
        calls = tuple(
            CallOfTool(f"call_{call.digest:016x}_{call.repeat}_{number}", each["name"],
                       json.dumps(each["arguments"]))
            for number, each in enumerate(called)
        )  # fmt: skip
        return ChatMessage("assistant", reply.think, calls)

    def _render(self, request: ChatRequest, parent: Call | None, messages: Sequence[ChatMessage]) -> Prefix:
        chat = self._chat
        if request.tools and "tools" not in chat.dialect.formats:
            raise ValueError(
                f"dialect={type(chat.dialect).__name__.lower()} writes no calls, and the program offers tools; set "
                "dialect=tool_call, or leave the tools out"
            )
        shown = [self._show(message) for message in messages]
        if parent is not None:
            return chat.render_between(shown, last_reply=parent.turn.reply_tokens.tolist())
        if request.tools and self._show_tools:
            shown = self._add_tools(shown, request.tools)
        return chat.render_opening(shown)

    def _show(self, message: ChatMessage) -> dict[str, str]:
        """Return a message as the template takes it; results of tools become user messages."""
        if message.role == "tool":
            return {"role": "user", "content": message.content}
        content = message.content
        if message.calls:
            calls = [
                json.dumps({"name": c.name, "arguments": json.loads(c.arguments)}) for c in message.calls
            ]
            content += self._chat.dialect.write(calls, thought=None)
        return {"role": message.role, "content": content}

    def _add_tools(self, shown: list[dict[str, str]], tools: Sequence[str]) -> list[dict[str, str]]:
        """Declare tools where the template lists them, or in words at the beginning."""
        specs = _read_tools(tools)
        if has_tools_in_template(self._chat.dialect):
            listed = json.dumps([json.loads(spec.text) for spec in specs])
            return [{**shown[0], "tools": listed}, *shown[1:]]
        words = self._chat.dialect.instructions(Actions("tools", (), specs), max_actions=1, think=True)
        if shown[0]["role"] == "system":
            return [{**shown[0], "content": f"{shown[0]['content']}\n{words}"}, *shown[1:]]
        return [{"role": "system", "content": words}, *shown]

    def make_turns(self) -> list[Turn]:
        """Return the record of all answered calls, row by row.

        Of the calls that continue a call, the first shares its row.  Each other one begins a row with copies of the
        tokens before it, which are not trained on.  Every sampled token is trained on once.  Rows are ordered by
        request, or by the hash of the prompt if the program may make several calls at once.
        """
        roots = [call for call in self.calls if call.parent is None and call.is_answered]
        waiting: list[Call] = sorted(roots, key=self._rank, reverse=True)
        turns: list[Turn] = []
        while waiting:
            call = waiting.pop()
            turns.append(self._begin_row(call))
            while call.children:
                call, *others = sorted(call.children, key=self._rank)
                waiting += reversed(others)
                turns.append(call.turn)
        return turns

    def _rank(self, call: Call) -> tuple[int, ...]:
        return (call.digest, call.repeat) if self._is_parallel else (call.number,)

    def _begin_row(self, call: Call) -> Turn:
        """Return the record of a call whose prefix is its whole prompt."""
        if call.parent is None:
            return call.turn
        tokens, segments = [], []
        for before in call.line[:-1]:
            tokens += [*before.new.tokens, *before.turn.reply_tokens.tolist()]
            segments += [*before.new.segments, *[int(Segment.PAST)] * len(before.turn.reply_tokens)]
        call.turn = replace(
            call.turn,
            starts_row=True,
            prefix_tokens=np.array([*tokens, *call.new.tokens]),
            prefix_segments=np.array([*segments, *call.new.segments], np.int8),
        )
        return call.turn


def _count_characters(message: ChatMessage) -> int:
    return len(message.content) + sum(len(call.name) + len(call.arguments) for call in message.calls)


def _hash_tokens(tokens: Sequence[int]) -> int:
    digest = hashlib.blake2b(np.array(tokens, np.int64).tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _read_tools(tools: Sequence[str]) -> tuple[ToolSpec, ...]:
    declared = [json.loads(tool) for tool in tools]
    return tuple(ToolSpec(each["name"], each["description"], each["parameters"]) for each in declared)


def _write_message(message: ChatMessage) -> dict[str, Any]:
    """Return a message in chat API format."""
    written: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.calls:
        written["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in message.calls
        ]
    return written
