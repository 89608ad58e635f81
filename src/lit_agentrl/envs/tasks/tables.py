"""Files of rows: JSONL, and Parquet through the optional library ``datasets``."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from glob import escape
from pathlib import Path
from typing import Any

# the place of each row in its file, and the row; or why it is none, an error
Found = Iterator[tuple[str, object]]


def read_table(path: Path) -> Found:
    """The rows of a file, by the ending of its name.

    Raises:
        ValueError: the file cannot be read at all; what is wrong with one row stands in its place.
    """
    try:
        yield from READERS[path.suffix](path)
    except OSError as error:
        raise ValueError(f"path={short_path(path)} cannot be read: {error.strerror or error}") from error


def _jsonl(path: Path) -> Found:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            # neither blank, nor only the mark that some editors begin with
            if line.strip(b"\xef\xbb\xbf \t\r\n"):
                yield f"line {number}", _parsed(line)


def _parsed(line: bytes) -> object:
    try:
        text = line.decode("utf-8-sig").strip()
        return json.loads(text, object_pairs_hook=_unrepeated, parse_constant=_refused, parse_int=_whole)
    except UnicodeDecodeError as error:
        return ValueError(f"it is not UTF-8 (byte {error.start + 1} of the line); save the file as UTF-8")
    except json.JSONDecodeError as error:
        return ValueError(f"it is no JSON ({error.msg}, character {error.colno}); write one object a line")
    except RecursionError:
        return ValueError("it is nested too deeply; make it flat")
    except ValueError as error:  # from below
        return error


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"column {twice} stands there twice; keep one")
    return found


def _whole(digits: str) -> int:
    if len(digits) > 4000:  # Python reads no more
        raise ValueError(f"a number has {len(digits)} digits; write it as text")
    return int(digits)


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON; write a finite one")


def _parquet(path: Path) -> Found:
    try:
        import datasets
    except ImportError as error:
        raise ValueError(
            f"path={short_path(path)}: Parquet needs the library datasets; pip install 'datasets>=4', or save "
            "the rows as JSONL"
        ) from error
    logging.getLogger("datasets").setLevel(logging.CRITICAL)  # what fails is told here
    try:  # streamed, so that nothing is copied into a cache on disk
        table = datasets.load_dataset("parquet", data_files=escape(str(path)), split="train", streaming=True)
        rows = list(table)
    except Exception as error:  # of several libraries
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"path={short_path(path)} cannot be read as Parquet ({reason}); write it anew"
        ) from error
    yield from ((f"row {number}", row) for number, row in enumerate(rows, 1))


READERS: dict[str, Callable[[Path], Found]] = {".jsonl": _jsonl, ".parquet": _parquet}


def short_path(path: Path) -> str:
    """Relative to the folder of the command, where it lies below."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
