"""Folders of critiques or revisions that a judge wrote.

``manifest.json`` describes the rows (``described``) and lists the pieces that are written, each with its checksum.
Pieces are appended to ``KIND.jsonl.part``, which is renamed when the last piece is written.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lit_agentrl.checks import require_local
from lit_agentrl.data.episodes import MANIFEST, EpisodeFolder, open_folder
from lit_agentrl.envs.tasks.tables import NAMES, READERS
from lit_agentrl.files import append_durable, fsync_folder, write_atomic

KINDS = ("critiques", "revisions")
VERSION = 1
_REMEDY = "name another folder, or remove this one"


@dataclass(frozen=True)
class Piece:
    """Rows that were written together.

    Attributes:
        rows: number of rows.
        good: number of rows that count as good to the command that wrote them.
        size: number of bytes.
        sha256: hash of the bytes.
    """

    rows: int
    good: int
    size: int
    sha256: str


@dataclass(frozen=True)
class RowFolder:
    """The content of a folder of rows; ``shards`` are pieces of one file.

    The attributes are those of `EpisodeFolder`.

    Attributes:
        kind: kind of the rows, one of `KINDS`.
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
        """The file of all rows, which exists when the folder is complete."""
        return self.path / f"{self.kind}.jsonl"

    def add(self, rows: Sequence[Mapping[str, Any]], *, good: int) -> RowFolder:
        """Write further rows and then the manifest; a kill leaves all of them or nothing.

        Args:
            rows: rows as `data.reading` reads them.
            good: number of good rows.

        Raises:
            OSError: the folder cannot be written.
        """
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        append_durable(self._part, lines)
        content = lines.encode()
        piece = Piece(len(rows), good, len(content), hashlib.sha256(content).hexdigest())
        extended = replace(self, shards=(*self.shards, piece))
        extended.write_manifest()
        extended.settle()
        return extended

    def write_manifest(self) -> None:
        """Write the manifest of the written pieces."""
        content = {
            "format": _name_format(self.kind), "version": VERSION, "described": self.described, "planned": self.planned,
            "pieces": [vars(piece) for piece in self.shards],
        }  # fmt: skip
        write_atomic(self.path / MANIFEST, json.dumps(content, indent=2, sort_keys=True) + "\n")

    def settle(self) -> None:
        """Remove a partial piece; rename the file once all pieces are written.

        Only the process that holds the lock of the folder may call it.

        Raises:
            ValueError: rows in the manifest are missing or changed.
        """
        file = self.rows if self._is_written and not self._part.exists() else self._part
        size = sum(piece.size for piece in self.shards)
        if size or file.exists():
            self._require_intact(file)
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

    def _require_intact(self, file: Path) -> None:
        try:
            with open(file, "rb") as opened:
                is_intact = all(
                    hashlib.sha256(opened.read(piece.size)).hexdigest() == piece.sha256
                    for piece in self.shards
                )
        except OSError as error:
            raise ValueError(f"{file} cannot be read: {error.strerror}; {_REMEDY}") from error
        if not is_intact:
            raise ValueError(f"{file} is damaged: its checksums are not those of {MANIFEST}; {_REMEDY}")


def read_kind(path: Path) -> str | None:
    """Read the kind of a folder of rows; None if it is no such folder."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    name = manifest.get("format") if isinstance(manifest, dict) else None
    return next((kind for kind in KINDS if name == _name_format(kind)), None)


def open_rows(path: Path, kind: str) -> RowFolder | None:
    """Open a folder of rows; None if it does not exist or is empty.

    Raises:
        ValueError: the folder has another kind or version, or its manifest is damaged.
    """
    if not path.exists() or (path.is_dir() and not any(p for p in path.iterdir() if p.name[0] != ".")):
        return None
    if read_kind(path) != kind:
        raise ValueError(f"{path} is not a folder of {kind}; name another folder")
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if manifest["version"] != VERSION:
            raise ValueError(f"its version is {manifest['version']}, and this program reads {VERSION}")
        pieces = tuple(_parse_piece(entry) for entry in manifest["pieces"])
        return RowFolder(path, dict(manifest["described"]), pieces, int(manifest["planned"]), kind)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path / MANIFEST} is damaged ({type(error).__name__}: {error}); {_REMEDY}"
        ) from error


def open_labels(path: Path) -> EpisodeFolder | RowFolder | None:
    """Open a folder that `label` or `collect` wrote; see `open_folder` and `open_rows`."""
    return open_folder(path) if (kind := read_kind(path)) is None else open_rows(path, kind)


def _name_format(kind: str) -> str:
    return f"lit_agentrl {kind}"


def _parse_piece(entry: Mapping[str, Any]) -> Piece:
    numbers = {name: int(entry[name]) for name in ("rows", "good", "size")}
    if min(numbers.values()) < 0:
        raise ValueError("a piece has a negative number")
    return Piece(**numbers, sha256=str(entry["sha256"]))


def find_paths(names: Sequence[str]) -> list[Path]:
    """Find the folders and files of a data set.

    Raises:
        ValueError: a path does not exist, or has another format.
    """
    for name in names:
        require_local("path", name)
    paths = [Path(name).expanduser() for name in names]
    for path in paths:
        if not os.path.exists(path):  # Path.exists raises where a name is too long
            raise ValueError(f"path={path} is not there; looked for {path.absolute()}")
        if path.is_dir():
            if rows := read_kind(path):
                raise ValueError(f"path={path} is a folder of {rows}; name its file, {path / rows}.jsonl")
            files = sorted(inside for inside in path.iterdir() if inside.suffix.lower() in READERS)
            if files and not (path / MANIFEST).is_file():
                raise ValueError(
                    f"path={path} is a folder of files; name the files, such as 'data.path=[{files[0]}]'"
                )
            if open_folder(path) is None:
                raise ValueError(f"path={path} is an empty folder; name one that lit-agentrl collect wrote")
        elif path.suffix.lower() not in READERS or not path.is_file():
            remedy = "; unpack it, and name the file inside" if path.suffix == ".gz" else ""
            raise ValueError(
                f"path={path} must be a folder of lit-agentrl collect, or a file that ends in {NAMES}{remedy}"
            )
    return paths
