"""The phone: tables of rows, calls of its apps, and the changes between two states."""

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
    """A request that an app rejects; the message is its answer."""


@dataclass
class Phone:
    """Tables of rows; each row has an ``id``, such as ``m3``.

    Attributes:
        tables: name -> rows, in the order of their creation.
        added: name -> number of rows ever added, which numbers the next one.
    """

    tables: dict[str, list[Row]] = field(default_factory=dict)
    added: dict[str, int] = field(default_factory=dict)

    def get_rows(self, table: str) -> list[Row]:
        """Return the list of rows of a table; changing it changes the phone."""
        return self.tables.setdefault(table, [])

    def get_row(self, table: str, id: str) -> Row:
        """Return the row with an id.

        Raises:
            Refused: there is none.
        """
        for row in self.get_rows(table):
            if row["id"] == id:
                return row
        raise Refused(f"there is no {id} among the {table}")

    def add(self, table: str, **values: Any) -> Row:
        """Add a row."""
        self.added[table] = self.added.get(table, 0) + 1
        row = {"id": f"{table[0]}{self.added[table]}", **values}
        self.get_rows(table).append(row)
        return row

    def remove(self, table: str, id: str) -> Row:
        """Remove a row.

        Raises:
            Refused: there is none.
        """
        row = self.get_row(table, id)
        self.get_rows(table).remove(row)
        return row

    def copy(self) -> Phone:
        """Return a copy with rows of its own."""
        tables = {table: [_copy_row(row) for row in rows] for table, rows in self.tables.items()}
        return Phone(tables, dict(self.added))


@dataclass(frozen=True)
class Api:
    """A call that an app offers.

    Attributes:
        act: called with the phone and the arguments; returns JSON values, or raises `Refused`.
    """

    app: str
    spec: ToolSpec
    act: Callable[..., Any]


def make_api(
    name: str,
    description: str,
    act: Callable[..., Any],
    optional: Mapping[str, Any] | None = None,
    /,
    **required: Any,
) -> Api:
    """Create an `Api` whose arguments have these schemas."""
    schema = {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }
    return Api(name.partition("_")[0], ToolSpec(name, description, schema), act)


def get_page(rows: list[Row], page: int) -> Row:
    """Return a page of rows, counted from 1, and the number of pages."""
    pages = max(-(-len(rows) // _PER_PAGE), 1)
    return {"page": page, "pages": pages, "rows": rows[(page - 1) * _PER_PAGE : page * _PER_PAGE]}


def find_rows(rows: list[Row], query: str, *keys: str) -> list[Row]:
    """Return the rows with a text under one of the keys, in any case."""
    return [row for row in rows if any(query.lower() in str(row[key]).lower() for key in keys)]


Changes = Counter[tuple[str, str, str]]


def count_changes(before: Phone, after: Phone) -> Changes:
    """Count what was added, removed and changed in each table.

    Ids of new rows are ignored, because they depend on the order of the calls.
    """
    counts: Changes = Counter()
    for table in sorted({*before.tables, *after.tables}):
        old, new = ({row["id"]: row for row in phone.tables.get(table, [])} for phone in (before, after))
        for id, row in old.items():
            if id not in new:
                counts[table, "removed", id] += 1
            elif new[id] != row:
                counts[table, "changed", f"{id} {_get_content(new[id])}"] += 1
        for id, row in new.items():
            if id not in old:
                counts[table, "added", _get_content(row)] += 1
    return counts


def _copy_row(row: Row) -> Row:
    """Copy a row with its lists."""
    return {key: list(value) if isinstance(value, list) else value for key, value in row.items()}


def _get_content(row: Row) -> str:
    return json.dumps({key: value for key, value in row.items() if key != "id"}, sort_keys=True)
