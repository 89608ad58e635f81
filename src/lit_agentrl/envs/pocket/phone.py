"""The phone: tables of rows, the calls that apps offer on them, and what has changed between two states."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lit_agentrl.actions import ToolSpec

Row = dict[str, Any]
TEXT: Mapping[str, Any] = {"type": "string", "minLength": 1}
WHOLE: Mapping[str, Any] = {"type": "integer", "minimum": 1, "maximum": 1_000_000}
DATE: Mapping[str, Any] = {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}$", "description": "YYYY-MM-DD"}
TIME: Mapping[str, Any] = {"type": "string", "pattern": r"^\d{2}:\d{2}$", "description": "HH:MM"}
PAGE: Mapping[str, Any] = {"type": "integer", "minimum": 1, "maximum": 1000, "description": "from 1"}
_PER_PAGE = 5


class Refused(ValueError):
    """An app does not do what it is asked; the message is its answer."""


@dataclass
class Phone:
    """Rows by table; each row has an ``id``, such as ``m3``.

    Attributes:
        tables: name -> rows, in the order in which they were added.
        added: name -> rows ever added, which numbers the next one.
    """

    tables: dict[str, list[Row]] = field(default_factory=dict)
    added: dict[str, int] = field(default_factory=dict)

    def rows(self, table: str) -> list[Row]:
        """All rows of a table; they may be changed."""
        return self.tables.setdefault(table, [])

    def row(self, table: str, id: str) -> Row:
        """The row of an id.

        Raises:
            Refused: there is none.
        """
        for row in self.rows(table):
            if row["id"] == id:
                return row
        raise Refused(f"there is no {id} among the {table}")

    def add(self, table: str, **values: Any) -> Row:
        """A new row."""
        self.added[table] = self.added.get(table, 0) + 1
        row = {"id": f"{table[0]}{self.added[table]}", **values}
        self.rows(table).append(row)
        return row

    def remove(self, table: str, id: str) -> Row:
        """Take a row out.

        Raises:
            Refused: there is none.
        """
        row = self.row(table, id)
        self.rows(table).remove(row)
        return row

    def copy(self) -> Phone:
        """A phone of its own with equal rows."""
        tables = {table: [_copied(row) for row in rows] for table, rows in self.tables.items()}
        return Phone(tables, dict(self.added))


@dataclass(frozen=True)
class Api:
    """A call of an app.

    Attributes:
        act: called with the phone and the arguments; returns JSON values, or raises `Refused`.
    """

    app: str
    spec: ToolSpec
    act: Callable[..., Any]


def api(
    name: str, does: str, act: Callable[..., Any], optional: Mapping[str, Any] | None = None, /, **needed: Any
) -> Api:
    """An `Api` whose arguments have these schemas."""
    schema = {
        "type": "object",
        "properties": {**needed, **(optional or {})},
        "required": list(needed),
        "additionalProperties": False,
    }
    return Api(name.partition("_")[0], ToolSpec(name, does, schema), act)


def paged(rows: list[Row], page: int) -> Row:
    """A page of rows, and how many pages there are."""
    pages = max(-(-len(rows) // _PER_PAGE), 1)
    return {"page": page, "pages": pages, "rows": rows[(page - 1) * _PER_PAGE : page * _PER_PAGE]}


def named(rows: list[Row], query: str, *keys: str) -> list[Row]:
    """Rows in which a text occurs under one of the keys, in any case."""
    return [row for row in rows if any(query.lower() in str(row[key]).lower() for key in keys)]


Changes = Counter[tuple[str, str, str]]


def changes(before: Phone, after: Phone) -> Changes:
    """What was added, removed and changed in each table; ids of new rows do not count, for they tell an order."""
    found: Changes = Counter()
    for table in sorted({*before.tables, *after.tables}):
        old, new = ({row["id"]: row for row in phone.tables.get(table, [])} for phone in (before, after))
        for id, row in old.items():
            if id not in new:
                found[table, "removed", id] += 1
            elif new[id] != row:
                found[table, "changed", f"{id} {_get_content(new[id])}"] += 1
        for id, row in new.items():
            if id not in old:
                found[table, "added", _get_content(row)] += 1
    return found


def _copied(row: Row) -> Row:
    """A row whose lists are its own."""
    return {key: list(value) if isinstance(value, list) else value for key, value in row.items()}


def _get_content(row: Row) -> str:
    return json.dumps({key: value for key, value in row.items() if key != "id"}, sort_keys=True)
