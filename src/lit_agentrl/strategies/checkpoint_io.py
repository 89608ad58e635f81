"""Checkpoint files that survive a kill, a full disk and a flipped bit."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import psutil
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.utilities import rank_zero_warn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import DeviceMesh

from lit_agentrl.distributed import get_rank
from lit_agentrl.files import fsync_folder, has_checkpoint
from lit_agentrl.strategies import sharded_io
from lit_agentrl.strategies.background import Writer, copy_to_host
from lit_agentrl.strategies.plain_data import PLAIN, NotPlain, save_plain

T = TypeVar("T")
_MIN_AVAILABLE = 0.5  # share of the machine's memory; with less, only one copy exists at a time
LEFTOVERS = (".tmp", ".lnk")  # suffixes of files that an interrupted write leaves behind
_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")  # how torch names a type that it refuses to load


class CheckpointError(RuntimeError):
    """Failure to write a checkpoint or to read an intact one, in one line."""


def is_intact(path: str | Path) -> bool:
    """Return whether a checkpoint is complete and its checksums agree.

    A file must be a whole zip archive (the format of ``torch.save``) whose CRC-32 sums all agree.  The sums do not
    cover the headers, so torch also opens the file, without reading the data.  For a folder, see
    `sharded_io.is_intact`.
    """
    if sharded_io.is_sharded(path):
        return sharded_io.is_intact(path)
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:
                return False
        torch.load(path, map_location="meta", mmap=True, weights_only=True)
    except pickle.UnpicklingError:
        return True  # undamaged, but holds types that weights_only refuses; loading reports that
    except Exception:  # a flipped bit can raise any error in the readers, and each means damage
        return False
    return True


class SaveOptions(TypedDict, total=False):
    """Options of a save: the ``storage_options`` of ``trainer.save_checkpoint``.

    Attributes:
        keep: 1 keeps only the newest file, 2 (default) also its predecessor.
        wait: True (default): the file is on disk when the call returns; False: a thread writes it from a copy.  The
            first save to each path always waits, because it shows whether disk and contents allow the write.
        add: further entries of the checkpoint.
    """

    keep: int
    wait: bool
    add: dict[str, Any]


class AtomicIO(TorchCheckpointIO):
    """Checkpoint files that are replaced atomically, flushed to disk, and verified on load.

    The predecessor stays as ``<path>.prev`` (a hard link, so it costs no copy) and is used when the newest file is
    damaged.  Files are complete and in their place at every moment, also while a thread writes the next one.

    A checkpoint may also be a folder to which several ranks write (`sharded_io`); it is read like a file.

    Attributes:
        mesh: device mesh of a strategy that shards tensors; each rank then reads only its own shards of a folder.
        writer: the thread.
    """

    def __init__(self) -> None:
        self.mesh: DeviceMesh | None = None
        self.writer = Writer()
        self._written: set[str] = set()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: SaveOptions | None = None
    ) -> None:
        """Write ``checkpoint`` to ``path``, or copy it and let a thread write it.

        Raises:
            CheckpointError: the disk is full, the folder is not writable, or ``checkpoint`` holds more than tensors
                and plain data; earlier checkpoints are untouched.  If the thread's write fails, `Writer.check`,
                `Writer.join` and the next save raise this error.
        """
        options = storage_options or {}
        checkpoint = {**checkpoint, **options.get("add", {})}
        write = partial(self._replace_file, os.path.abspath(path), options.get("keep", 2))
        self.write_or_start(path, write, checkpoint, copy_to_host, wait=options.get("wait", True))

    def write_or_start(
        self, path: str | Path, write: Callable[[T], None], value: T, copy: Callable[[T], T], *, wait: bool
    ) -> None:
        """Write a file or folder now, or from a copy in the thread.

        Args:
            path: the file or folder.
            write: writes a value.
            value: what is written.
            copy: copies the value, which training changes.
            wait: see `SaveOptions`.

        Raises:
            BaseException: the write, or an earlier one by the thread, failed.
        """
        target = os.path.abspath(path)
        if not wait and target in self.writer.seconds:
            self.writer.join(target)  # so that this file has at most one copy in memory
            memory = psutil.virtual_memory()
            if memory.available < _MIN_AVAILABLE * memory.total:
                self.writer.join()  # and free the copies of other files
            try:
                value = copy(value)
            except Exception as error:  # raised by an object that cannot be copied, such as a lock
                rank_zero_warn(
                    f"{target} is written while training waits, since it cannot be copied: {error}"
                )
            else:
                self.writer.start(target, partial(write, value))
                return
        self.writer.perform(target, partial(write, value))

    def teardown(self) -> None:
        """Wait for the thread at the end of a fit, also of one that failed.

        Raises:
            BaseException: a write failed; while another error is being raised, a warning is printed instead.
        """
        is_failing = sys.exception() is not None
        try:
            self.writer.close()
        except BaseException as error:
            if not is_failing:
                raise
            rank_zero_warn(str(error))

    def _replace_file(self, target: str, keep: int, checkpoint: dict[str, Any]) -> None:
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            _write_synced(checkpoint, f"{target}.tmp")
            # a damaged file must not replace its intact predecessor
            is_folder = os.path.isdir(target)  # a file cannot replace a folder in one step
            if (keep > 1 or is_folder) and (target in self._written or is_intact(target)):
                _link_predecessor(target)
            elif is_folder:
                remove_checkpoint(target)
            os.replace(f"{target}.tmp", target)
            self._finish(target, keep)
        except (OSError, NotPlain) as error:
            raise _make_write_error(target, error) from error

    def save_sharded(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: SaveOptions | None = None
    ) -> None:
        """Write ``checkpoint`` to the folder ``path``, each rank its own shards.

        A collective: all ranks must call it, and wait until all have written.

        Raises:
            CheckpointError: on every rank, if any rank could not write; earlier checkpoints are untouched.
        """
        options = storage_options or {}
        keep = options.get("keep", 2)
        checkpoint = {**checkpoint, **options.get("add", {})}
        target = os.path.abspath(path)
        try:
            sharded_io.run_on_all_ranks(
                lambda: remove_checkpoint(f"{target}.tmp") if get_rank() == 0 else None
            )
            sharded_io.save(checkpoint, f"{target}.tmp")
            is_target_intact = target in self._written or (get_rank() == 0 and is_intact(target))
            sharded_io.run_on_all_ranks(
                lambda: _replace_folder(target, is_target_intact) if get_rank() == 0 else None
            )
            if get_rank() == 0:
                self._finish(target, keep)
            self._written.add(target)
        except OSError as error:
            if get_rank() == 0:
                with suppress(OSError):
                    remove_checkpoint(f"{target}.tmp")
            raise _make_write_error(target, error) from error

    def _finish(self, target: str, keep: int) -> None:
        if keep == 1:
            remove_checkpoint(f"{target}.prev")
        fsync_folder(os.path.dirname(target))
        self._written.add(target)

    def load_checkpoint(
        self,
        path: str | Path,
        map_location: Callable[..., Any] | None = lambda storage, loc: storage,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Read ``path``, or its predecessor if ``path`` is damaged.

        By default only tensors and plain data are accepted.

        Raises:
            CheckpointError: neither file exists, neither is intact, or the file holds more than tensors and plain
                data.
        """
        if not has_checkpoint(path):
            raise CheckpointError(f"there is no checkpoint {path}")
        for candidate in (str(path), f"{path}.prev"):
            is_folder = sharded_io.is_sharded(candidate)
            is_shared = is_folder and self.mesh is not None
            if sharded_io.is_intact(candidate, shared=True) if is_shared else is_intact(candidate):
                if candidate != str(path):
                    rank_zero_warn(f"checkpoint {path} is damaged; using its predecessor {candidate}")
                with convert_load_errors(candidate):
                    if is_folder:
                        return sharded_io.load(candidate, self.mesh, map_location)
                    return super().load_checkpoint(candidate, map_location, weights_only is not False)
        raise CheckpointError(
            f"checkpoint {path} is damaged and it has no intact predecessor; copy it again, or use "
            "another checkpoint"
        )


