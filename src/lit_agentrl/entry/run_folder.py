"""The folder of a run or of a sweep: new when it begins, and written to by one process at a time."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import DictConfig, OmegaConf, read_write
from omegaconf.errors import OmegaConfBaseException

from lit_agentrl.entry.errors import UserError

LOCK = ".run.lock"
PATIENCE_S = 0.5  # for another process that only looks whether the folder is owned
_CONFIG = ".hydra"
_LAST_OF_CONFIG = "overrides.yaml"  # which Hydra writes last
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
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
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


@contextmanager
def begun(option: str, folder: Path) -> Iterator[None]:
    """Around a new run or sweep: it owns its folder, in which nothing was before.

    Raises:
        UserError: the folder holds something, is another's, or cannot be made.
    """
    require_new(option, folder)
    with owned(folder):
        require_new(option, folder)  # another may have begun there since
        yield


def require_new(option: str, folder: Path) -> None:
    """Refuse a folder that holds anything, lies within another's, or cannot be made; nothing is written.

    Args:
        option: by which it was chosen, for messages.
        folder: of a new run or sweep.

    Raises:
        UserError: it does.
    """
    above = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        reason = "is not writable" if above.is_dir() else "is not a folder"
        raise UserError(
            f"{option}={folder} cannot be created: {above} {reason}; choose another with {option}=FOLDER"
        )
    if folder.is_dir() and not _is_unused(folder):
        is_run = (folder / _CONFIG / "config.yaml").is_file()
        otherwise = f", or continue it with resume={folder}" if is_run else ""
        what = "holds a run" if is_run else "is not empty"
        raise UserError(f"{option}={folder} {what} already; choose a new folder{otherwise}")
    for parent in folder.absolute().parents:
        if (other := owner(parent)) is not None:
            raise UserError(f"{option}={folder} lies in {parent}, which is in use by {other}; choose another")


def _is_unused(folder: Path) -> bool:
    """Whether nothing is lost with what the folder holds: nothing, or what a run killed at its very start left."""
    names = {path.name for path in folder.iterdir()} - {LOCK}
    return not names or (names == {_CONFIG} and not (folder / _CONFIG / _LAST_OF_CONFIG).exists())


def require_apart(jobs: Sequence[DictConfig]) -> None:
    """Refuse a sweep of which two runs would write to one folder, or one to a folder that holds something.

    Args:
        jobs: the composed config of each run, with Hydra's own node.

    Raises:
        UserError: naming the option.
    """
    seen: set[Path] = set()
    for number, cfg in enumerate(jobs):
        with read_write(cfg.hydra.job):
            cfg.hydra.job.num, cfg.hydra.job.id = number, str(number)
        try:
            place = str(cfg.hydra.sweep.subdir)
        except OmegaConfBaseException:  # only Hydra can tell, when the run begins
            return
        folder = Path(os.path.abspath(Path(str(jobs[0].hydra.sweep.dir)) / place))
        if folder in seen:
            raise UserError(
                f"hydra.sweep.subdir={place} is the folder of several runs of the sweep; leave it out, or name what "
                "differs, such as hydra.sweep.subdir='seed${seed}'"
            )
        seen.add(folder)
        require_new("hydra.sweep.subdir", folder)


def require_untouched(folder: Path, config: str | None) -> None:
    """Refuse the folder of a run that is about to begin if more than its config is there.

    Args:
        folder: the run folder.
        config: where in it Hydra has put the config.

    Raises:
        UserError: it holds what another run has left.
    """
    if {path.name for path in folder.iterdir()} - {LOCK, config}:
        raise UserError(
            f"{folder} holds a run already; let hydra.sweep.subdir tell the runs of the sweep apart"
        )


def discard_unused(folder: Path) -> None:
    """Take back the folder of a run that failed before it wrote anything of its own."""
    if owner(folder) is None and {path.name for path in folder.iterdir()} - {LOCK} == {_CONFIG}:
        shutil.rmtree(folder / _CONFIG)
        with suppress(OSError):  # the lock is in it: its owner removes both
            folder.rmdir()


def pinned(overrides: Sequence[str], option: str, folder: Path) -> list[str]:
    """The overrides of a command with its folder as it was checked, since Hydra would ask the clock again."""
    kept = [text for text in overrides if text.lstrip("+").partition("=")[0] != option]
    return [*kept, f"{option}={QuotedString(str(folder), Quote.single).with_quotes()}"]


def chosen(cfg: DictConfig, *, is_multirun: bool) -> tuple[str, Path]:
    """The option that names the folder of a command, and that folder."""
    option = "hydra.sweep.dir" if is_multirun else "hydra.run.dir"
    return option, Path(str(OmegaConf.select(cfg, option)))
