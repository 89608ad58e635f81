"""The rows of a data set: checked one by one, and dealt to the three splits."""

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
from lit_agentrl.envs.tasks.tables import READERS, read_table, short_path

Files = tuple[tuple[str, str, tuple[int, int]], ...]


class HasQuestion(Protocol):
    """What can be dealt to splits: its question decides; of two rows with the same one the place is told."""

    @property
    def question(self) -> str: ...
    @property
    def place(self) -> str: ...


Dealt = TypeVar("Dealt", bound=HasQuestion)


@dataclass(frozen=True)
class Row:
    """One prompt.

    Attributes:
        question: what the policy is asked.
        reference: the answer that is known, as text; None where the data set has none.
        columns: all that the file holds of it.
        place: file and line.
    """

    question: str
    reference: str | None
    columns: Mapping[str, Any]
    place: str


@dataclass(frozen=True)
class Source:
    """Files, and the meaning of their columns.

    Attributes:
        files: split, path and state (time of the last change, size) of each file; that of ``train`` is there.
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
        """The rows of each split.  Files that have not changed are read once in a process.

        Raises:
            ValueError: a row that cannot be used, a question in two splits, or a split without rows: names file,
                line, column and remedy.
        """
        return _read(self)


def named_files(path: str | Mapping[str, str]) -> dict[str, Path]:
    """The file of each split that has one of its own; a single path is that of ``train``."""
    files = dict(path) if isinstance(path, Mapping) else {"train": path}
    for name in files.values():
        require_local("path", name)
    return {str(split): Path(str(name)).expanduser().absolute() for split, name in files.items()}


def contents(path: str | Mapping[str, str]) -> dict[str, str]:
    """A digest of the content of each of `named_files`."""
    return {split: blake2b(file.read_bytes()).hexdigest() for split, file in named_files(path).items()}


def find_files(path: str | Mapping[str, str]) -> Files:
    """The files of a `Source`.

    Raises:
        ValueError: a split that is none, no file for ``train``, or a file that is not there or of another kind.
    """
    found = []
    for split, file in named_files(path).items():
        key = f"path.{split}" if isinstance(path, Mapping) else "path"
        if split not in SPLITS:
            raise ValueError(
                f"{key}={short_path(file)}: the splits are {', '.join(SPLITS)}; name one of them"
            )
        if file.suffix not in READERS:
            raise ValueError(f"{key}={short_path(file)} must be a file that ends in {' or '.join(READERS)}")
        if file.is_file() and not file.stat().st_size:
            raise ValueError(f"{key}={short_path(file)} is empty; write one row a line, or name another file")
        if not file.is_file():
            raise ValueError(f"{key}={short_path(file)} is no file that is there; looked for {file}")
        state = file.stat()
        found.append((split, str(file), (state.st_mtime_ns, state.st_size)))
    if "train" not in [split for split, _, _ in found]:
        named = ", ".join(f"{split}: {short_path(Path(file))}" for split, file, _ in found)
        raise ValueError(
            f"path={{{named}}} must name a file for train, as in path={{train: FILE, test: FILE}}"
        )
    return tuple(found)


@lru_cache(maxsize=16)
def _read(source: Source) -> Mapping[str, tuple[Row, ...]]:
    return deal(source.files, partial(_checked, source=source), f"column {source.question}")


def deal(
    files: Files, checked: Callable[[Mapping[str, Any], str], Dealt], what: str
) -> Mapping[str, tuple[Dealt, ...]]:
    """The rows of each split.

    Args:
        files: see `find_files`.
        checked: makes one of a row and of its place; a ValueError says what is wrong with it.
        what: tells two questions apart, in messages.

    Raises:
        ValueError: as of `Source.read`.
    """
    dealt: dict[str, list[Dealt]] = {split: [] for split in SPLITS}
    own = [split for split, _, _ in files]
    first: dict[str, tuple[str, str]] = {}  # question -> split and place where it was seen first
    for split_of_file, path, _ in files:
        for row in _rows(Path(path), checked):
            asked = " ".join(row.question.split())
            share = split_of(asked)
            split = share if split_of_file == "train" and share not in own else split_of_file
            before, place = first.setdefault(asked, (split, row.place))
            if before != split:
                raise ValueError(
                    f"path={row.place}: {what} is that of {place}, and a question in both {before} and {split} would "
                    "be trained on and tested; take one of the two out"
                )
            dealt[split].append(row)
    if empty := [split for split, rows in dealt.items() if not rows]:
        raise ValueError(
            f"path={short_path(Path(files[0][1]))}: none of {sum(map(len, dealt.values()))} rows is in the "
            f"split {empty[0]}; add rows, or name a file for each split: path={{train: FILE, val: FILE, test: FILE}}"
        )
    return {split: tuple(rows) for split, rows in dealt.items()}


def _rows(path: Path, checked: Callable[[Mapping[str, Any], str], Dealt]) -> Sequence[Dealt]:
    rows, bad = [], []
    for where, found in read_table(path):
        place = f"{short_path(path)} {where}"
        try:
            if isinstance(found, ValueError):
                raise found
            if not isinstance(found, dict):
                raise ValueError('it is no object; write {"column": value, …}')
            rows.append(checked(found, place))
        except ValueError as error:
            bad.append(f"path={place}: {error}")
    if bad:
        raise ValueError(bad[0] + (f" (the first of {len(bad)} bad rows)" if len(bad) > 1 else ""))
    return rows


def _checked(columns: Mapping[str, Any], place: str, *, source: Source) -> Row:
    roles = {source.question: "question", source.reference: "reference"}
    for name in (source.question, source.reference, *source.needed):
        if name is not None and columns.get(name) is None:
            what = "is empty" if name in columns else f"is missing (there are {', '.join(columns) or 'none'})"
            remedy = (
                f", or name another with {roles[name]}=COLUMN"
                if name in roles
                else ": the reward asks for it"
            )
            raise ValueError(f"column {name} {what}; fill it in{remedy}")
    question = columns[source.question]
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f"column {source.question} is {_cut(question)}; write a text that is not blank")
    _require_whole_characters(source.question, question)
    reference = None
    if source.reference is not None:
        reference = _text(source.reference, columns[source.reference])
    return Row(question, reference, columns, place)


def _text(column: str, value: object) -> str:
    """Text as it is; numbers, true and false as JSON writes them."""
    if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(
            f"column {column} is {_cut(value)}; write a text, a finite number, true or false, or set reference=null "
            "and let the reward take the column by its name"
        )
    text = value if isinstance(value, str) else json.dumps(value)
    if not text.strip():
        raise ValueError(f"column {column} is blank; fill it in")
    _require_whole_characters(column, text)
    return text


def _require_whole_characters(column: str, text: str) -> None:
    if text != text.encode("utf-8", "replace").decode():
        raise ValueError(f"column {column} holds half a character (a lone surrogate); write it whole")


def _cut(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 40 else f"{text[:40]}…"
