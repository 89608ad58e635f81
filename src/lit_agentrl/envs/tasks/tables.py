"""Files of rows: JSONL, JSON, CSV, and Parquet through the optional library ``datasets``."""

from __future__ import annotations

import csv
import io
import json
import logging
import re
from collections.abc import Callable, Iterator
from glob import escape
from pathlib import Path
from typing import Any, NoReturn

# where each row stands in its file, and the row, or the error if it cannot be read
Rows = Iterator[tuple[str, object]]


def read_table(path: Path) -> Rows:
    """Yield the rows of a file, whose suffix names its format.

    Raises:
        ValueError: the file cannot be read at all; an error in a single row is yielded in its place.
    """
    try:
        with path.open("rb") as file:
            first_bytes = file.read(32)
            if first_bytes.startswith(b"version https://git-lfs"):
                raise ValueError(
                    f"path={shorten_path(path)} is a pointer of Git LFS, and not the data; fetch them with git lfs pull"
                )
            if first_bytes.startswith(b"PAR1") and path.suffix.lower() != ".parquet":
                raise ValueError(f"path={shorten_path(path)} is a Parquet file; let its name end in .parquet")
            if first_bytes.startswith(_COMPRESSED):
                raise ValueError(
                    f"path={shorten_path(path)} is compressed; unpack it, and name the file inside"
                )
        yield from READERS[path.suffix.lower()](path)
    except OSError as error:
        raise ValueError(f"path={shorten_path(path)} cannot be read: {error.strerror or error}") from error


def _read_jsonl(path: Path) -> Rows:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            # skip blank lines and lines that hold only a byte order mark
            if line.strip(b"\xef\xbb\xbf \t\r\n"):
                yield f"line {number}", _parse_line(line)


def _parse_line(line: bytes) -> object:
    try:
        text = line.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        return ValueError(f"it is not UTF-8 (byte {error.start + 1} of the line); save the file as UTF-8")
    value = parse_json(text)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return ValueError(
            "it is an array, and not an object; let the name of a file of one array end in .json"
        )
    if isinstance(value, ValueError) and "\0" in text:
        return ValueError("it contains zero bytes, as UTF-16 does; save the file as UTF-8")
    return value


def parse_json(text: str) -> object:
    """Parse a text; return an error instead of raising it."""
    try:
        return _DECODER.decode(text)
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
        raise ValueError(f"column {twice} occurs twice; keep one")
    return columns


def _parse_whole(digits: str) -> int:
    if len(digits) > 4000:  # Python's own limit
        raise ValueError(f"a number has {len(digits)} digits; write it as text")
    return int(digits)


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON; write a finite one")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_check_repeated, parse_constant=_refuse_constant, parse_int=_parse_whole
)
# first bytes of gz, zip, zst, bz2 and xz files
_COMPRESSED = (
    b"\x1f\x8b",
    b"PK\x03\x04",
    b"(\xb5/\xfd",
    b"BZh",
    b"\xfd7zXZ",
)
_QUOTED = re.compile(r'\s*"[^"\n]*"([;\t|])"')  # a header of quoted names without commas
_GAP = re.compile(r"[ \t\r\n]*")


def _read_json(path: Path) -> Rows:
    """Yield the objects of an array or a single object; else read JSONL.

    The array may also be the value of ``data`` in an object.
    """
    text = _read_text(path)
    if not text.lstrip().startswith("["):
        whole = parse_json(text.strip())
        if isinstance(whole, dict) and _is_by_column(whole):
            raise ValueError(
                f"path={shorten_path(path)} holds a list for each column; write an array with an object for each row "
                "(in pandas: to_json with orient='records')"
            )
        if isinstance(whole, dict):
            rows = whole["data"] if _is_table(whole) else [whole]
            yield from ((f"row {number}", row) for number, row in enumerate(rows, 1))
        else:
            yield from _read_jsonl(path)
        return
    place, number = _skip(text, text.index("[") + 1), 0
    while text[place : place + 1] != "]":
        number += 1
        value, place = _decode_at(text, place, f"path={shorten_path(path)} row {number}")
        yield f"row {number}", value
        place = _skip(text, place)
        if text[place : place + 1] == ",":
            place = _skip(text, place + 1)
        elif text[place : place + 1] != "]":
            raise ValueError(
                f"path={shorten_path(path)}: the array is wrong or cut after row {number} (character {place + 1} "
                "of the file); write it again, with a comma between rows and ] at its end"
            )
    if text[place + 1 :].strip():
        raise ValueError(f"path={shorten_path(path)}: text follows the array; keep one array, or write JSONL")


def _is_table(whole: dict[str, Any]) -> bool:
    """Return whether an object has rows under ``data``, and otherwise only single values."""
    others = [value for name, value in whole.items() if name != "data"]
    return isinstance(whole.get("data"), list) and not any(isinstance(value, dict | list) for value in others)


