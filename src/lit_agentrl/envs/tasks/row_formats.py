"""Convert rows of other formats (ShareGPT, Alpaca, CSV) to the columns that this package reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lit_agentrl.envs.tasks.message_parts import BadRow
from lit_agentrl.envs.tasks.tables import drop_nulls, parse_json

# columns that this package reads
OWN_COLUMNS = (
    "messages", "prompt", "completion", "completions", "chosen", "rejected", "system", "tools", "label", "labels",
    "score", "scores", "margin", "score_chosen", "score_rejected", "ref_rewards", "held_out_with",
)  # fmt: skip
MESSAGE_COLUMNS = ("messages", "prompt", "completion", "completions", "chosen", "rejected")
_LISTS = (
    "messages",
    "prompt",
    "completions",
    "chosen",
    "rejected",
    "completion",
    "labels",
    "scores",
    "ref_rewards",
    "history",
)
_NUMBERS = ("label", "score", "margin", "score_chosen", "score_rejected")
_DIALOGUES = ("conversations", "conversation", "dialogue", "dialog")
_MISSING = object()
_SHORTEST_REPEATED = 12  # fewest characters of a prompt whose repetition is noticed
_PYTHON_MESSAGES = re.compile(r"\s*\[\s*\{\s*'(role|content|from|value)'\s*:")


@dataclass
class Converted:
    """A row with the columns that this package reads.

    Attributes:
        row: its columns.
        sources: column -> its names in the file, for columns that have other names there.
        format: the name of the file's format, for messages to the user.
    """

    row: dict[str, Any]
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)
    format: str = "texts"


def find_column(row: Mapping[str, Any], name: str) -> Any:
    """Return a column; dots in its name lead to nested fields.

    `is_missing` tells whether the row has no such column.
    """
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return _MISSING
    return value


def list_columns(row: Mapping[str, Any]) -> str:
    """List the columns of a row, with the fields of those that are objects."""
    names = [
        ", ".join(f"{name}.{field}" for field in cell) if isinstance(cell, Mapping) and cell else str(name)
        for name, cell in row.items()
    ]
    return ", ".join(names) or "none"


def is_missing(value: object) -> bool:
    """Return whether `find_column` found nothing."""
    return value is _MISSING


def convert_row(row: Mapping[str, Any], suffix: str, columns: Mapping[str, str] | None = None) -> Converted:
    """Convert a row of any known format.

    Args:
        row: columns of the file.
        suffix: ending of the file's name.  Cells of ``.csv`` are texts; structs of ``.parquet`` have fields of None.
        columns: name of a column in this package -> its name in the file.

    Raises:
        BadRow: the row has a known format, and an error in it.
    """
    is_text = suffix == ".csv"
    row = {name: drop_nulls(cell) for name, cell in row.items()} if suffix == ".parquet" else row
    converted = Converted(dict(row))
    _rename(converted, row, columns or {})
    _convert_dialogue(converted)
    _convert_alpaca(converted, columns or {})
    if converted.row.get("completion") is None and "completion" not in (columns or {}):
        _move(converted, "response", "completion")
    if converted.row.get("system") is None and "system" not in (columns or {}):
        _move(converted, "system_prompt", "system")
    for name in _LISTS:
        if isinstance(cell := converted.row.get(name), str):
            holds_messages = name in MESSAGE_COLUMNS and name != "completions"
            if is_text or name == "messages" or holds_messages:
                converted.row[name] = _parse_list(
                    cell, name, holds_messages=holds_messages and name != "messages"
                )
    if is_text:
        converted.row |= {
            name: _parse_number(converted.row[name]) for name in _NUMBERS if name in converted.row
        }
    if converted.format == "texts" and any(
        isinstance(converted.row.get(name), list) for name in MESSAGE_COLUMNS
    ):
        lists = [converted.row[name] for name in MESSAGE_COLUMNS if isinstance(converted.row.get(name), list)]
        if any(isinstance(value, Mapping) for each in lists for value in each):
            converted.format = "messages"
    return converted


def has_repeated_prompt(row: Mapping[str, Any]) -> bool:
    """Return whether an answer begins with the text of the prompt.

    Short prompts are left out: an answer may begin with the same word.
    """
    prompt, listed = row.get("prompt"), row.get("completions")
    if not isinstance(prompt, str) or len(prompt.strip()) < _SHORTEST_REPEATED:
        return False
    answers = [row.get(name) for name in ("completion", "chosen", "rejected")]
    answers += listed if isinstance(listed, list) else []
    return any(isinstance(answer, str) and answer.lstrip().startswith(prompt.strip()) for answer in answers)


def _rename(converted: Converted, row: Mapping[str, Any], columns: Mapping[str, str]) -> None:
    """Read columns under the names that the user gave."""
    for theirs in columns.values():
        if theirs not in columns:
            converted.row.pop(theirs, None)
    for ours, theirs in columns.items():
        value = find_column(row, theirs)
        converted.row[ours] = None if is_missing(value) else value
        converted.sources[ours] = (theirs,)
    if {"prompt", "completion", "completions"} & set(columns) and "messages" not in columns:
        for name in ("messages", *_DIALOGUES):  # a prompt is named, so a whole dialogue is not meant
            converted.row.pop(name, None)


def _move(converted: Converted, theirs: str, ours: str) -> None:
    if converted.row.get(theirs) is not None:
        converted.row[ours] = converted.row.pop(theirs)
        converted.sources[ours] = (theirs,)


def _convert_dialogue(converted: Converted) -> None:
    """Read the column of ShareGPT's dialogue, which the sides of a pair may continue."""
    row = converted.row
    has_sides = row.get("chosen") is not None and row.get("rejected") is not None
    ours = "prompt" if has_sides else "messages"
    if row.get("messages") is None and row.get("prompt") is None:
        for name in _DIALOGUES:
            if isinstance(row.get(name), list | str):
                _move(converted, name, ours)
                if isinstance(row[ours], str):
                    value = parse_json(row[ours])
                    row[ours] = value if isinstance(value, list) else row[ours]
                break
    if has_sides:
        for name in ("chosen", "rejected"):  # a side may be a single message, without a list
            if isinstance(row[name], Mapping):
                row[name] = [row[name]]
    lists = [row[name] for name in MESSAGE_COLUMNS if isinstance(row.get(name), list)]
    if any(isinstance(message, Mapping) and "from" in message for each in lists for message in each):
        converted.format = "ShareGPT"


