"""Rows of files as messages: prompts, answers, and the scores of the answers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from lit_agentrl.episode import Message

ROLES = ("system", "user", "assistant", "tool")
SIDES = ("chosen", "rejected")
Messages = list[Message]


class BadRow(ValueError):
    """A row that cannot be used.

    Args:
        reason: a short name under which such rows are counted.
        message: one line.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def parse_messages(value: object, column: str, role: str) -> Messages:
    """Parse the messages of a column; plain text becomes one message of ``role``.

    Beside ``role`` and ``content`` a message may have these keys, which whoever renders it turns into text:

    - ``thought``: the reasoning of the reply;
    - ``calls``: JSON of its tool calls, a list of ``{"name": …, "arguments": {…}}``; the content may then be empty;
    - ``tools``: JSON of the list of tools, of the first message of a dialogue;
    - ``weight``: ``"0"`` if the reply is not learnt.

    Raises:
        BadRow: the value holds no messages.
    """
    if isinstance(value, str):
        if not value.strip():
            raise BadRow("empty", f"column {column} is blank; fill it in")
        value = [{"role": role, "content": value}]
    if not isinstance(value, list) or not value:
        raise BadRow(
            "no_messages", f"column {column} must be a text, or a list of messages with role and content"
        )
    return [_parse_message(message, column) for message in value]


def _parse_message(value: object, column: str) -> Message:
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
    if isinstance(content, list) and (kind := _find_other_part(content)):
        raise BadRow(
            "not_text",
            f"column {column}: a message of {role} has a part of type {kind[:40]!r}; images, sound and files cannot be "
            "read, only text: leave such rows out",
        )
    given = value.get("tool_calls") if role == "assistant" else None
    calls = _format_calls(given, column) if given else ""
    content = content or "" if calls else content
    if not isinstance(content, str):
        raise BadRow("no_messages", f"column {column}: a message of {role} has no content; write a text")
    if not content.strip() and not calls:
        raise BadRow("empty", f"column {column}: a message of {role} is blank; fill it in")
    if (text := content + calls) != text.encode("utf-8", "replace").decode():
        raise BadRow(
            "half_character", f"column {column} holds half a character (a lone surrogate); write it whole"
        )
    return {"role": role, "content": content, **({"calls": calls} if calls else {})}


def _find_other_part(content: list[Any]) -> str | None:
    """Return the type of the first part that is no text, such as ``image_url``."""
    kinds = [str(part.get("type") or "") for part in content if isinstance(part, Mapping)]
    return next((kind for kind in kinds if kind and kind != "text"), None)


def _format_calls(calls: object, column: str) -> str:
    """Return the JSON of tool calls."""
    parsed = []
    for call in calls if isinstance(calls, list) else [None]:
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise BadRow(
                "bad_call", f"column {column}: a tool call has no function name; write name and arguments"
            )
        arguments = function.get("arguments", {})
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError as error:
                raise BadRow("bad_call", f"column {column}: arguments of a tool call are no JSON") from error
        parsed.append({"name": function["name"], "arguments": arguments})
    return json.dumps(parsed, ensure_ascii=False)


def read_dialogue(row: Mapping[str, Any], answer: str) -> tuple[Messages, Messages]:
    """Read prompt and answer of a row.

    A row has ``messages``, or ``prompt`` and the column ``answer``.

    Raises:
        BadRow: it has neither.
    """
    if row.get("messages") is not None:
        return [], _add_tools(row, parse_messages(row["messages"], "messages", "user"))
    if row.get(answer) is None:
        columns = ", ".join(map(str, row)) or "none"
        raise BadRow("no_column", f"it has neither messages nor {answer} (there are {columns})")
    return read_prompt(row), parse_messages(row[answer], answer, "assistant")


