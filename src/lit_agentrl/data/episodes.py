"""Folders of recorded episodes, bit-exact, in shards with checksums.

``manifest.json`` describes the episodes (``described``) and lists the complete shards; a shard is ``NAME.jsonl.gz``,
one episode per line (`Episode.to_plain`).  Reading executes no code.
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
MADE_WITH = "tokenizer_made_with"  # key of the description: the tokenizer's name and library versions
_MAYBE_UNKNOWN = ("reply_logps", "reply_entropies")  # for models behind an API: NaN in memory, null on disk


@dataclass(frozen=True)
class Shard:
    """A file of episodes.

    Attributes:
        file: name in the folder.
        episodes: number of lines.
        sha256: hash of its bytes.
    """

    file: str
    episodes: int
    sha256: str


@dataclass(frozen=True)
class EpisodeFolder:
    """The content of a folder of episodes.

    Attributes:
        path: the folder.
        described: description of the episodes: policy, games, settings, seed, version.
        shards: the complete shards, in order.
        planned: planned number of shards.
    """

    path: Path
    described: Mapping[str, Any]
    shards: tuple[Shard, ...] = ()
    planned: int = 0

    @property
    def is_complete(self) -> bool:
        return len(self.shards) >= self.planned

    def add(self, name: str, episodes: Sequence[Episode]) -> EpisodeFolder:
        """Write another shard, then the manifest, so that readers see all of it or nothing.

        Raises:
            OSError: the folder cannot be written.
        """
        content = gzip.compress("".join(map(to_line, episodes)).encode(), mtime=0)
        shard = Shard(f"{name}.jsonl.gz", len(episodes), hashlib.sha256(content).hexdigest())
        write_atomic(self.path / shard.file, content)
        extended = EpisodeFolder(self.path, self.described, (*self.shards, shard), self.planned)
        extended.write_manifest()
        return extended

    def write_manifest(self) -> None:
        """Write the manifest of the complete shards."""
        content = {
            "format": FORMAT, "version": VERSION, "described": self.described, "planned": self.planned,
            "shards": [vars(shard) for shard in self.shards],
        }  # fmt: skip
        write_atomic(self.path / MANIFEST, json.dumps(content, indent=2, sort_keys=True) + "\n")

    def read(self) -> Iterator[Episode]:
        """Read all episodes in order.

        Raises:
            ValueError: a shard is missing, damaged or holds no episode; the message names file and line.
        """
        for shard in self.shards:
            yield from _read_shard(self.path / shard.file, shard)


def open_folder(path: Path) -> EpisodeFolder | None:
    """Open a folder of episodes; return None if it does not exist or is empty.

    Raises:
        ValueError: the path is not a folder of episodes, or its manifest has another version or is damaged.
    """
    if not path.exists() or (path.is_dir() and not any(p for p in path.iterdir() if p.name[0] != ".")):
        return None
    file = path / MANIFEST
    if not file.is_file():
        kind = "is a folder of something else" if path.is_dir() else "is not a folder"
        raise ValueError(f"{path} {kind} (it has no {MANIFEST}); name one that lit-agentrl collect wrote")
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise ValueError(f"{path} holds no episodes: its {MANIFEST} has another format")
        if manifest["version"] != VERSION:
            raise ValueError(
                f"{path} is of version {manifest['version']} of episode folders, and this program reads "
                f"{VERSION}; collect again"
            )
        shards = tuple(_parse_shard(entry) for entry in manifest["shards"])
        described, planned = dict(manifest["described"]), _parse_count(manifest["planned"], "planned")
        if not isinstance(described.get("policy", {}), Mapping):
            raise TypeError("policy is not a mapping")
        if planned < 0:
            raise ValueError(f"{file} is damaged (planned={planned} is less than 0); collect again")
    except (OSError, UnicodeError, json.JSONDecodeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{file} is damaged ({type(error).__name__}: {error}); collect again") from error
    return EpisodeFolder(path, described, shards, planned)


def _parse_count(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={str(value)[:40]!r} is not a whole number")
    return value


def _parse_shard(entry: Mapping[str, Any]) -> Shard:
    shard = Shard(
        str(entry["file"]), _parse_count(entry["episodes"], "episodes of a shard"), str(entry["sha256"])
    )
    if Path(shard.file).name != shard.file or not shard.file.endswith(".jsonl.gz"):
        raise ValueError(f"{MANIFEST} names a shard {shard.file}, which is not a file in its folder")
    return shard


def to_line(episode: Episode) -> str:
    """Format an episode as a line of JSON, without its seconds, which differ between runs."""
    plain = episode.to_plain()
    del plain["env_seconds"]
    for turn in plain["turns"]:
        for name in _MAYBE_UNKNOWN:
            turn[name] = [None if math.isnan(value) else value for value in turn[name]]
    return json.dumps(plain, allow_nan=False, separators=(",", ":")) + "\n"


def _read_shard(file: Path, shard: Shard) -> Iterator[Episode]:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}; collect again") from error
    if hashlib.sha256(content).hexdigest() != shard.sha256:
        raise ValueError(f"{file} is damaged: its checksum is not that of {MANIFEST}; collect again")
    try:
        lines = gzip.decompress(content).decode().splitlines()
    except (OSError, EOFError, zlib.error, UnicodeError) as error:
        raise ValueError(f"{file} is not a gzip file of UTF-8 text ({error}); collect again") from error
    for number, line in enumerate(lines, 1):
        try:
            yield Episode.from_plain(json.loads(line))
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{file} line {number}: {error}") from error