@contextmanager
def convert_load_errors(path: str | Path) -> Iterator[None]:
    """Convert errors about unsafe or unreadable contents of ``path`` to `CheckpointError`.

    Raises:
        CheckpointError: the checkpoint holds more than tensors and plain data.  torch's own message would explain
            how to load it regardless.
    """
    try:
        yield
    except pickle.UnpicklingError as error:
        match = _GLOBAL.search(str(error))
        kind = f" ({match[1]})" if match else ""
        raise CheckpointError(
            f"checkpoint {path} was not loaded: it holds more than {PLAIN}{kind}, which "
            "could run code; the state_dict of your own parts must hold only these"
        ) from error
    except CheckpointException as error:  # from a sharded folder, on all ranks; not an Exception
        raise CheckpointError(f"checkpoint {path} was not loaded: {sharded_io.find_cause(error)}") from error


def load_progress(path: str | Path) -> dict[str, Any]:
    """Return the checkpoint that `AtomicIO.load_checkpoint` would read; from a folder, without sharded tensors.

    Raises:
        CheckpointError: neither the checkpoint nor its predecessor is intact.
    """
    for candidate in (str(path), f"{path}.prev"):
        if sharded_io.is_sharded(candidate) and is_intact(candidate):
            with convert_load_errors(candidate):
                rest: dict[str, Any] = sharded_io.load_rest(candidate)["rest"]
                return rest
        if is_intact(candidate):
            break
    return AtomicIO().load_checkpoint(path)


