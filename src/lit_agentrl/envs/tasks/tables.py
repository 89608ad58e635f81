"""Files of rows: JSONL, and Parquet through the optional library ``datasets``."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from glob import escape
from pathlib import Path
from typing import Any

# the place of each row in its file, and the row, or the error that makes it unreadable
Rows = Iterator[tuple[str, object]]


def read_table(path: Path) -> Rows:
    """Yield the rows of a file, whose name ends in its format.

    Raises:
        ValueError: the file cannot be read at all; an error in a single row is yielded in its place.
    """
    try:
        yield from READERS[path.suffix](path)
    except OSError as error:
        raise ValueError(f"path={shorten_path(path)} cannot be read: {error.strerror or error}") from error


def _read_jsonl(path: Path) -> Rows:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            # skips blank lines, and a byte order mark alone
            if line.strip(b"\xef\xbb\xbf \t\r\n"):
                yield f"line {number}", _parse_line(line)


def _parse_line(line: bytes) -> object:
    try:
        text = line.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        return ValueError(f"it is not UTF-8 (byte {error.start + 1} of the line); save the file as UTF-8")
    value = parse_json(text)
    if isinstance(value, ValueError) and "\0" in text:
        return ValueError("it holds bytes of zero, as of UTF-16; save the file as UTF-8")
    return value


def parse_json(text: str) -> object:
    """Parse a text; what is wrong with it is returned as an error."""
    try:
        return json.loads(
            text, object_pairs_hook=_check_repeated, parse_constant=_refuse_constant, parse_int=_parse_whole
        )
    except json.JSONDecodeError as error:
        return ValueError(f"it is no JSON ({error.msg}, character {error.colno}); write one object a line")
    except RecursionError:
        return ValueError("it is nested too deeply; make it flat")
    except ValueError as error:  # from the hooks below
        return error


def _check_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    columns = dict(pairs)
    if len(columns) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"column {twice} stands there twice; keep one")
    return columns


def _parse_whole(digits: str) -> int:
    if len(digits) > 4000:  # Python's own limit
        raise ValueError(f"a number has {len(digits)} digits; write it as text")
    return int(digits)


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON; write a finite one")


def _read_parquet(path: Path) -> Rows:
    try:
        import datasets
    except ImportError as error:
        raise ValueError(
            f"path={shorten_path(path)}: Parquet needs the library datasets; pip install 'datasets>=4', or save "
            "the rows as JSONL"
        ) from error
    logging.getLogger("datasets").setLevel(logging.CRITICAL)  # errors are reported here
    try:  # streamed, so that nothing is copied into a cache on disk
        table = datasets.load_dataset("parquet", data_files=escape(str(path)), split="train", streaming=True)
        rows = list(table)
    except Exception as error:  # several libraries can raise
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"path={shorten_path(path)} cannot be read as Parquet ({reason}); write it again"
        ) from error
    yield from ((f"row {number}", row) for number, row in enumerate(rows, 1))


def drop_nulls(value: Any) -> Any:
    """Leave out the fields of structs that are None, at any depth.

    Arrow gives all structs of a column the same fields, and None where a row has none.
    """
    if isinstance(value, dict):
        return {key: drop_nulls(part) for key, part in value.items() if part is not None}
    return [drop_nulls(part) for part in value] if isinstance(value, list) else value


READERS: dict[str, Callable[[Path], Rows]] = {".jsonl": _read_jsonl, ".parquet": _read_parquet}


def shorten_path(path: Path) -> str:
    """Return the path relative to the current folder, where it lies below."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
