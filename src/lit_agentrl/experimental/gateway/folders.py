"""Temporary folders of programs, and the removal of those that a killed trainer left."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_PREFIX = "lit-agentrl-program-"
_LOCK = "owner.lock"  # locked by the trainer as long as it lives
_searched: set[str] = set()  # temporary directories that this process has cleaned


class ProgramFolder:
    """A temporary folder that a living trainer locks.

    The trainer holds a lock on a file in the folder.  The system releases the lock when the trainer ends in any way;
    programs do not inherit it.  Before a process makes its first folder, it removes folders whose trainer has ended.

    Raises:
        OSError: The folder cannot be made.
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
        with suppress(OSError):  # on a file system without locks, no other process removes the folder
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            new.rename(self.path / _LOCK)  # other processes test this name, which exists only once locked

    def close(self) -> None:
        """Remove the folder; further calls, also from other threads, do nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def remove_left(place: Path) -> None:
    """Remove the folders of programs whose trainer has ended, and no others."""
    for folder in place.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another process removes the folder, or its trainer holds the lock
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while its trainer lives
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
