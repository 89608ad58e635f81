"""Episodes that were played once, kept in a folder for whoever would play the very same ones."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import zlib
from contextlib import suppress
from pathlib import Path

from lit_agentrl.episode import Episode
from lit_agentrl.rollout.workers.base import Played

MOST_BYTES = 512 * 2**20  # of the folder
_END = ".json.gz"


class DamagedEntry(ValueError):
    """A file of the folder does not hold what was written to it."""


class KeptPlays:
    """Waves by the key of all that they depend on: JSON, so that reading one runs nothing.

    Several processes may read and write at a time: a file appears whole, under a name that says what it is of.  No
    file outlives the bound: those that were read longest ago are removed.

    Args:
        folder: made when something is kept.
        most_bytes: that the folder may hold.
    """

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self.folder = folder
        self._most_bytes = most_bytes

    def get(self, key: str) -> Played | None:
        """What was kept under this key; None if nothing was.

        Raises:
            DamagedEntry: something that cannot be read, naming the file.
        """
        path = self.folder / f"{key}{_END}"
        try:
            held = json.loads(gzip.decompress(path.read_bytes()))
            episodes = [Episode.from_plain(plain) for plain in held["episodes"]]
            found = Played(episodes, row=held["row"], used=held["used"], counts=held["counts"])
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
            raise DamagedEntry(f"{path} ({type(error).__name__}: {error})") from error
        with suppress(OSError):  # of others, or on a disk that is read alone
            os.utime(path)
        return found

    def put(self, key: str, played: Played) -> None:
        """Keep a wave, in place of what was there.

        Raises:
            OSError: the folder cannot be written, or the disk is full.
        """
        text = json.dumps({
            "episodes": [episode.to_plain() for episode in played.episodes],
            "row": played.row, "used": dict(played.used), "counts": dict(played.counts),
        })  # fmt: skip
        self.folder.mkdir(parents=True, exist_ok=True)
        # a name of its own: another process may write the same entry now
        descriptor, name = tempfile.mkstemp(dir=self.folder, suffix=".tmp")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(gzip.compress(text.encode(), compresslevel=1))
            os.replace(name, self.folder / f"{key}{_END}")
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        self._prune()

    def _prune(self) -> None:
        """Also what writes that were killed have left."""
        sizes: dict[Path, tuple[float, int]] = {}
        for path in self.folder.iterdir():
            with suppress(OSError):  # removed by another process
                status = path.stat()
                sizes[path] = status.st_mtime, status.st_size
        left = sum(size for _, size in sizes.values())
        for path in sorted(sizes, key=lambda each: sizes[each][0]):
            if left <= self._most_bytes:
                break
            with suppress(OSError):
                path.unlink()
            left -= sizes[path][1]
