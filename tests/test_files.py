"""Files that are replaced whole, under kills at every call."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lit_agentrl.files import (
    append_durable,
    read_complete_lines,
    recover_folder,
    replace_folder,
    write_atomic,
)


class Killed(BaseException):
    """The process is gone."""


def killed_at(patch: pytest.MonkeyPatch, at: int) -> list[str]:
    """From the ``at``-th touch of the disk on, every one raises."""
    calls: list[str] = []

    def wrap(name: str) -> None:
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            if len(calls) >= at:
                raise Killed
            return real(*args, **kwargs)

        patch.setattr(os, name, call)

    for name in ("mkdir", "open", "fsync", "replace", "rmdir", "unlink"):
        wrap(name)
    return calls


def test_write_atomic_leaves_the_old_or_the_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    for at in range(1, 20):
        with monkeypatch.context() as patch:
            calls = killed_at(patch, at)
            try:
                write_atomic(path, "new")
            except Killed:
                assert path.read_text() in ("old", "new")
            else:
                break
        path.write_text("old")
    assert path.read_text() == "new" and calls.count("fsync") == 2


def test_write_atomic_that_fails_within_the_text_leaves_the_old(tmp_path: Path) -> None:
    write_atomic(tmp_path / "file", "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(tmp_path / "file", "x" * 100_000 + "\udcff")
    assert (tmp_path / "file").read_text() == "old"


def test_replace_folder_leaves_the_old_or_the_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(text: str) -> Any:
        def write(folder: str) -> None:
            Path(folder, "sub").mkdir()
            Path(folder, "sub", "weights").write_text(text)

        return write

    for at in range(1, 40):
        folder = tmp_path / str(at) / "hf"
        folder.parent.mkdir()
        replace_folder(folder, fill("old"))
        with monkeypatch.context() as patch:
            calls = killed_at(patch, at)
            with suppress(Killed):
                replace_folder(folder, fill("new"))
        recover_folder(folder)
        assert Path(folder, "sub", "weights").read_text() in ("old", "new")
        assert os.listdir(folder.parent) == ["hf"]
        if len(calls) < at:
            break
    assert at > 8 and Path(folder, "sub", "weights").read_text() == "new"


def test_whole_lines_split_off_a_torn_one_inside_a_character(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    assert read_complete_lines(path) == ([], False)
    append_durable(path, "é\n\n")
    assert read_complete_lines(path) == (["é", ""], False)
    with open(path, "ab") as file:
        file.write("x é".encode()[:-1])
    assert read_complete_lines(path) == (["é", ""], True)
    path.write_bytes(b"a\xff\n")  # a flipped bit
    assert read_complete_lines(path) == (["a\ufffd"], False)


def test_errors_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for write in (write_atomic, append_durable):
        with pytest.raises(OSError, match=r"No space left on device: .*notes"):
            write(tmp_path / "notes", "text")


def test_nothing_is_written_or_removed_through_a_link(tmp_path: Path) -> None:
    theirs, folder = tmp_path / "theirs", tmp_path / "there"
    theirs.write_text("theirs")
    (tmp_path / "file.tmp").symlink_to(theirs)
    write_atomic(tmp_path / "file", "mine")
    folder.mkdir()
    (folder / "kept").touch()
    for name in ("hf", "hf.old"):
        (tmp_path / name).symlink_to(folder)
    replace_folder(tmp_path / "hf", lambda path: (Path(path) / "new").touch())
    assert theirs.read_text() == "theirs" and (folder / "kept").exists()
    assert [path.name for path in (tmp_path / "hf").iterdir()] == ["new"] and not (
        tmp_path / "hf"
    ).is_symlink()
    assert not (tmp_path / "hf.old").is_symlink()