def _is_by_column(whole: dict[str, Any]) -> bool:
    """Return whether an object holds columns, as pandas writes them, and not one row."""
    values = list(whole.values())
    if not values:
        return False
    if all(isinstance(value, dict) and value and all(key.isdigit() for key in value) for value in values):
        return True
    is_listed = all(isinstance(value, list) and len(value) == len(values[0]) > 0 for value in values)
    return is_listed and not any(isinstance(item, dict) for value in values for item in value)


def _skip(text: str, place: int) -> int:
    found = _GAP.match(text, place)
    assert found is not None
    return found.end()


def _decode_at(text: str, place: int, where: str) -> tuple[object, int]:
    """Decode the value at a place; return it, or its error, and its end."""
    try:
        return _DECODER.raw_decode(text, place)
    except (json.JSONDecodeError, RecursionError) as error:
        reason = "is nested too deeply" if isinstance(error, RecursionError) else f"is no JSON ({error.msg})"
        raise ValueError(f"{where} {reason}; write the array again") from error
    except ValueError as error:  # a hook refused the value, whose end a plain decoder still finds
        plain = json.JSONDecoder(parse_int=len)  # whole numbers of any length
        return error, plain.raw_decode(text, place)[1]


def _read_text(path: Path) -> str:
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"path={shorten_path(path)} is not UTF-8 (byte {error.start + 1}); save the file as UTF-8"
        ) from error
    if "\0" in text:
        raise ValueError(
            f"path={shorten_path(path)} contains zero bytes, as UTF-16 does; save the file as UTF-8"
        )
    return text


def _read_csv(path: Path) -> Rows:
    """Yield the lines below the header; an empty cell is None."""
    text = _read_text(path)
    if found := _QUOTED.match(text):
        _refuse_separator(path, found[0], found[1])
    table = csv.reader(io.StringIO(text, newline=""), strict=True)
    csv.field_size_limit(2**31 - 1)  # Python's own limit is shorter than a long dialogue
    names: list[str] = []
    try:
        for cells in table:
            where = f"line {table.line_num}"
            if not names:
                names = [name.strip() for name in cells]
                if len(names) == 1 and (mark := next((each for each in ";\t|" if each in names[0]), "")):
                    _refuse_separator(path, names[0], mark)
                if twice := [name for name in names if names.count(name) > 1]:
                    raise ValueError(
                        f"path={shorten_path(path)}: column {twice[0]!r} occurs twice in the header; keep one"
                    )
            elif len(cells) == len(names):
                yield where, {name: cell or None for name, cell in zip(names, cells, strict=True)}
            elif cells:
                yield (
                    where,
                    ValueError(
                        f"it has {len(cells)} fields, and the header has {len(names)}; quote commas and line breaks"
                    ),
                )
    except csv.Error as error:
        raise ValueError(
            f"path={shorten_path(path)} line {table.line_num} is no CSV ({error}); quote texts with two double quotes "
            "for each one inside"
        ) from error


def _refuse_separator(path: Path, header: str, mark: str) -> NoReturn:
    raise ValueError(
        f"path={shorten_path(path)}: its header {header[:80]!r} has {mark!r} between names; separate the columns with "
        "commas"
    )


def _read_parquet(path: Path) -> Rows:
    try:
        import datasets
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError(
            f"path={shorten_path(path)}: Parquet needs the library datasets; pip install 'datasets>=4', or save "
            "the rows as JSONL"
        ) from error
    logging.getLogger("datasets").setLevel(logging.CRITICAL)  # errors are reported here
    try:  # streamed, so that nothing is copied into a cache on disk
        if not parquet.read_metadata(path).num_rows:  # datasets cannot stream a file without rows
            return
        table = datasets.load_dataset("parquet", data_files=escape(str(path)), split="train", streaming=True)
        rows = list(table)
    except Exception as error:  # several libraries can raise
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"path={shorten_path(path)} cannot be read as Parquet ({reason}); write it again"
        ) from error
    yield from ((f"row {number}", row) for number, row in enumerate(rows, 1))


def drop_nulls(value: Any) -> Any:
    """Leave out fields that are None from structs at any depth.

    Arrow gives all structs of a column the same fields, and None where a row has none.
    """
    if isinstance(value, dict):
        return {key: drop_nulls(part) for key, part in value.items() if part is not None}
    return [drop_nulls(part) for part in value] if isinstance(value, list) else value


READERS: dict[str, Callable[[Path], Rows]] = {
    ".jsonl": _read_jsonl, ".json": _read_json, ".csv": _read_csv, ".parquet": _read_parquet,
}  # fmt: skip
NAMES = " or ".join((", ".join(list(READERS)[:-1]), list(READERS)[-1]))


def shorten_path(path: Path) -> str:
    """Return the path relative to the current folder if it lies below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
