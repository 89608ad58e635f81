"""Durable writes: files are replaced whole, and are on disk before a call returns."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def fsync_folder(folder: str | Path) -> None:
    """Flush the entries of ``folder`` to disk; a rename is durable only after this."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _add_file_name(path: Path) -> Iterator[None]:
    """Add the file name to errors of writes and flushes, which lack it."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def write_atomic(path: str | Path, text: str | bytes) -> None:
    """Replace the content of a file by ``text`` (as UTF-8) atomically.

    Readers see the old or the new content, also if the process is killed half-way.

    Raises:
        OSError: the folder is not writable or full; the old file is untouched.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _get_temporary(path)
    temporary.unlink(missing_ok=True)  # if a link has this name, its target must not be written
    with _add_file_name(path), open(temporary, "xb") as file:
        file.write(text.encode() if isinstance(text, str) else text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    fsync_folder(path.parent)


def append_durable(path: str | Path, text: str) -> None:
    """Append ``text`` to a file and wait until it is on disk.

    A kill may leave an incomplete last line: see :func:`read_complete_lines`.

    Raises:
        OSError: the folder is not writable or full.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with _add_file_name(path), open(path, "a", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    if is_new:
        fsync_folder(path.parent)


def read_complete_lines(path: str | Path) -> tuple[list[str], bool]:
    """Read the complete lines of a file, and whether an incomplete one follows them.

    Line ends are removed.  A missing file has no lines.  Damaged bytes are read as the replacement character.
    """
    path = Path(path)
    if not path.exists():
        return [], False
    *lines, tail = path.read_bytes().split(b"\n")
    # an incomplete line may end inside a character, so it is split off before decoding
    return [line.decode("utf-8", "replace") for line in lines], tail != b""


def remove_leftover(path: str | Path) -> None:
    """Remove the temporary file of a :func:`write_atomic` of ``path`` that was killed."""
    _get_temporary(Path(path)).unlink(missing_ok=True)


def _get_temporary(path: Path) -> Path:
    return path.with_name(path.name + ".tmp")


def recover_folder(folder: str | Path) -> None:
    """Undo a :func:`replace_folder` that was killed.

    The old folder is restored if the new one is not in place.
    """
    folder = Path(folder)
    old, new = folder.with_name(folder.name + ".old"), folder.with_name(folder.name + ".tmp")
    if old.is_dir() and not folder.exists():
        os.replace(old, folder)
    for leftover in (old, new):
        _remove(leftover)


def replace_folder(folder: str | Path, write: Callable[[str], Any]) -> None:
    """Replace ``folder`` by the files that ``write(path)`` writes, or keep the old one.

    A folder cannot be replaced in one step.  A kill between the two renames leaves the old one as ``<name>.old``, from
    which :func:`recover_folder` restores it.

    Raises:
        OSError: the folder cannot be written; the partial copy is removed, since it may fill the disk.
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
    """Remove a folder with its content; of a link, only the link."""
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


def has_checkpoint(path: str | Path) -> bool:
    """Check whether ``path`` or its predecessor ``<path>.prev`` exists."""
    return os.path.exists(path) or os.path.exists(f"{path}.prev")
