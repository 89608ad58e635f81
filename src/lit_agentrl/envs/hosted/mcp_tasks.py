"""Tasks for tools: what is asked, what is prepared, how it is solved, and how a solution is recognised."""

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
    """A call that is made at the end, and what it must give."""

    call: ToolCall
    result: str


@dataclass(frozen=True)
class McpTask:
    """A row of a file of tasks.

    Attributes:
        question: what the policy is asked.
        setup: calls that are made before it begins.
        solution: calls of a way to solve it; empty: none is known.
        checks: calls that are made at its end.
        answer: what it must say at its end; None: anything.
        place: file and line.
        content: all of the row.
    """

    question: str
    setup: tuple[ToolCall, ...]
    solution: tuple[ToolCall, ...]
    checks: tuple[Check, ...]
    answer: str | None
    place: str
    content: str


def read_tasks(path: str | Mapping[str, str]) -> Mapping[str, tuple[McpTask, ...]]:
    """The tasks of each split: columns ``question``; ``check``, ``answer`` or both; ``setup`` and ``solution``.

    A call is ``{"name": …, "arguments": {…}}``; one of ``check`` also has ``result``, a text.

    Raises:
        ValueError: a file or row that cannot be used; names file, line, column and remedy.
    """
    return _read(Source(find_files(path), "question", None))


@lru_cache(maxsize=16)
def _read(source: Source) -> Mapping[str, tuple[McpTask, ...]]:
    return {split: tuple(_task(row) for row in rows) for split, rows in source.read().items()}


def _task(row: Row) -> McpTask:
    columns, answer = row.columns, row.columns.get("answer")
    if answer is not None and not isinstance(answer, str):
        raise ValueError(f"path={row.place}: column answer is {answer!r}; write a text, or leave it out")
    checks = []
    for entry in _list(row, "check"):
        result = entry.get("result") if isinstance(entry, dict) else None
        if not isinstance(result, str):
            raise ValueError(
                f"path={row.place}: an entry of check has no result; write the text that the call gives"
            )
        checks.append(Check(_call(row, "check", {k: v for k, v in entry.items() if k != "result"}), result))
    if answer is None and not checks:
        raise ValueError(f"path={row.place}: nothing says when it is solved; add a column check or answer")
    setup, solution = (
        [_call(row, name, each) for each in _list(row, name)] for name in ("setup", "solution")
    )
    content = json.dumps(columns, sort_keys=True)
    return McpTask(row.question, tuple(setup), tuple(solution), tuple(checks), answer, row.place, content)


def _list(row: Row, name: str) -> list[Any]:
    found = row.columns.get(name) or []
    if not isinstance(found, list):
        raise ValueError(f"path={row.place}: column {name} is no list; write a list of calls")
    return found


def _call(row: Row, name: str, entry: Any) -> ToolCall:
    is_call = isinstance(entry, dict) and set(entry) == {"name", "arguments"}
    if not is_call or not isinstance(entry["name"], str) or not isinstance(entry["arguments"], dict):
        raise ValueError(
            f'path={row.place}: column {name} must hold calls {{"name": "…", "arguments": {{…}}}}'
        )
    return ToolCall(entry["name"], entry["arguments"])


def alike(found: str, wanted: str) -> bool:
    """Whether two results are the same: as JSON where both are, else as text, white space aside."""
    try:
        return bool(json.loads(found) == json.loads(wanted))
    except (ValueError, RecursionError):
        return found.split() == wanted.split()
