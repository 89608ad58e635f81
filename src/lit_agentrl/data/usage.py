"""Counts of the used and the unused columns and message keys of data rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from lit_agentrl.checks import escape_unprintable
from lit_agentrl.envs.tasks.message_parts import list_keys
from lit_agentrl.envs.tasks.row_formats import MESSAGE_COLUMNS, Converted

READ_AS = "data: read "  # begins the note that is information and no warning
_MOST_NAMES = 8  # names in a line
_LONGEST_NAME = 40


class ReadRow(dict[str, Any]):
    """A row that remembers which of its columns were read.

    Attributes:
        names: the columns that were read and hold something.
    """

    def __init__(self, row: Mapping[str, Any]) -> None:
        super().__init__(row)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self._remember(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a column, or the default."""
        self._remember(name)
        return super().get(name, default)

    def _remember(self, name: str) -> None:
        if super().get(name) is not None:
            self.names.add(name)


class Usage:
    """Counts of rows by format, column and message key."""

    def __init__(self) -> None:
        self._formats: Counter[str] = Counter()
        self._columns: Counter[str] = Counter()
        self._unused_columns: Counter[str] = Counter()
        self._keys: Counter[str] = Counter()
        self._unused_keys: Counter[str] = Counter()

    def count(self, original: Mapping[str, Any], converted: Converted, read: ReadRow) -> None:
        """Count a row.

        Args:
            original: the row of the file.
            converted: the row with its columns renamed to those that are read.
            read: the converted row, which knows the columns that were read.
        """
        self._formats[converted.format] += 1
        used = {source for name in read.names for source in converted.sources.get(name, (name,))}
        self._columns.update(used)
        touched = {name if name in original else name.split(".")[0] for name in used}
        self._unused_columns.update(
            str(name)
            for name, cell in original.items()
            if cell not in (None, "", [], {}) and name not in touched
        )
        keys, unused = set[str](), set[str]()
        for message in _list_messages(read, converted):
            known, unknown = list_keys(message)
            keys, unused = keys | known, unused | unknown
        self._keys.update(keys)
        self._unused_keys.update(unused)

    def write_notes(self) -> Iterator[str]:
        """Write how the rows were read, and which columns and keys were not used."""
        if not self._formats:
            return
        formats = " and ".join(f"{_count_rows(count)} as {name}" for name, count in _sort(self._formats))
        keys = f"; message keys {_list_names(self._keys)}" if self._keys else ""
        yield f"{READ_AS}{formats}: columns {_list_names(self._columns) or 'none'}{keys}"
        unused = [
            f"{what} {_list_counts(counts)}"
            for what, counts in (("columns", self._unused_columns), ("message keys", self._unused_keys))
            if counts
        ]
        if unused:
            yield f"data: not used: {'; '.join(unused)}"


def _list_messages(read: ReadRow, converted: Converted) -> Iterator[Mapping[str, Any]]:
    """Yield the messages that were read as the file holds them, not composed ones."""
    for name in MESSAGE_COLUMNS:
        is_of_file = len(converted.sources.get(name, (name,))) == 1 and converted.format != "Alpaca"
        cell = dict.get(read, name) if name in read.names and is_of_file else None
        for part in cell if isinstance(cell, list) else []:
            for message in part if isinstance(part, list) else [part]:
                if isinstance(message, Mapping):
                    yield message


def _list_names(counts: Counter[str]) -> str:
    return _shorten([_shorten_name(name) for name, _ in _sort(counts)])


def _list_counts(counts: Counter[str]) -> str:
    """List names, each with its number of rows."""
    return _shorten([f"{_shorten_name(name)} ({_count_rows(count)})" for name, count in _sort(counts)])


def _sort(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _shorten(parts: list[str]) -> str:
    more = [f"{len(parts) - _MOST_NAMES} more"] if len(parts) > _MOST_NAMES else []
    return ", ".join([*parts[:_MOST_NAMES], *more])


def _shorten_name(name: str) -> str:
    return escape_unprintable(name)[:_LONGEST_NAME] or "''"


def _count_rows(count: int) -> str:
    return f"{count} row{'s' * (count != 1)}"
