"""Rows of files as messages: prompts, answers, and the scores of the answers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lit_agentrl.envs.tasks.call_results import sort_results
from lit_agentrl.envs.tasks.message_parts import (
    BadRow,
    join_calls,
    parse_message,
    require_whole_characters,
)
from lit_agentrl.envs.tasks.tables import parse_json
from lit_agentrl.episode import Message

SIDES = ("chosen", "rejected")
_MARK = re.compile(r"\n\n(Human|Assistant):")  # of Anthropic's HH data
Messages = list[Message]


def parse_messages(value: object, column: str, role: str) -> Messages:
    """Parse the messages of a column; plain text becomes one message of ``role``.

    Besides ``role`` and ``content`` a message may have these keys, which become text when it is rendered:

    - ``thought``: the reasoning of the reply;
    - ``calls``: JSON of its tool calls, a list of ``{"name": …, "arguments": {…}}``; the content may then be empty;
    - ``tools``: JSON of the list of tools, only in the first message of a dialogue;
    - ``weight``: ``"0"`` if the reply is not learnt.

    Raises:
        BadRow: the value holds no messages.
    """
    if isinstance(value, str):
        if not value.strip():
            raise BadRow("empty", f"column {column} is blank; fill it in")
        value = [{"role": role, "content": value}]
    value = _convert_table(value) if isinstance(value, Mapping) else value
    if not isinstance(value, list) or not value:
        raise BadRow(
            "no_messages", f"column {column} must be a text, or a list of messages with role and content"
        )
    return join_calls(parse_message(message, column) for message in sort_results(value, column))


def _convert_table(value: Mapping[str, Any]) -> object:
    """Turn a table of roles and contents, as older data sets have it, into messages."""
    is_table = bool(value) and all(isinstance(cell, list) for cell in value.values())
    if not is_table or len({len(cell) for cell in value.values()}) > 1:
        return value
    rows = zip(*value.values(), strict=True)
    return [{key: cell for key, cell in zip(value, row, strict=True) if cell is not None} for row in rows]


def read_dialogue(row: Mapping[str, Any], answer: str) -> tuple[Messages, Messages]:
    """Read prompt and answer of a row.

    A row has ``messages``, or ``prompt`` and the column ``answer``.

    Raises:
        BadRow: it has neither.
    """
    if row.get("messages") is not None:
        return [], _add_context(row, parse_messages(row["messages"], "messages", "user"))
    if row.get(answer) is None:
        columns = ", ".join(map(str, row)) or "none"
        _require_filled(row, answer, "messages")
        pairs = "; data=pairs reads chosen and rejected" if set(SIDES) <= set(row) else ""
        raise BadRow(
            "no_column",
            f"it has neither messages nor {answer} (there are {columns}); name them by "
            f"{_name_absent(row, 'prompt', answer)}{pairs}",
        )
    opening, [rest] = _remove_prompt(
        read_prompt(row), [parse_messages(row[answer], answer, "assistant")], [answer]
    )
    return opening, rest


def _remove_prompt(
    prompt: Messages, answers: Sequence[Messages], columns: Sequence[str]
) -> tuple[Messages, list[Messages]]:
    """Remove the prompt from answers that repeat it.

    If all answers begin with a system message that the prompt lacks, it moves to the prompt.

    Raises:
        BadRow: an answer begins with something other than the prompt.
    """
    bare_prompt = [_strip_extras(message) for message in prompt]
    bare_answers = [[_strip_extras(message) for message in answer] for answer in answers]
    system = bare_answers[0][0]
    is_new = system["role"] == "system" != bare_prompt[0]["role"]
    if is_new and all(bare[: len(prompt) + 1] == [system, *bare_prompt] for bare in bare_answers):
        tools = {key: text for key, text in prompt[0].items() if key == "tools"}
        first = {key: text for key, text in prompt[0].items() if key != "tools"}
        return [{**answers[0][0], **tools}, first, *prompt[1:]], [
            answer[len(prompt) + 1 :] for answer in answers
        ]
    rests: list[Messages] = []
    for answer, bare, column in zip(answers, bare_answers, columns, strict=True):
        without_system = bare_prompt[bare_prompt[0]["role"] == "system" :]
        parts = (bare_prompt, without_system)
        repeated = next((part for part in parts if part and bare[: len(part)] == part), [])
        role = bare[0]["role"]
        # if the prompt ends with a reply, the answer may begin with a message of the user
        may_continue = role != "system" and (role != "user" or bare_prompt[-1]["role"] == "assistant")
        if not repeated and not may_continue:
            raise BadRow(
                "other_beginning",
                f"column {column} begins with a message of {role} that is not the prompt; write the answer alone, or "
                "the prompt before it as in column prompt",
            )
        rests.append(answer[len(repeated) :])
        if not rests[-1]:
            raise BadRow("no_reply", f"column {column} repeats the prompt alone; write an answer")
    return prompt, rests


def _name_absent(row: Mapping[str, Any], *names: str) -> str:
    """Return the option that names all of these columns that a row does not have."""
    absent = ", ".join(f"{name}: COLUMN" for name in names if row.get(name) is None)
    return f"data.columns={{{absent}}}"


def _require_filled(row: Mapping[str, Any], *names: str) -> None:
    """Refuse a row that has one of these columns without a value.

    Raises:
        BadRow: the message names the column.
    """
    for name in names:
        if name in row and row[name] is None:
            raise BadRow("empty", f"column {name} is empty; fill it in")


def _strip_extras(message: Message) -> Message:
    """Return what identifies a message of a prompt: all but tools and weight."""
    bare = {key: text for key, text in message.items() if key not in ("tools", "weight")}
    return {**bare, "content": bare["content"].strip()}


def read_pair(row: Mapping[str, Any], sides: Sequence[str] = SIDES) -> tuple[Messages, list[Messages]]:
    """Read the common beginning of both sides of a pair, and the rest of each.

    The beginning is column ``prompt``, or the messages that both sides share.  A text without a prompt is split into
    messages if it has the marks of HH data, ``Human:`` and ``Assistant:``.

    Raises:
        BadRow: a side is missing, or one begins with the whole of the other.
    """
    for side in sides:
        if row.get(side) is None:
            _require_filled(row, side)
            columns = ", ".join(map(str, row)) or "none"
            needed = f"name what is missing by {_name_absent(row, *sides)}"
            raise BadRow("no_column", f"column {side} is missing (there are {columns}); {needed}")
    values = [row[side] for side in sides]
    are_texts = all(isinstance(value, str) for value in values)
    if are_texts and row.get("prompt") is None and all(map(_is_marked_dialogue, values)):
        values = list(map(_split_at_marks, values))
    parsed = [parse_messages(value, side, "assistant") for side, value in zip(sides, values, strict=True)]
    if row.get("prompt") is not None:
        return _remove_prompt(read_prompt(row), parsed, sides)
    first, second = parsed
    shared = next(
        (k for k, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(map(len, parsed))
    )
    if not shared and are_texts:
        raise BadRow(
            "no_prompt",
            "chosen and rejected are texts, and there is no column prompt; their common beginning is not taken, since "
            "it may end inside a word: name the prompt by data.columns={prompt: COLUMN}, or write lists of messages",
        )
    if not shared:
        raise BadRow(
            "no_prompt",
            "chosen and rejected have no beginning in common, and there is no column prompt; name it by "
            "data.columns={prompt: COLUMN}",
        )
    if shared == len(first) == len(second):
        raise BadRow("identical", "chosen and rejected are the same")
    return _add_context(row, first[:shared]), [messages[shared:] for messages in parsed]


def _is_marked_dialogue(text: str) -> bool:
    """Return whether a text is a dialogue as Anthropic's HH data write it."""
    return text.lstrip().startswith("Human:") and "\n\nAssistant:" in text


