"""Folders of programs, and the removal of those that a killed trainer has left."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_PREFIX = "lit-agentrl-program-"
_LOCK = "owner.lock"  # locked by the trainer as long as it lives
_searched: set[str] = set()  # folders of temporary files in which this process has looked


class ProgramFolder:
    """A temporary folder that its trainer marks as its own.

    It holds a lock on a file, which the system releases when the trainer ends, however that happens.  A program does
    not inherit it.  The first folder that a process makes removes those whose trainer has ended.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self) -> None:
        place = tempfile.gettempdir()
        if place not in _searched:
            _searched.add(place)
            remove_left(Path(place))
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        new = self.path / f"{_LOCK}.new"
        try:
            self._lock = new.open("w")
        except OSError:
            self.path.rmdir()
            raise
        with suppress(OSError):  # some file systems have no locks; such a folder is then never removed
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            new.rename(self.path / _LOCK)  # only now may another process ask whether it is locked

    def close(self) -> None:
        """Remove the folder; this may be called again, also in another thread."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def remove_left(place: Path) -> None:
    """Remove the folders of programs whose trainer has ended, and no others."""
    for folder in place.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another process removes it, or it is another user's
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while its trainer lives
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