def read_pair(row: Mapping[str, Any], sides: Sequence[str] = SIDES) -> tuple[Messages, list[Messages]]:
    """Read the common beginning of both sides of a pair, and the rest of each.

    Raises:
        BadRow: a side is missing, or one begins with the whole of the other.
    """
    for side in sides:
        if row.get(side) is None:
            columns = ", ".join(map(str, row)) or "none"
            raise BadRow("no_column", f"column {side} is missing (there are {columns})")
    parsed = [parse_messages(row[side], side, "assistant") for side in sides]
    if row.get("prompt") is not None:
        return read_prompt(row), parsed
    first, second = parsed
    shared = next(
        (k for k, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(map(len, parsed))
    )
    if not shared:
        raise BadRow(
            "no_prompt", "chosen and rejected have no beginning in common, and there is no column prompt"
        )
    if shared == len(first) == len(second):
        raise BadRow("identical", "chosen and rejected are the same")
    return _add_tools(row, first[:shared]), [messages[shared:] for messages in parsed]


def read_pair_scores(row: Mapping[str, Any]) -> list[float]:
    """Read the scores of both sides of a pair.

    They are the columns of scores, the column ``margin`` and 0, or 1 and 0.

    Raises:
        BadRow: the chosen side has not the higher score.
    """
    given = [row.get(f"score_{side}") for side in SIDES]
    scores = [1.0, 0.0]
    if None not in given:
        scores = [read_number(row, f"score_{side}") for side in SIDES]
    elif row.get("margin") is not None:
        scores = [read_number(row, "margin"), 0.0]
    if scores[0] == scores[1]:
        raise BadRow("tie", "both sides are worth the same, so that none is better")
    if scores[0] < scores[1]:
        raise BadRow("reversed", "the chosen side is worth less than the rejected one")
    return scores


def read_answers(row: Mapping[str, Any]) -> tuple[Messages, list[Messages], list[Any]]:
    """Read the prompt of a row, its ``completions`` and as many ``scores`` of any kind.

    Raises:
        BadRow: one of them is missing.
    """
    given = row.get("completions")
    if not isinstance(given, list) or len(given) < 2:
        raise BadRow("no_column", "column completions must be a list of at least two answers")
    opening, answers = (
        read_prompt(row),
        [parse_messages(answer, "completions", "assistant") for answer in given],
    )
    scores = row.get("scores")
    if not isinstance(scores, list) or len(scores) != len(given):
        raise BadRow("no_scores", "column scores must be a list with a number for each of completions")
    return opening, answers, scores


def read_ranked(row: Mapping[str, Any]) -> tuple[Messages, list[Messages], list[float]]:
    """Read the prompt of a row, its ``completions`` and their ``scores``.

    Raises:
        BadRow: one of them is missing, or all scores are equal.
    """
    opening, answers, scores = read_answers(row)
    numbers = [read_number({"scores": score}, "scores") for score in scores]
    if len(set(numbers)) < 2:
        raise BadRow("tie", "all scores are equal, so that none is better")
    return opening, answers, numbers


def read_label(row: Mapping[str, Any]) -> float:
    """Return 1 or 0 of column ``label``, or the number of column ``score``.

    Raises:
        BadRow: there is neither.
    """
    label = row.get("label")
    if label is None and row.get("score") is None:
        raise BadRow("no_label", "it has neither label nor score; write label: true or false")
    if label is not None and not (isinstance(label, bool) or label in (0, 1)):
        raise BadRow("no_label", f"column label is {label!r}; write true or false")
    return float(label) if label is not None else read_number(row, "score")


def read_held_out_with(row: Mapping[str, Any]) -> str | None:
    """Read the name of the rows that are held out and compared together.

    None: rows with the same prompt are held out together.

    Raises:
        BadRow: it is no text.
    """
    value = row.get("held_out_with")
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip() or value != value.encode("utf-8", "replace").decode():
        raise BadRow("bad_held_out", "column held_out_with must be a text, such as the name of a task")
    return value


def read_prompt(row: Mapping[str, Any]) -> Messages:
    """Read the messages of column ``prompt``, with the tools of the row.

    Raises:
        BadRow: there are none.
    """
    if row.get("prompt") is None:
        raise BadRow(
            "no_prompt", f"column prompt is missing (there are {', '.join(map(str, row)) or 'none'})"
        )
    return _add_tools(row, parse_messages(row["prompt"], "prompt", "user"))


def _add_tools(row: Mapping[str, Any], messages: Messages) -> Messages:
    """Add the tools of a row to its first message."""
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
    return [{**messages[0], "tools": json.dumps(tools, ensure_ascii=False)}, *messages[1:]]


def read_number(row: Mapping[str, Any], column: str) -> float:
    """Read a finite number.

    Raises:
        BadRow: it is none.
    """
    value = row.get(column)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadRow("bad_number", f"column {column} is {str(value)[:40]!r}; write a finite number")
    return float(value)