def _split_at_marks(text: str) -> list[Message]:
    """Split a dialogue with the marks of HH data into its messages."""
    _, *parts = _MARK.split(f"\n\n{text.strip()}")
    roles = ("user" if mark == "Human" else "assistant" for mark in parts[::2])
    return [{"role": role, "content": part.strip()} for role, part in zip(roles, parts[1::2], strict=True)]


def read_pair_scores(row: Mapping[str, Any]) -> list[float]:
    """Read the scores of both sides of a pair.

    They are ``score_chosen`` and ``score_rejected`` if the row has both, else ``margin`` and 0, else 1 and 0.

    Raises:
        BadRow: the chosen side does not have the higher score, or a score is no finite number.
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
    """Read the prompt of a row, its ``completions``, and one entry of ``scores`` for each.

    The entries of ``scores`` may have any type.

    Raises:
        BadRow: one of them is missing.
    """
    given = row.get("completions")
    if given is None:
        _require_filled(row, "completions")
        columns, needed = (
            ", ".join(map(str, row)) or "none",
            _name_absent(row, "prompt", "completions", "scores"),
        )
        raise BadRow(
            "no_column", f"column completions is missing (there are {columns}); name them by {needed}"
        )
    if not isinstance(given, list) or len(given) < 2:
        raise BadRow("no_column", "column completions must be a list of at least two answers")
    parsed = [parse_messages(answer, "completions", "assistant") for answer in given]
    opening, answers = _remove_prompt(read_prompt(row), parsed, ["completions"] * len(parsed))
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
        _require_filled(row, "prompt")
        raise BadRow(
            "no_prompt",
            f"column prompt is missing (there are {', '.join(map(str, row)) or 'none'}); name it by "
            "data.columns={prompt: COLUMN}",
        )
    return _add_context(row, parse_messages(row["prompt"], "prompt", "user"))


def _add_context(row: Mapping[str, Any], messages: Messages) -> Messages:
    """Add the system text and the tools of a row to its first messages."""
    messages = _add_system(row, messages)
    tools = row.get("tools")
    if not tools or (isinstance(tools, str) and not tools.strip()):
        return messages
    if isinstance(tools, str):
        tools = parse_json(tools)
        if isinstance(tools, ValueError):
            raise BadRow("bad_tools", "column tools is no JSON; write a list of tools") from tools
    if isinstance(tools, list):
        tools = [parse_json(tool) if isinstance(tool, str) else tool for tool in tools]
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise BadRow("bad_tools", "column tools must be a list of tools, each with a name and parameters")
    if not tools:
        return messages
    text = json.dumps(tools, ensure_ascii=False)
    require_whole_characters(text, "tools")
    return [{**messages[0], "tools": text}, *messages[1:]]


def _add_system(row: Mapping[str, Any], messages: Messages) -> Messages:
    """Put the text of column ``system`` before the messages; blank: there is none."""
    text = row.get("system")
    if text is None or (isinstance(text, str) and not text.strip()):
        return messages
    if not isinstance(text, str):
        raise BadRow("bad_system", f"column system is {str(text)[:40]!r}; write a text")
    require_whole_characters(text, "system")
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": text}, *messages]
    if messages[0]["content"].strip() != text.strip():
        raise BadRow(
            "two_systems", "column system and the system message of the dialogue differ; keep one of them"
        )
    return messages


def read_number(row: Mapping[str, Any], column: str) -> float:
    """Read a finite number.

    Raises:
        BadRow: the value is no finite number.
    """
    value = row.get(column)
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, int | float) else float(value)
    except OverflowError:  # of a whole number of more than 308 digits
        number = math.inf
    if not math.isfinite(number):
        raise BadRow("bad_number", f"column {column} is {str(value)[:40]!r}; write a finite number")
    return number
