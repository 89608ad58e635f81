"""Guard run folders: new when a run starts, and written by one process only."""

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

from lit_agentrl.config.errors import UserError

LOCK = ".run.lock"
PATIENCE_S = 0.5  # retry time, since `find_owner` in another process holds the lock briefly
_log = logging.getLogger(__name__)
_held: dict[Path, int] = {}  # folder that this process owns -> open file of its lock


class FolderInUse(UserError):
    """Another process writes to the folder."""


@contextmanager
def lock_folder(folder: str | Path) -> Iterator[None]:
    """Lock a run folder, so that no other process writes to it inside the context.

    The folder is created if it does not exist.  The lock is the system's lock on the open file ``.run.lock``.  The
    system releases it when the process ends for any reason, so the file of a killed process blocks nobody.  The file
    tells others which host and process hold the lock, and since when.  Within a process, calls may be nested.

    Raises:
        FolderInUse: another process owns the folder; nothing is changed.
        UserError: the folder cannot be created or written.
    """
    folder = Path(os.path.realpath(folder))
    if folder in _held:
        yield
        return
    is_new = not folder.exists()
    _held[folder] = _acquire_lock(folder)
    try:
        yield
    finally:
        unlock_folder(folder)
        if is_new:
            with suppress(OSError):  # not empty
                folder.rmdir()


def unlock_folder(folder: str | Path) -> None:
    """Unlock the folder, if this process owns it."""
    folder = Path(os.path.realpath(folder))
    descriptor = _held.pop(folder, None)
    if descriptor is not None:
        if _is_at(descriptor, folder / LOCK):
            (folder / LOCK).unlink()
        os.close(descriptor)


def find_owner(folder: str | Path) -> str | None:
    """Return a description of the other process that owns the folder, or None."""
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
        return _describe_owner(path)
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(descriptor)
    return None


def require_idle(option: str, folder: Path) -> None:
    """Refuse a run that another process trains, since its weights change; write nothing.

    Raises:
        FolderInUse: another process owns the folder.
    """
    if (other := find_owner(folder)) is not None:
        raise FolderInUse(
            f"{option}={folder} is in use by {other}; wait for its end, or give a copy of the folder"
        )


def _acquire_lock(folder: Path) -> int:
    """Take the lock, and return its open file."""
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
            raise FolderInUse(f"{folder} is in use by {_describe_owner(path)}; wait for its end, or end it")
        time.sleep(0.02)
    now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    about = {"host": socket.gethostname(), "process": os.getpid(), "start": now}
    with suppress(OSError):  # on a full disk the lock still holds, but others cannot see by whom
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, (json.dumps(about) + "\n").encode(), 0)
    return descriptor


