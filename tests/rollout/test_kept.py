"""Kept episodes come back as they were played; what is damaged says so; the folder stays within its bound."""

from __future__ import annotations

import gzip
import json
import os
import threading
from pathlib import Path

import pytest

from lit_agentrl.episode import EndReason, Episode, FinishReason, Turn
from lit_agentrl.rollout.kept import DamagedEntry, KeptPlays
from lit_agentrl.rollout.workers.base import Played

KEY = "k" * 64


def played(reward: float = 1 / 3) -> Played:
    turn = Turn(
        observation="P _", prefix_tokens=[5, 7], prefix_segments=[0, 2], state_key=2**62 + 1,  # type: ignore[arg-type]
        reply_tokens=[9], reply_segments=[4], reply_logps=[-0.1], reply_entropies=[1e-300],  # type: ignore[arg-type]
        finish=FinishReason.LENGTH, actions=["Up √"], reward=reward, reward_parts={"step": -0.1},
    )  # fmt: skip
    opening = [{"role": "user", "content": "P _\u2028"}]
    episode = Episode(0, 3, 0, 0, "sokoban", 17, opening=opening, turns=[turn], end=EndReason.TURN_LIMIT)
    return Played([episode], row={"engine/x": 0.1}, used={"calls": 2.0})


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    plays = KeptPlays(tmp_path / "new" / "folder")
    assert plays.get(KEY) is None
    plays.put(KEY, played())
    found = plays.get(KEY)
    assert found == played() and found is not None
    assert (
        found.episodes[0].turns[0].prefix_segments.dtype
        == played().episodes[0].turns[0].prefix_segments.dtype
    )
    assert plays.get("l" * 64) is None


@pytest.mark.parametrize(
    "content",
    [b"", b"no gzip", gzip.compress(b"{"), gzip.compress(b"[]"), gzip.compress(b'{"episodes": [{}]}'),
     gzip.compress(json.dumps({"episodes": [], "row": {}, "used": {}}).encode()), "torn", "flipped"],
    ids=["empty", "no gzip", "no json", "a list", "no episode", "no sum", "torn", "flipped"],
)  # fmt: skip
def test_what_is_damaged_says_so_and_is_written_anew(content: bytes | str, tmp_path: Path) -> None:
    plays = KeptPlays(tmp_path)
    plays.put(KEY, played())
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    if content == "torn":
        content = whole[: len(whole) // 2]
    elif content == "flipped":
        content = whole[:40] + bytes([whole[40] ^ 1]) + whole[41:]
    path.write_bytes(content)  # type: ignore[arg-type]
    with pytest.raises(DamagedEntry, match=path.name):
        plays.get(KEY)
    plays.put(KEY, played())
    assert plays.get(KEY) == played()


def test_a_folder_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        KeptPlays(tmp_path / "file").put(KEY, played())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        KeptPlays(tmp_path / "full").put(KEY, played())
    assert not [*(tmp_path / "full").iterdir()]


def test_what_was_read_longest_ago_goes_first(tmp_path: Path) -> None:
    KeptPlays(tmp_path).put("a", played())
    size = next(tmp_path.iterdir()).stat().st_size
    plays = KeptPlays(tmp_path, most_bytes=3 * size + size // 2)
    for number, key in enumerate("bcd"):
        os.utime(tmp_path / f"{'abc'[number]}.json.gz", (number, number))
        if key == "d":
            assert plays.get("a") is not None  # read just now, so b is the oldest
        plays.put(key, played())
    assert {path.name[0] for path in tmp_path.iterdir()} == {"a", "c", "d"}
    (tmp_path / "left.tmp").write_bytes(b"x" * size)  # of a write that was killed
    os.utime(tmp_path / "left.tmp", (0, 0))
    plays.put("a", played())
    assert {path.name[0] for path in tmp_path.iterdir()} == {"a", "c", "d"}


def test_several_write_and_read_the_same_entry(tmp_path: Path) -> None:
    plays, wrong = KeptPlays(tmp_path), []

    def work() -> None:
        for _ in range(20):
            plays.put(KEY, played())
            if plays.get(KEY) != played():
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len([*tmp_path.iterdir()]) == 1
