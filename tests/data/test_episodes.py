"""Folders of recorded episodes: what is read is what was written, to the bit; damage is told in one line."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lit_agentrl.data.episodes import MANIFEST, EpisodeFolder, open_folder
from lit_agentrl.episode import EndReason, Episode, Turn


def made(group: int, member: int, *, logp: float = -0.1234567890123) -> Episode:
    turn = Turn(
        observation="#_P", prefix_tokens=[3, 4], prefix_segments=[0, 2], message="m", state_key=2**62 + 1,  # type: ignore[arg-type]
        starts_row=True, reply_tokens=[5, 6], reply_segments=[4, 4], reply_logps=[logp, -1 / 3],  # type: ignore[arg-type]
        reply_entropies=[0.5, 0.25], reply_text="Up", is_valid=True, actions=["Up"], reward=1.0,  # type: ignore[arg-type]
    )  # fmt: skip
    return Episode(
        0, group, member, 0, "sokoban", 1000 + group, opening=[{"role": "user", "content": "é"}], turns=[turn],
        end=EndReason.SUCCESS, success=True, env_seconds=0.3,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> EpisodeFolder:
    found = EpisodeFolder(tmp_path / "f", {"seed": 0}, planned=2)
    return found.add("a", [made(0, 0), made(0, 1)]).add("b", [made(1, 0, logp=math.nan)])


def test_what_is_read_is_what_was_written(folder: EpisodeFolder) -> None:
    again = open_folder(folder.path)
    assert again == folder and again is not None and again.is_complete
    first, second, unknown = again.read()
    assert first == made(0, 0) and second == made(0, 1) and first.turns[0].reply_tokens.dtype == np.int64
    assert np.isnan(unknown.turns[0].reply_logps[0]) and unknown.turns[0].reply_logps[1] == -1 / 3
    for file in folder.path.glob("*.gz"):
        text = gzip.decompress(file.read_bytes()).decode()
        assert "NaN" not in text and "env_seconds" not in text  # JSON that others read; nothing of the clock


def test_the_same_episodes_are_the_same_bytes(folder: EpisodeFolder, tmp_path: Path) -> None:
    other = EpisodeFolder(tmp_path / "g", {"seed": 0}, planned=2).add("a", [made(0, 0), made(0, 1)])
    assert (other.path / "a.jsonl.gz").read_bytes() == (folder.path / "a.jsonl.gz").read_bytes()
    assert not other.is_complete


def test_a_folder_that_is_not_there_or_empty_holds_nothing(tmp_path: Path) -> None:
    assert open_folder(tmp_path / "none") is None and open_folder(tmp_path) is None


def _resealed(folder: EpisodeFolder, line: str) -> None:
    """A shard with a line of somebody's, and the checksum that belongs to it."""
    content = gzip.compress(line.encode())
    (folder.path / "a.jsonl.gz").write_bytes(content)
    _manifest(lambda m: m["shards"][0].update(sha256=hashlib.sha256(content).hexdigest()))(folder)


def _manifest(change: Callable[[dict[str, Any]], object]) -> Callable[[EpisodeFolder], None]:
    def write(folder: EpisodeFolder) -> None:
        found = json.loads((folder.path / MANIFEST).read_text())
        change(found)
        (folder.path / MANIFEST).write_text(json.dumps(found))

    return write


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda f: (f.path / "a.jsonl.gz").unlink(), "a.jsonl.gz cannot be read: No such file"),
        (lambda f: (f.path / "a.jsonl.gz").write_bytes(b"x"), "its checksum is not that of manifest.json"),
        (lambda f: (f.path / MANIFEST).unlink(), "is a folder of something else"),
        (lambda f: (f.path / MANIFEST).write_text("{"), "is damaged (JSONDecodeError"),
        (lambda f: (f.path / MANIFEST).write_text("[]"), "its manifest.json has another format"),
        (lambda f: (f.path / MANIFEST).write_bytes(b"\xff"), "is damaged (UnicodeDecodeError"),
        (
            _manifest(lambda m: m.update(version=9)),
            "is of version 9 of episode folders, and this program reads 1",
        ),
        (_manifest(lambda m: m.update(planned=-1)), "is damaged (planned=-1 is less than 0)"),
        (
            _manifest(lambda m: m.update(planned="x")),
            "is damaged (TypeError: planned='x' is not a whole number",
        ),
        (
            _manifest(lambda m: m["shards"][0].update(episodes="x")),
            "episodes of a shard='x' is not a whole number",
        ),
        (_manifest(lambda m: m.pop("shards")), "is damaged (KeyError"),
        (
            _manifest(lambda m: m.update(described={"policy": "x"})),
            "is damaged (TypeError: policy is not a mapping",
        ),
        (_manifest(lambda m: m["shards"][0].update(file="../a.jsonl.gz")), "is not a file in its folder"),
        (lambda f: _resealed(f, "{}\n"), "a.jsonl.gz line 1: this is not an episode: KeyError"),
        (lambda f: _resealed(f, "[1]\n"), "a.jsonl.gz line 1: this is not an episode: TypeError"),
        (lambda f: _resealed(f, "nope\n"), "a.jsonl.gz line 1: Expecting value"),
    ],
)
def test_damage_is_one_line(folder: EpisodeFolder, harm: Callable[[EpisodeFolder], Any], said: str) -> None:
    harm(folder)
    with pytest.raises(ValueError) as raised:
        found = open_folder(folder.path)
        assert found is not None
        list(found.read())
    assert said in str(raised.value) and "\n" not in str(raised.value)