def remove_checkpoint(path: str | Path) -> None:
    """Remove the file or folder if it exists."""
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def _make_write_error(target: str, error: OSError | NotPlain) -> CheckpointError:
    reason = (error.strerror if isinstance(error, OSError) else None) or error
    return CheckpointError(f"cannot write {target}: {reason}; earlier checkpoints are intact")


def _replace_folder(target: str, is_target_intact: bool) -> None:
    """Replace ``target`` by the new folder; an intact ``target`` becomes the predecessor.

    A folder cannot be replaced in one step: a kill between the steps leaves only the predecessor.
    """
    if is_target_intact and os.path.lexists(target):
        remove_checkpoint(f"{target}.prev")
        os.rename(target, f"{target}.prev")
    else:
        remove_checkpoint(target)
    os.rename(f"{target}.tmp", target)


def _write_synced(checkpoint: dict[str, Any], path: str) -> None:
    try:
        save_plain(checkpoint, path)
    except (OSError, RuntimeError, NotPlain) as error:
        with suppress(OSError):
            os.unlink(path)  # frees space on a full disk
        raise _find_cause(error) from None


def _find_cause(error: BaseException) -> BaseException:
    """Return the underlying OSError or KeyboardInterrupt of ``error``, or ``error`` itself.

    torch's zip writer hides both behind a RuntimeError about file positions.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError | KeyboardInterrupt):
        cause = cause.__context__
    return cause or error


def _link_predecessor(target: str) -> None:
    link, predecessor = f"{target}.lnk", f"{target}.prev"
    if os.path.isdir(target):
        remove_checkpoint(predecessor)
        os.rename(target, predecessor)
        return
    if os.path.isdir(predecessor):
        remove_checkpoint(predecessor)
    # After a kill between link and replace, both names point to one file.  Renaming a hard link over another
    # link of the same file does nothing and would leave the first behind.
    if os.path.exists(predecessor) and os.path.samefile(target, predecessor):
        return
    if os.path.exists(link):
        os.unlink(link)
    try:
        os.link(target, link)
    except OSError:  # the file system has no hard links
        shutil.copy2(target, link)
    os.replace(link, predecessor)
