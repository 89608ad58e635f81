"""Whose a run folder is: one process at a time writes to it."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from lit_agentrl.config.errors import UserError

LOCK = ".run.lock"
PATIENCE_S = 0.5  # for another process that only looks whether the folder is owned
_log = logging.getLogger(__name__)
_held: dict[Path, int] = {}  # folders that this process owns, and the open file of each lock


class FolderInUse(UserError):
    """Another process writes to the folder."""


@contextmanager
def owned(folder: str | Path) -> Iterator[None]:
    """Around all that a process writes to a run folder: no other process writes to it meanwhile.

    The folder is made if it is not there.  The lock is the system's, on the open file ``.run.lock``: it ends with its
    process, however that dies, so that a file left behind by a killed one hinders nobody.  The file says for others
    which host and process hold it, and since when.  Within a process this may be nested.

    Raises:
        FolderInUse: another process owns it; nothing is changed.
        UserError: the folder cannot be made, or not be written.
    """
    folder = Path(os.path.realpath(folder))
    if folder in _held:
        yield
        return
    is_new = not folder.exists()
    _held[folder] = _take(folder)
    try:
        yield
    finally:
        give_up(folder)
        if is_new:
            with suppress(OSError):  # it holds something
                folder.rmdir()


def give_up(folder: str | Path) -> None:
    """Let another process own the folder, if this one does: before its end, for one that it starts."""
    folder = Path(os.path.realpath(folder))
    descriptor = _held.pop(folder, None)
    if descriptor is not None:
        if _is_at(descriptor, folder / LOCK):
            (folder / LOCK).unlink()
        os.close(descriptor)


def owner(folder: str | Path) -> str | None:
    """Which other process owns the folder, in words; None if there is none.  Nothing is changed."""
    if Path(os.path.realpath(folder)) in _held:
        return None
    path = Path(folder) / LOCK
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _told(path)
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(descriptor)
    return None


def require_idle(option: str, folder: Path) -> None:
    """Refuse a run that another process continues, whose weights change; nothing is written.

    Raises:
        FolderInUse: it does.
    """
    if (other := owner(folder)) is not None:
        raise FolderInUse(
            f"{option}={folder} is in use by {other}; wait for its end, or give a copy of the folder"
        )


def _take(folder: Path) -> int:
    """The open file of the lock, which is now this process's."""
    path, deadline = folder / LOCK, time.monotonic() + PATIENCE_S
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            reason = error.strerror or str(error)
            raise UserError(
                f"the folder {folder} cannot be written ({reason}); make it writable, or choose another"
            ) from error
        if _lock(descriptor, folder) and _is_at(descriptor, path):
            break
        os.close(descriptor)
        if time.monotonic() > deadline:
            raise FolderInUse(f"{folder} is in use by {_told(path)}; wait for its end, or end it")
        time.sleep(0.02)
    now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    about = {"host": socket.gethostname(), "process": os.getpid(), "start": now}
    with suppress(OSError):  # on a full disk it is owned all the same, and nobody is told by whom
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, (json.dumps(about) + "\n").encode(), 0)
    return descriptor


def _lock(descriptor: int, folder: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        _log.warning("%s cannot be locked (%s): start no second process on it", folder, error.strerror)
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is the one at ``path``, which its last owner may have removed since."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    return False


def _told(path: Path) -> str:
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        return f"process {about['process']} on {about['host']} since {about['start']}"
    except (OSError, ValueError, KeyError, TypeError):  # it has not written it yet
        return "another process"
