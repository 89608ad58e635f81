"""Folders of rows: whole after any kill, damage is one line, and rows of one instance are held out together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lit_agentrl.data.episodes import EpisodeFolder
from lit_agentrl.data.kinds import assign_split
from lit_agentrl.data.reading import read
from lit_agentrl.data.row_folder import RowFolder, open_labels, open_rows
from lit_agentrl.data.unpaired import Unpaired
from lit_agentrl.episode import Episode
from lit_agentrl.offline.criticising import build_row
from tests.data.test_reading import file, reply, student
from tests.rewards.conftest import episode, turn

ROWS, PART = "critiques.jsonl", "critiques.jsonl.part"


def played(seed: int, success: bool = False) -> Episode:
    one = episode([turn(text="# P")], success=success)
    one.instance_seed = seed
    return one


def rows(*numbers: int) -> list[dict[str, Any]]:
    return [
        build_row(f"how {number}\u2028?", "well\n\ud800", played(number, number % 2 == 0))
        for number in numbers
    ]


def begun(folder: Path) -> RowFolder:
    folder.mkdir()
    made = RowFolder(folder, {"of": "x"}, planned=2)
    made.write_manifest()
    return made.add(rows(0, 1), good=1)


def reopened(folder: Path) -> RowFolder:
    found = open_rows(folder, "critiques")
    assert found is not None
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_is_whole_after_any_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_rows(tmp_path / "none", "critiques") is None
    once = begun(tmp_path / "once")
    assert not once.is_complete and not once.rows.exists()
    once = once.add(rows(2), good=1)
    expected = contents(once.path)
    assert once.is_complete and set(expected) == {ROWS, "manifest.json"}
    lines = expected[ROWS].splitlines()
    assert [json.loads(line) for line in lines] == rows(0, 1, 2) and len(lines) == 3
    assert [(piece.rows, piece.good) for piece in once.shards] == [(2, 1), (1, 1)]
    # killed within the second piece, before and after the manifest says that it is there
    for number, name in enumerate(("write_manifest", "settle")):
        again = begun(tmp_path / f"killed{number}")
        with monkeypatch.context() as patched:
            patched.setattr(RowFolder, name, lambda _: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                again.add(rows(2), good=1)
        found = reopened(again.path)
        assert len(found.shards) == 1 + number and not found.is_complete and (again.path / PART).exists()
        found.settle()
        found = reopened(again.path)
        if not number:
            found = found.add(rows(2), good=1)
        assert found.is_complete and contents(again.path) == expected
    # a torn line
    torn = begun(tmp_path / "torn")
    with open(torn.path / PART, "ab") as opened:
        opened.write(b'{"prompt": [{"role": "us')
    torn.settle()
    torn.add(rows(2), good=1)
    assert contents(torn.path) == expected
    assert open_labels(torn.path) == reopened(torn.path)


def test_what_is_damaged_or_of_something_else_is_one_line(tmp_path: Path) -> None:
    other = tmp_path / "episodes"
    other.mkdir()
    EpisodeFolder(other, {}, planned=1).write_manifest()
    assert open_labels(other) == EpisodeFolder(other, {}, planned=1)
    made = begun(tmp_path / "made")
    manifest = json.loads((made.path / "manifest.json").read_text())
    for wrong, said in (
        ({"version": 9}, "its version is 9"), ({"pieces": 3}, "TypeError"), ({"planned": "x"}, "ValueError"),
        ({"pieces": [{"rows": -1, "good": 0, "size": 1, "sha256": ""}]}, "negative number"),
        ({"described": 1}, "TypeError"),
    ):  # fmt: skip
        (made.path / "manifest.json").write_text(json.dumps({**manifest, **wrong}))
        with pytest.raises(ValueError, match=rf"manifest.json is damaged \(.*{said}") as raised:
            open_rows(made.path, "critiques")
        assert "\n" not in str(raised.value)
    with pytest.raises(ValueError, match="episodes is not a folder of critiques; name another"):
        open_rows(other, "critiques")
    RowFolder(made.path.with_name("revised"), {}, kind="revisions").add([], good=0)
    with pytest.raises(ValueError, match="made is not a folder of revisions"):
        open_rows(made.path, "revisions")
    (made.path / PART).write_bytes(b"x" + (made.path / PART).read_bytes()[1:])
    with pytest.raises(ValueError, match=r"critiques\.jsonl\.part is damaged: its checksums"):
        made.settle()
    with pytest.raises(
        ValueError, match=r"path=.* is a folder of critiques; name its file, .*made/critiques.jsonl"
    ):
        read(Unpaired(path=str(made.path), batch=1), student(), seed=0)
    (made.path / PART).unlink()
    with pytest.raises(ValueError, match=r"critiques\.jsonl\.part cannot be read: No such file"):
        made.settle()


def test_rows_of_an_instance_are_held_out_together(tmp_path: Path) -> None:
    made = [
        build_row(f"# {seed} {number}", reply("Up"), played(seed, number == 0))
        for seed in range(12)
        for number in range(3)
    ]
    kind = Unpaired(path=file(tmp_path, made), batch=1, held_out=0.5)
    found = read(kind, student(), seed=0)
    sides = [assign_split(f"game|{seed}", 0.5) for seed in range(12)]
    assert {"train", "val", "test"} == set(sides)
    assert len(found.groups) == 3 * sides.count("train") and all(len(group) == 1 for group in found.groups)
    for side in ("val", "test"):
        groups = found.held_out[side]
        assert len(groups) == sides.count(side)
        assert all([each.training_return for each in group] == [1.0, 0.0, 0.0] for group in groups)
    # a policy is measured on groups like those of training, and all of them validate
    found = read(kind, student(), seed=0, compares_held_out=False)
    assert len(found.groups) == 3 * sides.count("train") and set(found.held_out) == {"val"}
    assert [len(group) for group in found.held_out["val"]] == [1] * 3 * (12 - sides.count("train"))
    # without the column each question is a prompt of its own, and none has two answers
    alone = [{name: value for name, value in row.items() if name != "held_out_with"} for row in made]
    found = read(Unpaired(path=file(tmp_path, alone), batch=1, held_out=0.5), student(), seed=0)
    assert all(len(group) == 1 for group in found.held_out["val"])
    for bad in (3, " ", ["x"], "\ud800"):
        wrong = Unpaired(path=file(tmp_path, [{**made[0], "held_out_with": bad}]), batch=1)
        with pytest.raises(ValueError, match="column held_out_with must be a text"):
            read(wrong, student(), seed=0)