def _lock(descriptor: int, folder: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        _log.warning("%s cannot be locked (%s): do not start a second process on it", folder, error.strerror)
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether the open file is still the one at ``path``."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    return False


def _describe_owner(path: Path) -> str:
    """Return process, host and start time of the owner, read from the lock file."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        return f"process {about['process']} on {about['host']} since {about['start']}"
    except (OSError, ValueError, KeyError, TypeError):  # not written yet
        return "another process"


_CONFIG = ".hydra"
_FIRST_OUTPUTS = ("checkpoints", "transcripts", "metrics.csv")  # what a run writes first
_LAST_HYDRA_FILE = "overrides.yaml"  # the file that Hydra writes last
_FOLDER_OPTIONS = {"dirpath", "save_dir"}  # of callbacks and loggers
_FOLDERS = ("checkpoints", "transcripts", "tensorboard", "hf")  # of a run, which may lack some
_FILES = ("metrics.csv", "summary.json")
_CHECKPOINTS = "lit_agentrl.callbacks.checkpoints."


def read_overrides(folder: Path) -> list[str]:
    """Return the overrides that a run was started with; empty if they are not known."""
    try:
        return [str(override) for override in OmegaConf.load(folder / _CONFIG / _LAST_HYDRA_FILE)]
    except (OSError, OmegaConfBaseException, UnicodeError):
        return []


@contextmanager
def claim_new(option: str, folder: Path) -> Iterator[None]:
    """Create and lock a new folder; remove it afterwards if it is empty.

    Raises:
        UserError: the folder is not empty, another process owns it or a parent, or it cannot be created.
    """
    require_new(option, folder)
    place = folder.absolute()
    new = [created for created in (place, *place.parents) if not created.exists()]  # such as outputs/DATE
    try:
        with lock_folder(folder):
            require_new(option, folder)  # another process may have started a run there since
            yield
    finally:
        with suppress(OSError):  # stop at the first folder that is not empty
            for created in new:
                if created.exists():
                    created.rmdir()


def require_new(option: str, folder: Path) -> None:
    """Refuse a folder that is used, within a used one, or impossible to create.

    Args:
        option: the option that names the folder, for messages.
        folder: the folder of a new run or sweep.

    Raises:
        UserError: the folder is refused; the message says why.
    """
    try:
        parent_folder = next(
            parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists()
        )
    except OSError as error:
        shortened = f"{str(folder)[:40]}…" if len(str(folder)) > 40 else folder
        raise UserError(
            f"{option}={shortened} cannot be created: {error.strerror}; choose another with {option}=FOLDER"
        ) from error
    for problem in _find_conflicts(option, folder, parent_folder):
        raise UserError(f"{option}={folder} {problem}")


def _find_conflicts(option: str, folder: Path, parent_folder: Path) -> Iterator[str]:
    """Yield each reason why a folder cannot be used by a new run."""
    if not parent_folder.is_dir() or not os.access(parent_folder, os.W_OK):
        reason = "is not writable" if parent_folder.is_dir() else "is not a folder"
        yield f"cannot be created: {parent_folder} {reason}; choose another with {option}=FOLDER"
    if folder.is_dir() and not _is_unused(folder):
        is_run = (folder / _CONFIG / "config.yaml").is_file()
        otherwise = f", or continue it with resume={folder}" if is_run else ""
        what = "holds a run" if is_run else "is not empty"
        yield f"{what} already; choose a new folder{otherwise}"
    for parent in folder.absolute().parents:
        if (other := find_owner(parent)) is not None:
            yield f"lies in {parent}, which is in use by {other}; choose another"


def _is_unused(folder: Path) -> bool:
    """Return whether the folder is empty, or holds only an incomplete config folder.

    A run that was killed at its start leaves such a folder.
    """
    names = {path.name for path in folder.iterdir()} - {LOCK}
    return not names or (names == {_CONFIG} and not (folder / _CONFIG / _LAST_HYDRA_FILE).exists())


def require_separate_folders(jobs: Sequence[DictConfig], *, is_new: bool = True) -> None:
    """Refuse a sweep whose runs share a folder, or use one that is not empty.

    Args:
        jobs: the composed config of each run, including the ``hydra`` node.
        is_new: whether the sweep is new, so that the folders must be empty.

    Raises:
        UserError: the message names the option.
    """
    folders: set[Path] = set()
    for number, cfg in enumerate(jobs):
        with read_write(cfg.hydra.job):
            cfg.hydra.job.num, cfg.hydra.job.id = number, str(number)
        try:
            subdir = str(cfg.hydra.sweep.subdir)
        except OmegaConfBaseException:  # known only when Hydra starts the run
            return
        folder = Path(os.path.abspath(Path(str(jobs[0].hydra.sweep.dir)) / subdir))
        if folder in folders:
            raise UserError(
                f"hydra.sweep.subdir={subdir} is the folder of several runs of the sweep; leave it out, or include "
                "what differs, such as hydra.sweep.subdir='seed${seed}'"
            )
        folders.add(folder)
        if is_new:
            require_new("hydra.sweep.subdir", folder)


def require_within(cfg: DictConfig) -> None:
    """Refuse callbacks and loggers that would write outside of the run folder.

    Checkpoints must be in its ``checkpoints`` folder, where ``resume=`` and ``evaluate.py`` look for them.

    Args:
        cfg: the config of a run, interpolations resolved.

    Raises:
        UserError: the message names the option.
    """
    folder = os.path.abspath(cfg.run_dir)
    for section in ("callbacks", "logger"):
        for name, entry in (cfg[section] or {}).items():
            for option in _FOLDER_OPTIONS & set(entry if isinstance(entry, DictConfig) else ()):
                place = os.path.abspath(str(entry[option]))
                is_checkpoint = str(entry.get("_target_")).startswith(_CHECKPOINTS)
                if (
                    place == os.path.join(folder, "checkpoints")
                    if is_checkpoint
                    else Path(place).is_relative_to(folder)
                ):
                    continue
                where = "to another folder than its checkpoints/" if is_checkpoint else "outside of it"
                raise UserError(
                    f"{section}.{name}.{option}={entry[option]} would write {where}: the run folder is {folder}; leave "
                    f"{option} out, and choose the folder with hydra.run.dir=FOLDER"
                )


def require_untouched(folder: Path, of_hydra: set[str | None]) -> None:
    """Refuse a new run's folder that holds more than Hydra's own files.

    Args:
        folder: the run folder.
        of_hydra: the names of Hydra's config folder and log.

    Raises:
        UserError: the folder holds files of another run.
    """
    if {path.name for path in folder.iterdir()} - {LOCK, *of_hydra}:
        raise UserError(
            f"{folder} holds a run already; give each run of the sweep its own hydra.sweep.subdir"
        )


def require_not_started(folder: Path) -> None:
    """Refuse a new run whose folder another process used while this run's processes started.

    Raises:
        FolderInUse: another process has written to the folder.
    """
    if any((folder / name).exists() for name in _FIRST_OUTPUTS):
        raise FolderInUse(
            f"{folder} holds a run that another process has started meanwhile; continue that with resume={folder}, or "
            "choose a new folder"
        )


def require_writable(folder: Path) -> None:
    """Refuse to resume a run in a folder that is not writable; change nothing.

    Raises:
        UserError: a part of it is not writable, or is a file in place of a folder or vice versa.
    """
    for problem in _find_unwritable(folder):
        raise UserError(f"resume={folder}: {problem}")


def _find_unwritable(folder: Path) -> Iterator[str]:
    """Yield a line about each part of a run folder that cannot be written."""
    for place in (folder, *(folder / name for name in _FOLDERS)):
        if place.exists() and not place.is_dir():
            yield f"{place} is not a folder, but a run writes one there; move it away"
        if place.is_dir() and not os.access(place, os.W_OK):
            yield f"{place} is not writable; make it writable, or continue a copy of the run"
    for place in (folder / name for name in _FILES):
        if place.exists() and not place.is_file():
            yield f"{place} is not a file, but a run writes one there; move it away"


def discard_unused(folder: Path, printed: str | None = None) -> None:
    """Remove the folder of a run that failed before it wrote anything but ``printed``."""
    if find_owner(folder) is None and {path.name for path in folder.iterdir()} - {LOCK, printed} == {_CONFIG}:
        shutil.rmtree(folder / _CONFIG)
        if printed is not None:
            (folder / printed).unlink(missing_ok=True)
        with suppress(OSError):  # the lock file is in it; its owner removes both
            folder.rmdir()


def pin_folder(overrides: Sequence[str], option: str, folder: Path) -> list[str]:
    """Return the overrides with the checked folder.

    Hydra would otherwise compute the folder again from a later time.
    """
    remaining = [text for text in overrides if text.lstrip("+").partition("=")[0] != option]
    return [*remaining, f"{option}={QuotedString(str(folder), Quote.single).with_quotes()}"]


def read_folder(cfg: DictConfig, *, is_multirun: bool) -> tuple[str, Path]:
    """Return the option that names a command's folder, and that folder."""
    option = "hydra.sweep.dir" if is_multirun else "hydra.run.dir"
    return option, Path(str(OmegaConf.select(cfg, option)))
