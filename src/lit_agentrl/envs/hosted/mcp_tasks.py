"""Tasks for tools: question, setup, solution, and checks of the result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lit_agentrl.actions import ToolCall
from lit_agentrl.envs.tasks.rows import Row, Source, find_files


@dataclass(frozen=True)
class Check:
    """A call that is made at the end, and its expected result."""

    call: ToolCall
    result: str


@dataclass(frozen=True)
class McpTask:
    """A row of a file of tasks.

    Attributes:
        question: what the policy is asked.
        setup: calls before the episode.
        solution: calls of one solution; empty if none is known.
        checks: calls after the episode.
        answer: the expected answer; None accepts any.
        location: file and line.
        content: the whole row.
    """

    question: str
    setup: tuple[ToolCall, ...]
    solution: tuple[ToolCall, ...]
    checks: tuple[Check, ...]
    answer: str | None
    location: str
    content: str


def read_tasks(path: str | Mapping[str, str]) -> Mapping[str, tuple[McpTask, ...]]:
    """Read the tasks of each split.

    Columns: ``question``; ``check``, ``answer`` or both; ``setup`` and ``solution``.

    A call is ``{"name": …, "arguments": {…}}``; an entry of ``check`` also has ``result``, a text.

    Raises:
        ValueError: a file or row cannot be used; the message names file, line, column and remedy.
    """
    return _read(Source(find_files(path), "question", None))


@lru_cache(maxsize=16)
def _read(source: Source) -> Mapping[str, tuple[McpTask, ...]]:
    return {split: tuple(_parse_task(row) for row in rows) for split, rows in source.read().items()}


def _parse_task(row: Row) -> McpTask:
    columns, answer = row.columns, row.columns.get("answer")
    if answer is not None and not isinstance(answer, str):
        raise ValueError(f"path={row.location}: column answer is {answer!r}; write a text, or leave it out")
    checks = []
    for entry in _get_list(row, "check"):
        result = entry.get("result") if isinstance(entry, dict) else None
        if not isinstance(result, str):
            raise ValueError(
                f"path={row.location}: an entry of check has no result; write the text that the call gives"
            )
        checks.append(
            Check(_parse_call(row, "check", {k: v for k, v in entry.items() if k != "result"}), result)
        )
    if answer is None and not checks:
        raise ValueError(
            f"path={row.location}: nothing says when the task is solved; add a column check or answer"
        )
    setup, solution = (
        [_parse_call(row, name, call) for call in _get_list(row, name)] for name in ("setup", "solution")
    )
    content = json.dumps(columns, sort_keys=True)
    return McpTask(row.question, tuple(setup), tuple(solution), tuple(checks), answer, row.location, content)


def _get_list(row: Row, name: str) -> list[Any]:
    entries = row.columns.get(name) or []
    if not isinstance(entries, list):
        raise ValueError(f"path={row.location}: column {name} is not a list; write a list of calls")
    return entries


def _parse_call(row: Row, name: str, entry: Any) -> ToolCall:
    is_call = isinstance(entry, dict) and set(entry) == {"name", "arguments"}
    if not is_call or not isinstance(entry["name"], str) or not isinstance(entry["arguments"], dict):
        raise ValueError(
            f'path={row.location}: column {name} must hold calls {{"name": "…", "arguments": {{…}}}}'
        )
    return ToolCall(entry["name"], entry["arguments"])


def match_results(result: str, expected: str) -> bool:
    """Compare two results: as JSON if both are JSON, else word by word."""
    try:
        return bool(json.loads(result) == json.loads(expected))
    except (ValueError, RecursionError):
        return result.split() == expected.split()
