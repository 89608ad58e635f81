"""Folders of recorded episodes: whole, exact to the token and the bit, in shards with checksums.

``manifest.json`` says what the episodes are of (``described``) and lists the shards that are complete; a shard is
``NAME.jsonl.gz``, one episode a line (`Episode.to_plain`).  Reading executes nothing.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lit_agentrl.episode import Episode
from lit_agentrl.files import write_atomic

FORMAT, VERSION = "lit_agentrl episodes", 1
MANIFEST = "manifest.json"
_MAYBE_UNKNOWN = ("reply_logps", "reply_entropies")  # of a model behind an API: NaN here, null on disk


@dataclass(frozen=True)
class Shard:
    """A file of episodes.

    Attributes:
        file: its name in the folder.
        episodes: how many lines.
        sha256: of its bytes.
    """

    file: str
    episodes: int
    sha256: str


@dataclass(frozen=True)
class EpisodeFolder:
    """What a folder holds.

    Attributes:
        path: the folder.
        described: what its episodes are of: policy, games, settings, seed, version.
        shards: those that are complete, in order.
        planned: how many there are to be.
    """

    path: Path
    described: Mapping[str, Any]
    shards: tuple[Shard, ...] = ()
    planned: int = 0

    @property
    def is_complete(self) -> bool:
        return len(self.shards) >= self.planned

    def add(self, name: str, episodes: Sequence[Episode]) -> EpisodeFolder:
        """Write a further shard, and then that it is there: a kill leaves all of it or nothing.

        Raises:
            OSError: the folder cannot be written.
        """
        content = gzip.compress("".join(map(to_line, episodes)).encode(), mtime=0)
        shard = Shard(f"{name}.jsonl.gz", len(episodes), hashlib.sha256(content).hexdigest())
        write_atomic(self.path / shard.file, content)
        grown = EpisodeFolder(self.path, self.described, (*self.shards, shard), self.planned)
        grown.write_manifest()
        return grown

    def write_manifest(self) -> None:
        """Say what is there."""
        content = {
            "format": FORMAT, "version": VERSION, "described": self.described, "planned": self.planned,
            "shards": [vars(shard) for shard in self.shards],
        }  # fmt: skip
        write_atomic(self.path / MANIFEST, json.dumps(content, indent=2, sort_keys=True) + "\n")

    def read(self) -> Iterator[Episode]:
        """Every episode, in order.

        Raises:
            ValueError: a shard is missing or damaged, or holds what is no episode: names file and line.
        """
        for shard in self.shards:
            yield from _episodes(self.path / shard.file, shard)


def open_folder(path: Path) -> EpisodeFolder | None:
    """What is in a folder of episodes; None where there is no such folder, or an empty one.

    Raises:
        ValueError: it is something else, or of another version, or its manifest is damaged.
    """
    if not path.exists() or (path.is_dir() and not any(p for p in path.iterdir() if p.name[0] != ".")):
        return None
    file = path / MANIFEST
    if not file.is_file():
        kind = "is a folder of something else" if path.is_dir() else "is no folder"
        raise ValueError(f"{path} {kind} (it has no {MANIFEST}); name one that lit-agentrl collect wrote")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ValueError(f"{path} holds no episodes: its {MANIFEST} is of something else")
        if found["version"] != VERSION:
            raise ValueError(
                f"{path} is of version {found['version']} of episode folders, and {VERSION} is read here; collect anew"
            )
        shards = tuple(_shard(entry) for entry in found["shards"])
        described, planned = dict(found["described"]), int(found["planned"])
        if not isinstance(described.get("policy", {}), Mapping):
            raise TypeError("policy is no table")
        if planned < 0:
            raise ValueError(f"{file} is damaged (planned={planned} is less than 0); collect anew")
    except (OSError, UnicodeError, json.JSONDecodeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{file} is damaged ({type(error).__name__}: {error}); collect anew") from error
    return EpisodeFolder(path, described, shards, planned)


def _shard(entry: Mapping[str, Any]) -> Shard:
    shard = Shard(str(entry["file"]), int(entry["episodes"]), str(entry["sha256"]))
    if Path(shard.file).name != shard.file or not shard.file.endswith(".jsonl.gz"):
        raise ValueError(f"{MANIFEST} names a shard {shard.file}, which is no file of its folder")
    return shard


def to_line(episode: Episode) -> str:
    """One episode as a line of JSON; without seconds, which are never the same twice."""
    plain = episode.to_plain()
    del plain["env_seconds"]
    for turn in plain["turns"]:
        for name in _MAYBE_UNKNOWN:
            turn[name] = [None if math.isnan(value) else value for value in turn[name]]
    return json.dumps(plain, allow_nan=False, separators=(",", ":")) + "\n"


def _episodes(file: Path, shard: Shard) -> Iterator[Episode]:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}; collect anew") from error
    if hashlib.sha256(content).hexdigest() != shard.sha256:
        raise ValueError(f"{file} is damaged: its checksum is not that of {MANIFEST}; collect anew")
    try:
        lines = gzip.decompress(content).decode().splitlines()
    except (OSError, EOFError, zlib.error, UnicodeError) as error:
        raise ValueError(f"{file} is no gzip of UTF-8 ({error}); collect anew") from error
    for number, line in enumerate(lines, 1):
        try:
            yield Episode.from_plain(json.loads(line))
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{file} line {number}: {error}") from error
