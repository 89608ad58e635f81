"""Folders of rows that a judge wrote, critiques or revisions: whole only when all of them are there.

``manifest.json`` says what the rows are of (``described``) and lists the pieces that are written, each with its
checksum.  They stand one after another in ``KIND.jsonl.part``, which is renamed when the last one is there.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lit_agentrl.data.episodes import MANIFEST, EpisodeFolder, open_folder
from lit_agentrl.files import append_durable, fsync_folder, write_atomic

KINDS = ("critiques", "revisions")
VERSION = 1
_ANEW = "name another folder, or remove this one"


@dataclass(frozen=True)
class Piece:
    """Rows that were written together.

    Attributes:
        rows: how many.
        good: those of them that whoever wrote them counts apart.
        size: bytes.
        sha256: of these.
    """

    rows: int
    good: int
    size: int
    sha256: str


@dataclass(frozen=True)
class RowFolder:
    """What a folder holds; attributes as of `EpisodeFolder`, with ``shards`` that are pieces of one file.

    Attributes:
        kind: of `KINDS`: what the rows are.
    """

    path: Path
    described: Mapping[str, Any]
    shards: tuple[Piece, ...] = ()
    planned: int = 0
    kind: str = "critiques"

    @property
    def is_complete(self) -> bool:
        return self._is_written and self.rows.is_file() and not self._part.exists()

    @property
    def rows(self) -> Path:
        """The file of all rows, which is there when the folder is complete."""
        return self.path / f"{self.kind}.jsonl"

    def add(self, rows: Sequence[Mapping[str, Any]], *, good: int) -> RowFolder:
        """Write further rows, and then that they are there: a kill leaves all of them or nothing.

        Args:
            rows: what `data.reading` reads.
            good: how many of them are counted apart.

        Raises:
            OSError: the folder cannot be written.
        """
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        append_durable(self._part, lines)
        content = lines.encode()
        piece = Piece(len(rows), good, len(content), hashlib.sha256(content).hexdigest())
        grown = replace(self, shards=(*self.shards, piece))
        grown.write_manifest()
        grown.settle()
        return grown

    def write_manifest(self) -> None:
        """Say what is there."""
        content = {
            "format": _format(self.kind), "version": VERSION, "described": self.described, "planned": self.planned,
            "pieces": [vars(piece) for piece in self.shards],
        }  # fmt: skip
        write_atomic(self.path / MANIFEST, json.dumps(content, indent=2, sort_keys=True) + "\n")

    def settle(self) -> None:
        """Drop what a kill left half written, or give the whole file its name; by the owner of the folder.

        Raises:
            ValueError: what the manifest lists is not there, or was changed.
        """
        file = self.rows if self._is_written and not self._part.exists() else self._part
        size = sum(piece.size for piece in self.shards)
        if size or file.exists():
            self._require_whole(file)
            os.truncate(file, size)
        if self._is_written and file == self._part:
            os.replace(file, self.rows)
            fsync_folder(self.path)

    @property
    def _is_written(self) -> bool:
        return len(self.shards) >= self.planned

    @property
    def _part(self) -> Path:
        return self.rows.with_name(f"{self.rows.name}.part")

    def _require_whole(self, file: Path) -> None:
        try:
            with open(file, "rb") as opened:
                whole = all(
                    hashlib.sha256(opened.read(each.size)).hexdigest() == each.sha256 for each in self.shards
                )
        except OSError as error:
            raise ValueError(f"{file} cannot be read: {error.strerror}; {_ANEW}") from error
        if not whole:
            raise ValueError(f"{file} is damaged: its checksums are not those of {MANIFEST}; {_ANEW}")


def kind_of(path: Path) -> str | None:
    """What rows a folder is of, damaged or not; None: it is no such folder."""
    try:
        found = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    told = found.get("format") if isinstance(found, dict) else None
    return next((kind for kind in KINDS if told == _format(kind)), None)


def open_rows(path: Path, kind: str) -> RowFolder | None:
    """What is in a folder of such rows; None where there is no such folder, or an empty one.

    Raises:
        ValueError: it is something else, or of another version, or its manifest is damaged.
    """
    if not path.exists() or (path.is_dir() and not any(p for p in path.iterdir() if p.name[0] != ".")):
        return None
    if kind_of(path) != kind:
        raise ValueError(f"{path} holds no {kind}, and something else; name another folder")
    try:
        found = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if found["version"] != VERSION:
            raise ValueError(f"it is of version {found['version']}, and {VERSION} is read here")
        pieces = tuple(_piece(entry) for entry in found["pieces"])
        return RowFolder(path, dict(found["described"]), pieces, int(found["planned"]), kind)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path / MANIFEST} is damaged ({type(error).__name__}: {error}); {_ANEW}"
        ) from error


def open_labels(path: Path) -> EpisodeFolder | RowFolder | None:
    """What `label` or `collect` wrote into a folder; see `open_folder` and `open_rows`."""
    return open_folder(path) if (kind := kind_of(path)) is None else open_rows(path, kind)


def _format(kind: str) -> str:
    return f"lit_agentrl {kind}"


def _piece(entry: Mapping[str, Any]) -> Piece:
    numbers = {name: int(entry[name]) for name in ("rows", "good", "size")}
    if min(numbers.values()) < 0:
        raise ValueError("a piece has less than nothing")
    return Piece(**numbers, sha256=str(entry["sha256"]))
