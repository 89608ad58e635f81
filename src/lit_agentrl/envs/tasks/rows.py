"""Rows of data sets: checked one by one, and divided into the three splits."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol, TypeVar

from lit_agentrl.checks import require_local
from lit_agentrl.envs.splits import SPLITS, split_of
from lit_agentrl.envs.tasks.messages import parse_messages
from lit_agentrl.envs.tasks.row_formats import find_column, is_missing, list_columns
from lit_agentrl.envs.tasks.tables import NAMES, READERS, drop_nulls, read_table, shorten_path

# of each file: split, path, and (modification time in ns, size in bytes)
Files = tuple[tuple[str, str, tuple[int, int]], ...]


class HasQuestion(Protocol):
    """A row that is assigned to a split by its question; messages name its location."""

    @property
    def question(self) -> str: ...
    @property
    def location(self) -> str: ...


RowType = TypeVar("RowType", bound=HasQuestion)


@dataclass(frozen=True)
class Row:
    """One prompt.

    Attributes:
        question: what the policy is asked.
        reference: the known answer as text; None where the data set has none.
        columns: everything that the file holds in this row.
        location: file and line.
    """

    question: str
    reference: str | None
    columns: Mapping[str, Any]
    location: str


@dataclass(frozen=True)
class Source:
    """Files and the roles of their columns.

    Attributes:
        files: split, path and state of each file (modification time in ns, size in bytes); ``train`` must be among
            them.
        question, reference: the columns; reference None: the data set has none.
        needed: further columns that every row must have.
    """

    files: Files
    question: str
    reference: str | None
    needed: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(path for _, path, _ in self.files)

    def read(self) -> Mapping[str, tuple[Row, ...]]:
        """Return the rows of each split.  Unchanged files are read once per process.

        Raises:
            ValueError: a row cannot be used, a question lies in two splits, or a split has no rows; the message names
                file, line, column and remedy.
        """
        return _read(self)


def resolve_files(path: str | Mapping[str, str]) -> dict[str, Path]:
    """Return the file of each split that has its own; a single path means ``train``."""
    files = dict(path) if isinstance(path, Mapping) else {"train": path}
    for name in files.values():
        require_local("path", name)
    return {str(split): Path(str(name)).expanduser().absolute() for split, name in files.items()}


def hash_contents(path: str | Mapping[str, str]) -> dict[str, str]:
    """Return a hash of the content of each file."""
    return {split: blake2b(file.read_bytes()).hexdigest() for split, file in resolve_files(path).items()}


def find_files(path: str | Mapping[str, str]) -> Files:
    """Check the files of a `Source`; return them with their states.

    Raises:
        ValueError: an unknown split, no file for ``train``, or a file that is missing or of another kind.
    """
    files = []
    for split, file in resolve_files(path).items():
        key = f"path.{split}" if isinstance(path, Mapping) else "path"
        if split not in SPLITS:
            raise ValueError(
                f"{key}={shorten_path(file)}: the splits are {', '.join(SPLITS)}; name one of them"
            )
        if file.suffix.lower() not in READERS:
            raise ValueError(f"{key}={shorten_path(file)} must be a file that ends in {NAMES}")
        if file.is_file() and not file.stat().st_size:
            raise ValueError(
                f"{key}={shorten_path(file)} is empty; write one row a line, or name another file"
            )
        if not file.is_file():
            raise ValueError(f"{key}={shorten_path(file)} does not exist; looked for {file}")
        state = file.stat()
        files.append((split, str(file), (state.st_mtime_ns, state.st_size)))
    if "train" not in [split for split, _, _ in files]:
        named = ", ".join(f"{split}: {shorten_path(Path(file))}" for split, file, _ in files)
        raise ValueError(
            f"path={{{named}}} must name a file for train, as in path={{train: FILE, test: FILE}}"
        )
    return tuple(files)


@lru_cache(maxsize=16)
def _read(source: Source) -> Mapping[str, tuple[Row, ...]]:
    return divide_into_splits(source.files, partial(_check_row, source=source), f"column {source.question}")


def divide_into_splits(
    files: Files, check: Callable[[Mapping[str, Any], str], RowType], unit: str
) -> Mapping[str, tuple[RowType, ...]]:
    """Divide the rows of all files into splits.

    Args:
        files: see `find_files`.
        check: converts a row and its location; raises a ValueError that says what is wrong with the row.
        unit: what identifies a question, in messages.

    Raises:
        ValueError: as in `Source.read`.
    """
    by_split: dict[str, list[RowType]] = {split: [] for split in SPLITS}
    own_splits = [split for split, _, _ in files]
    first: dict[str, tuple[str, str]] = {}  # question -> split and location of its first row
    for split_of_file, path, _ in files:
        for row in _read_rows(Path(path), check):
            question = " ".join(row.question.split())
            hashed_split = split_of(question)
            is_shared = split_of_file == "train" and hashed_split not in own_splits
            split = hashed_split if is_shared else split_of_file
            earlier, location = first.setdefault(question, (split, row.location))
            if earlier != split:
                raise ValueError(
                    f"path={row.location}: {unit} is that of {location}, and a question in both {earlier} and {split} "
                    "would be trained on and tested; take one of the two out"
                )
            by_split[split].append(row)
    if empty := [split for split, rows in by_split.items() if not rows]:
        raise ValueError(
            f"path={shorten_path(Path(files[0][1]))}: none of {sum(map(len, by_split.values()))} rows is in the "
            f"split {empty[0]}; add rows, or name a file for each split: path={{train: FILE, val: FILE, test: FILE}}"
        )
    return {split: tuple(rows) for split, rows in by_split.items()}


def _read_rows(path: Path, check: Callable[[Mapping[str, Any], str], RowType]) -> Sequence[RowType]:
    rows, bad = [], []
    for where, columns in read_table(path):
        location = f"{shorten_path(path)} {where}"
        try:
            if isinstance(columns, ValueError):
                raise columns
            if not isinstance(columns, dict):
                raise ValueError('it is no object; write {"column": value, …}')
            rows.append(check(columns, location))
        except ValueError as error:
            bad.append(f"path={location}: {error}")
    if bad:
        raise ValueError(bad[0] + (f" (the first of {len(bad)} bad rows)" if len(bad) > 1 else ""))
    return rows


def _check_row(columns: Mapping[str, Any], location: str, *, source: Source) -> Row:
    roles = {source.question: "question", source.reference: "reference"}
    cells = {
        name: find_column(columns, name)
        for name in (source.question, source.reference, *source.needed)
        if name is not None
    }
    for name, cell in cells.items():
        if cell is None or is_missing(cell):
            problem = "is empty" if cell is None else f"is missing (there are {list_columns(columns)})"
            remedy = (
                f", or name another with {roles[name]}=COLUMN"
                if name in roles
                else ": the reward has this argument; it may name question, reference, answer, turn, or a column"
            )
            raise ValueError(f"column {name} {problem}; fill it in{remedy}")
    question = _read_question(source.question, cells[source.question])
    reference = None
    if source.reference is not None:
        reference = _format_reference(source.reference, cells[source.reference])
    return Row(question, reference, columns, location)


def _read_question(column: str, cell: object) -> str:
    """Return a question as text; of messages, the system text and then the user's."""
    if isinstance(cell, list) and cell:
        messages = parse_messages(drop_nulls(cell), column, "user")
        if [message["role"] for message in messages] not in (["user"], ["system", "user"]):
            raise ValueError(
                f"column {column} is a dialogue of several turns; write one message of the user, and one of the system "
                "before it or none"
            )
        cell = "\n\n".join(message["content"] for message in messages)
    if not isinstance(cell, str) or not cell.strip():
        raise ValueError(f"column {column} is {_shorten(cell)}; write a text that is not blank")
    _require_whole_characters(column, cell)
    return cell


def _format_reference(column: str, value: object) -> str:
    """Return a text unchanged, and numbers and booleans as JSON."""
    if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(
            f"column {column} is {_shorten(value)}; write a text, a finite number, true or false, or set "
            "reference=null and let the reward take the column by its name"
        )
    text = value if isinstance(value, str) else json.dumps(value)
    if not text.strip():
        raise ValueError(f"column {column} is blank; fill it in")
    _require_whole_characters(column, text)
    return text


def _require_whole_characters(column: str, text: str) -> None:
    if text != text.encode("utf-8", "replace").decode():
        raise ValueError(f"column {column} holds half a character (a lone surrogate); write it whole")


def _shorten(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 40 else f"{text[:40]}…"
