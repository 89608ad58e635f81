"""Rows of files become episodes: messages through the chat template, of which the replies alone are learnt from.

What a row says is text: none of its tokens is a marker of template or tokenizer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lit_agentrl.data.kinds import BadRow
from lit_agentrl.episode import EndReason, Episode, Message, Segment, Turn
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.ledger import reply_segments

ROLES = ("system", "user", "assistant", "tool")
Messages = list[Message]


class Reader:
    """Makes episodes of messages.

    Args:
        chat: renders them as those of games.
        max_context_tokens: of an episode; what is beyond is cut off.

    Attributes:
        num_read, num_truncated: episodes so far.
    """

    def __init__(self, chat: ChatRenderer, max_context_tokens: int) -> None:
        self._chat = chat
        self._most = max_context_tokens
        self.num_read = self.num_truncated = 0

    def episode(self, context: Messages, learnt: Messages) -> Episode:
        """An episode whose log-probs nobody knows (NaN).

        Args:
            context: messages that are read only, also replies.
            learnt: the messages after them, of which every reply is learnt.

        Raises:
            BadRow: there is no reply to learn, or none of its tokens is left.
        """
        messages = [*context, *learnt]
        turns: list[Turn] = []
        prefix, segments, start = [], [], 0
        last: list[int] = []
        for place, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            between = messages[start:place]
            if not between and start:
                raise BadRow("two_replies", "two assistant messages follow one another; join them")
            if not between:
                raise BadRow("no_prompt", "it begins with an assistant message, which answers nothing")
            piece = self._chat.between(between, last_reply=last) if start else self._chat.opening(between)
            last, start = self._reply(message["content"]), place + 1
            prefix += piece.tokens
            segments += piece.segments
            if place < len(context):
                prefix += last
                segments += [int(Segment.PAST)] * len(last)
                continue
            turns.append(self._turn(prefix, segments, last, message["content"], is_first=not turns))
            prefix, segments = [], []
        if not turns:
            raise BadRow("no_reply", "it has no assistant message to learn from")
        self._require_known(turns)
        kept = self._fitting(turns)
        self.num_read += 1
        opening = messages[: _first_reply(messages)]
        return Episode(0, 0, 0, 0, "data", 0, opening=opening, turns=kept, end=EndReason.TURN_LIMIT)

    def steps(self, context: Messages, steps: Sequence[str], separator: str) -> Episode:
        """An episode whose one reply is made of steps, each a turn; arguments else as of `episode`."""
        piece = self._chat.opening(context)
        prefix, segments = list(piece.tokens), list(piece.segments)
        turns: list[Turn] = []
        for number, step in enumerate(steps, 1):
            is_last = number == len(steps)
            reply = self._reply(step) if is_last else self._chat.encode(step + separator)
            turns.append(self._turn(prefix, segments, reply, step, is_first=not turns))
            prefix, segments = [], []
        self._require_known(turns)
        kept = self._fitting(turns)
        self.num_read += 1
        return Episode(0, 0, 0, 0, "data", 0, opening=list(context), turns=kept, end=EndReason.TURN_LIMIT)

    def _reply(self, text: str) -> list[int]:
        """Tokens of a reply, closed as the template closes it."""
        opening = self._chat.dialect.think_start
        if self._chat.forced_think and opening and text.startswith(opening):
            text = text.removeprefix(opening)
        return [*self._chat.encode(text), *self._chat.end_of_turn_ids[:1]]

    def _turn(
        self, prefix: list[int], segments: list[int], reply: list[int], text: str, *, is_first: bool
    ) -> Turn:
        unknown = np.full(len(reply), math.nan)
        roles = reply_segments(
            self._chat.tokenizer, reply, forced_think=self._chat.forced_think, dialect=self._chat.dialect
        )
        return Turn(
            observation="", prefix_tokens=np.array(prefix), prefix_segments=np.array(segments, np.int8),
            starts_row=is_first, reply_tokens=np.array(reply), reply_segments=np.array(roles, np.int8),
            reply_logps=unknown, reply_entropies=unknown, policy_version=-1, reply_text=text, is_valid=True,
        )  # fmt: skip

    def _require_known(self, turns: Sequence[Turn]) -> None:
        unknown = self._chat.tokenizer.unk_token_id
        if unknown is None or unknown in self._chat.end_of_turn_ids:
            return
        count = sum(
            int((part == unknown).sum()) for turn in turns for part in (turn.prefix_tokens, turn.reply_tokens)
        )
        if count:
            raise BadRow(
                "unknown_text", f"the tokenizer does not know {count} of its tokens; use another model"
            )

    def _fitting(self, turns: list[Turn]) -> list[Turn]:
        """The turns as far as there is room."""
        kept: list[Turn] = []
        left = self._most
        for turn in turns:
            left -= len(turn.prefix_tokens)
            if left <= 0:
                break
            if len(turn.reply_tokens) > left:
                for name in ("reply_tokens", "reply_segments", "reply_logps", "reply_entropies"):
                    setattr(turn, name, getattr(turn, name)[:left])
            left -= len(turn.reply_tokens)
            kept.append(turn)
        if not kept:
            raise BadRow(
                "truncated",
                f"rollout.max_context_tokens={self._most} leaves no room for a reply after "
                f"{len(turns[0].prefix_tokens)} tokens",
            )
        self.num_truncated += len(kept) < len(turns) or left <= 0
        return kept


def messages_of(value: object, column: str, role: str) -> Messages:
    """Messages as they stand in a column; a plain text is one of ``role``.

    Raises:
        BadRow: they are none.
    """
    if isinstance(value, str):
        if not value.strip():
            raise BadRow("empty", f"column {column} is blank; fill it in")
        value = [{"role": role, "content": value}]
    if not isinstance(value, list) or not value:
        raise BadRow(
            "no_messages", f"column {column} must be a text, or a list of messages with role and content"
        )
    return [_message(each, column) for each in value]


def _message(value: object, column: str) -> Message:
    if not isinstance(value, Mapping) or not isinstance(value.get("role"), str):
        raise BadRow("no_messages", f"column {column} holds what is no message; write role and content")
    role, content = value["role"], value.get("content")
    if role not in ROLES:
        raise BadRow(
            "unknown_role", f"column {column}: role {role[:40]!r} is unknown; valid: {', '.join(ROLES)}"
        )
    if isinstance(content, list) and all(
        isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in content
    ):
        content = "".join(part["text"] for part in content)
    calls = value.get("tool_calls") if role == "assistant" else None
    if calls:
        content = f"{content or ''}{_calls(calls, column)}"
    if not isinstance(content, str):
        raise BadRow("no_messages", f"column {column}: a message of {role} has no content; write a text")
    if not content.strip():
        raise BadRow("empty", f"column {column}: a message of {role} is blank; fill it in")
    if content != content.encode("utf-8", "replace").decode():
        raise BadRow(
            "half_character", f"column {column} holds half a character (a lone surrogate); write it whole"
        )
    return {"role": role, "content": content}


def _calls(calls: object, column: str) -> str:
    """Calls of tools, written as models write them."""
    found = []
    for call in calls if isinstance(calls, list) else [None]:
        what = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(what, Mapping) or not isinstance(what.get("name"), str):
            raise BadRow(
                "bad_call", f"column {column}: a tool call has no function name; write name and arguments"
            )
        arguments = what.get("arguments", {})
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError as error:
                raise BadRow("bad_call", f"column {column}: arguments of a tool call are no JSON") from error
        found.append(json.dumps({"name": what["name"], "arguments": arguments}, ensure_ascii=False))
    return "".join(f"<tool_call>{each}</tool_call>" for each in found)


def dialogue(row: Mapping[str, Any], answer: str) -> tuple[Messages, Messages]:
    """What is read, and what is learnt, of a row with ``messages``, or with ``prompt`` and an answer.

    Raises:
        BadRow: it has neither.
    """
    if row.get("messages") is not None:
        return _with_tools(row, []), messages_of(row["messages"], "messages", "user")
    if row.get(answer) is None:
        told = ", ".join(map(str, row)) or "none"
        raise BadRow("no_column", f"it has neither messages nor {answer} (there are {told})")
    return prompt_of(row), messages_of(row[answer], answer, "assistant")


def pair_of(row: Mapping[str, Any], sides: Sequence[str]) -> tuple[Messages, list[Messages]]:
    """What both sides begin with, and the rest of each.

    Raises:
        BadRow: a side is missing, or one begins with the whole of the other.
    """
    for side in sides:
        if row.get(side) is None:
            told = ", ".join(map(str, row)) or "none"
            raise BadRow("no_column", f"column {side} is missing (there are {told})")
    found = [messages_of(row[side], side, "assistant") for side in sides]
    if row.get("prompt") is not None:
        return prompt_of(row), found
    one, other = found
    shared = next(
        (k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(map(len, found))
    )
    if not shared:
        raise BadRow(
            "no_prompt", "chosen and rejected have no beginning in common, and there is no column prompt"
        )
    if shared == len(one) == len(other):
        raise BadRow("identical", "chosen and rejected are the same")
    return _with_tools(row, one[:shared]), [each[shared:] for each in found]


def prompt_of(row: Mapping[str, Any]) -> Messages:
    """The messages of column ``prompt``, with the tools of the row.

    Raises:
        BadRow: there are none.
    """
    if row.get("prompt") is None:
        raise BadRow(
            "no_prompt", f"column prompt is missing (there are {', '.join(map(str, row)) or 'none'})"
        )
    return _with_tools(row, messages_of(row["prompt"], "prompt", "user"))


def _with_tools(row: Mapping[str, Any], messages: Messages) -> Messages:
    """With the tools of a row told in a system message."""
    tools = row.get("tools")
    if not tools:
        return messages
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except ValueError as error:
            raise BadRow("bad_tools", "column tools is no JSON; write a list of tools") from error
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise BadRow("bad_tools", "column tools must be a list of tools, each with a name and parameters")
    told = "\n".join(["<tools>", *(json.dumps(tool, ensure_ascii=False) for tool in tools), "</tools>"])
    if messages and messages[0]["role"] == "system":
        return [{"role": "system", "content": f"{messages[0]['content']}\n{told}"}, *messages[1:]]
    return [{"role": "system", "content": told}, *messages]


def number(row: Mapping[str, Any], column: str) -> float:
    """A finite number.

    Raises:
        BadRow: it is none.
    """
    value = row.get(column)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadRow("bad_number", f"column {column} is {str(value)[:40]!r}; write a finite number")
    return float(value)


def _first_reply(messages: Messages) -> int:
    return next(k for k, message in enumerate(messages) if message["role"] == "assistant")
