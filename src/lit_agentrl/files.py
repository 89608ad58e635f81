"""Durable files: replaced whole or not at all, and on disk before the call returns."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def fsync_folder(folder: str | Path) -> None:
    """Put the names in ``folder`` on disk; a rename is only durable after this."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors of a write or a flush do not say which file: say it."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def write_atomic(path: str | Path, text: str | bytes) -> None:
    """Replace the file by ``text`` (as UTF-8): a reader, or a run killed half-way, sees the old or the new, whole.

    Raises:
        OSError: the folder is not writable or full; the old file is untouched.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    temporary.unlink(missing_ok=True)  # never through a link that lies there
    with _naming(path), open(temporary, "xb") as file:
        file.write(text.encode() if isinstance(text, str) else text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    fsync_folder(path.parent)


def append_durable(path: str | Path, text: str) -> None:
    """Append ``text`` and wait until it is on disk.  A kill may leave a torn tail: see :func:`whole_lines`.

    Raises:
        OSError: the folder is not writable or full.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with _naming(path), open(path, "a", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    if is_new:
        fsync_folder(path.parent)


def whole_lines(path: str | Path) -> tuple[list[str], bool]:
    """The complete lines of a file (without their ends), and whether a torn one follows them.

    A missing file has no lines.  Damaged bytes are read as the replacement character.
    """
    path = Path(path)
    if not path.exists():
        return [], False
    *lines, tail = path.read_bytes().split(b"\n")
    # a torn tail may end inside a character, so it is split off before decoding
    return [line.decode("utf-8", "replace") for line in lines], tail != b""


def remove_leftover(path: str | Path) -> None:
    """Remove what a killed :func:`write_atomic` of ``path`` left beside it."""
    _temporary(Path(path)).unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    return path.with_name(path.name + ".tmp")


def recover_folder(folder: str | Path) -> None:
    """Undo a :func:`replace_folder` that was killed: the old folder comes back if the new is not in place."""
    folder = Path(folder)
    old, new = folder.with_name(folder.name + ".old"), folder.with_name(folder.name + ".tmp")
    if old.is_dir() and not folder.exists():
        os.replace(old, folder)
    for leftover in (old, new):
        _remove(leftover)


def replace_folder(folder: str | Path, write: Callable[[str], Any]) -> None:
    """Replace ``folder`` by what ``write(path)`` writes: whole and on disk, or the old one stays.

    A folder cannot be exchanged in one step.  A kill in the instant between two renames leaves it under
    ``<name>.old``, from where :func:`recover_folder` brings it back.

    Raises:
        OSError: it cannot be written; what was written of it is removed, or a full disk would stay full.
    """
    folder = Path(folder)
    old, new = folder.with_name(folder.name + ".old"), folder.with_name(folder.name + ".tmp")
    recover_folder(folder)
    try:
        new.mkdir(parents=True)
        write(str(new))
        for path in new.rglob("*"):
            if path.is_file():
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
        fsync_folder(new)
        if folder.exists():
            os.replace(folder, old)
        os.replace(new, folder)
        fsync_folder(folder.parent)
    except BaseException:
        with suppress(OSError):
            recover_folder(folder)
        raise
    with suppress(OSError):
        _remove(old)


def _remove(folder: Path) -> None:
    """A folder with what is in it; of a link to one, the link."""
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)