def _convert_alpaca(converted: Converted, columns: Mapping[str, str]) -> None:
    """Read instruction, input and history as the prompt, and output as the completion."""
    row = converted.row
    if row.get("instruction") is None or row.get("messages") is not None or row.get("prompt") is not None:
        return
    texts = {name: row.pop(name) for name in ("instruction", "input") if row.get(name) is not None}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise BadRow("no_messages", f"column {name} is {str(text)[:40]!r}; write a text")
    question = "\n".join(text for text in texts.values() if text.strip())
    if not question:
        raise BadRow("empty", "columns instruction and input are blank; fill in one")
    history = row.pop("history", None)
    if isinstance(history, str):
        history = parse_json(history)
    turns = list(_read_history(history)) if history else []
    row["prompt"] = [*turns, {"role": "user", "content": question}]
    converted.sources["prompt"] = (*texts, *(["history"] if turns else []))
    if row.get("completion") is None and "completion" not in columns:
        _move(converted, "output", "completion")
    converted.format = "Alpaca"


def _read_history(history: object) -> list[dict[str, str]]:
    """Return the messages of earlier pairs of question and answer."""
    messages: list[dict[str, str]] = []
    for pair in history if isinstance(history, list) else [None]:
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise BadRow("no_messages", "column history must be a list of pairs of question and answer")
        messages += [
            {"role": role, "content": text} for role, text in zip(("user", "assistant"), pair, strict=True)
        ]
    return messages


def _parse_list(cell: str, column: str, *, holds_messages: bool) -> object:
    """Return the list that a cell of text spells; else the cell.

    Args:
        cell: the text.
        column: its name, for messages.
        holds_messages: True: a list of anything but messages stays text, because an answer may be JSON.

    Raises:
        BadRow: the cell spells messages as Python prints them; as text, this spelling would be learnt.
    """
    if _PYTHON_MESSAGES.match(cell):
        raise BadRow("no_json", f"column {column} spells messages as Python prints them; write them as JSON")
    value = parse_json(cell) if cell.lstrip().startswith("[") else None
    if not isinstance(value, list):
        return cell
    are_messages = bool(value) and all(
        isinstance(part, Mapping) and ("role" in part or "from" in part) for part in value
    )
    return cell if holds_messages and not are_messages else value


def _parse_number(cell: object) -> object:
    """Return the number or the boolean that a cell of text spells; else the cell."""
    if not isinstance(cell, str):
        return cell
    if cell.strip().lower() in ("true", "false"):
        return cell.strip().lower() == "true"
    try:
        return float(cell)
    except ValueError:
        return cell
