"""What a campaign keeps: a row for each of its numbers, done once, by whoever comes first."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Ledger:
    """A folder of rows; several processes may share it, and a campaign may be ended and started anew."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)

    def run(self, numbers: Iterable[int], do: Callable[[int, Path], dict[str, Any]]) -> None:
        """Do those that nobody has done or is doing; each has a place of its own for what it makes."""
        for number in numbers:
            name = f"kill{number:03d}"
            with self.claimed(name, wait=False) as is_ours:
                if is_ours and not (self.folder / f"{name}.json").exists():
                    row = do(number, self.folder / name)
                    (self.folder / f"{name}.json").write_text(json.dumps(row))
                    print(
                        f"kill {number}: {row['setting']}: {row['fell']}: {row['problem'] or 'equal'}",
                        flush=True,
                    )

    def results(self) -> list[dict[str, Any]]:
        """A row for each that was done."""
        return [json.loads(file.read_text()) for file in sorted(self.folder.glob("kill*.json"))]

    @contextmanager
    def claimed(self, name: str, wait: bool) -> Iterator[bool]:
        """Whether this process alone does it; the system lets go of it when this process ends, however it does."""
        with open(self.folder / f".{name}.lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            yield True
