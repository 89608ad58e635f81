"""Checkpoint files that survive a kill, a full disk and a flipped bit."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.utilities import rank_zero_warn

from lit_agentrl.files import fsync_folder

LEFTOVERS = (".tmp", ".lnk")  # suffixes of files that only a killed write leaves behind


class CheckpointError(RuntimeError):
    """A checkpoint could not be written, or none that is intact could be read; the message is one line."""


def is_intact(path: str | Path) -> bool:
    """Whether the file is a whole zip archive (what ``torch.save`` writes) whose CRC-32 sums all agree.

    The sums do not cover the headers, so that torch is also asked to open it, without reading the data.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:
                return False
        torch.load(path, map_location="meta", mmap=True, weights_only=True)
    except pickle.UnpicklingError:
        return True  # as it was written: it holds what weights_only refuses, which is for the load to say
    except Exception:  # a flipped bit can make the readers fail in any way, and each means the same
        return False
    return True


def checkpoint_exists(path: str | Path) -> bool:
    """Whether there is a checkpoint to continue from at ``path``, be it only its predecessor."""
    return os.path.exists(path) or os.path.exists(f"{path}.prev")


class AtomicIO(TorchCheckpointIO):
    """Checkpoint files that are replaced whole, flushed to disk, and verified when they are read.

    The predecessor stays as ``<path>.prev`` (a hard link, so it costs no copy) and is used when the newest is
    damaged.  ``storage_options={"keep": 1}`` of a save keeps no predecessor.
    """

    def __init__(self) -> None:
        self._written: set[str] = set()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: dict[str, int] | None = None
    ) -> None:
        """Write ``checkpoint`` to ``path``.

        Raises:
            CheckpointError: the disk is full or the folder not writable; earlier checkpoints are untouched.
        """
        keep = (storage_options or {}).get("keep", 2)
        target = os.path.abspath(path)
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            _write_synced(checkpoint, f"{target}.tmp")
            # a damaged file (found by the load of this launch) must not push out its good predecessor
            if keep > 1 and (target in self._written or is_intact(target)):
                _link_predecessor(target)
            os.replace(f"{target}.tmp", target)
            if keep == 1 and os.path.exists(f"{target}.prev"):
                os.unlink(f"{target}.prev")
            fsync_folder(os.path.dirname(target))
            self._written.add(target)
        except OSError as error:
            reason = error.strerror or error
            raise CheckpointError(
                f"cannot write {target}: {reason}; earlier checkpoints are intact"
            ) from error

    def load_checkpoint(
        self,
        path: str | Path,
        map_location: Callable[..., Any] | None = lambda storage, loc: storage,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Read the newest intact one of ``path`` and its predecessor; by default tensors and plain data only.

        Raises:
            CheckpointError: neither file exists, or neither is intact.
        """
        if not checkpoint_exists(path):
            raise CheckpointError(f"there is no checkpoint {path}")
        for candidate in (str(path), f"{path}.prev"):
            if is_intact(candidate):
                if candidate != str(path):
                    rank_zero_warn(f"checkpoint {path} is damaged; using its predecessor {candidate}")
                return super().load_checkpoint(candidate, map_location, weights_only is not False)
        raise CheckpointError(f"checkpoint {path} is damaged and it has no intact predecessor")


def _write_synced(checkpoint: dict[str, Any], path: str) -> None:
    try:
        with open(path, "wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:
        with suppress(OSError):
            os.unlink(path)  # the half-written file would keep a full disk full
        raise _disk_error(error) from None


def _disk_error(error: BaseException) -> BaseException:
    """The file's own error: torch's zip writer hides it behind a RuntimeError about positions."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__context__
    return cause or error


def _link_predecessor(target: str) -> None:
    link, predecessor = f"{target}.lnk", f"{target}.prev"
    # a kill after the last link but before the last replace leaves both names on one file; renaming one
    # hard link over another of the same file does nothing and would leave the link behind
    if os.path.exists(predecessor) and os.path.samefile(target, predecessor):
        return
    if os.path.exists(link):
        os.unlink(link)
    os.link(target, link)
    os.replace(link, predecessor)
