"""Checkpoint files under full disks, kills and flipped bits."""

from __future__ import annotations

import json
import os
import pickle
import random
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lit_agentrl.episode import EndReason
from lit_agentrl.files import has_checkpoint
from lit_agentrl.strategies import sharded_io
from lit_agentrl.strategies.checkpoint_io import AtomicIO, CheckpointError, SaveOptions

# every call of the operating system through which a save touches the disk
CALLS = ("makedirs", "open", "fsync", "close", "link", "unlink", "replace", "stat")


class Killed(BaseException):
    """The process is gone: nothing after this runs."""


class Unsavable:
    def __reduce__(self) -> Any:
        raise RuntimeError("no storage")


def state(i: int) -> dict[str, Any]:
    return {"i": i, "weights": torch.full((64,), float(i))}


def load(path: Path) -> int:
    loaded = AtomicIO().load_checkpoint(path)
    assert torch.equal(loaded["weights"], torch.full((64,), float(loaded["i"])))
    return int(loaded["i"])


@contextmanager
def dying(patch: pytest.MonkeyPatch, at: int, error: BaseException, forever: bool) -> Iterator[list[str]]:
    """From the ``at``-th call of ``os`` on (or only there) raise instead; yields the calls made."""
    calls: list[str] = []

    def wrap(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            if len(calls) == at or (forever and len(calls) > at):
                raise error
            return real(*args, **kwargs)

        return call

    with patch.context() as inner:
        for name in CALLS:
            inner.setattr(os, name, wrap(name, getattr(os, name)))
        yield calls


def test_a_checkpoint_round_trips_and_keeps_its_predecessor(tmp_path: Path) -> None:
    io, path = AtomicIO(), tmp_path / "deep" / "last.ckpt"
    for i in range(3):
        io.save_checkpoint(state(i), path)
    assert load(path) == 2 and load(path.with_name("last.ckpt.prev")) == 1
    assert sorted(os.listdir(path.parent)) == ["last.ckpt", "last.ckpt.prev"]


def test_a_file_system_without_links_keeps_predecessors_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> None:
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    test_a_checkpoint_round_trips_and_keeps_its_predecessor(tmp_path)


def test_keep_one_has_no_predecessor(tmp_path: Path) -> None:
    io, path = AtomicIO(), tmp_path / "last.ckpt"
    for i, keep in enumerate((2, 2, 1)):
        io.save_checkpoint(state(i), path, storage_options={"keep": keep})
    assert load(path) == 2 and os.listdir(tmp_path) == ["last.ckpt"]


@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("kind", ["killed", "full"])
@pytest.mark.parametrize("before", [1, 2])  # without and with a predecessor
@pytest.mark.parametrize("wait", [True, False])  # or the thread writes
def test_a_fault_at_any_call_leaves_an_intact_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: bool, before: int, kind: str, keep: int
) -> None:
    """Killed: every later call fails too.  Full: that call alone fails, and the error is one clear line."""
    error: BaseException = Killed() if kind == "killed" else OSError(28, "No space left on device")
    options: SaveOptions = {"keep": keep, "wait": wait}
    for at in range(1, 100):
        path = tmp_path / str(at) / "last.ckpt"
        io = AtomicIO()
        for i in range(before):
            io.save_checkpoint(state(i), path, options)
        io.writer.join()
        try:
            with dying(monkeypatch, at, error, kind == "killed") as calls:
                io.save_checkpoint(state(before), path, options)
                io.writer.join()
        except Killed:
            assert kind == "killed"
        except CheckpointError as raised:
            assert kind == "full" and str(path) in str(raised) and "\n" not in str(raised)
        if len(calls) < at:
            break
        assert load(path) in (before - 1, before)
        # the next launch writes over whatever was left behind
        AtomicIO().save_checkpoint(state(9), path, options)
        assert load(path) == 9
        assert set(os.listdir(path.parent)) <= {"last.ckpt", "last.ckpt.prev"}
    assert at > 5 and {"fsync", "replace"} <= set(calls)
    assert ("link" in calls) == (keep == 2)


@pytest.mark.parametrize("wait", [True, False])
def test_a_kill_while_bytes_are_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: bool
) -> None:
    io, path = AtomicIO(), tmp_path / "last.ckpt"
    io.save_checkpoint(state(0), path)

    def half(checkpoint: Any, file: Any) -> None:
        file.write(b"PK\x03\x04 half a checkpoint")
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", half)
        with pytest.raises(Killed):
            io.save_checkpoint(state(1), path, {"wait": wait})
            io.writer.join()
    assert load(path) == 0 and (tmp_path / "last.ckpt.tmp").exists()


class FullAt:
    """A file whose disk is full from the ``at``-th write on."""

    def __init__(self, file: Any, at: int) -> None:
        self.file, self.left = file, at

    def __enter__(self) -> FullAt:
        return self

    def __exit__(self, *_: Any) -> None:
        self.file.close()

    def write(self, content: bytes) -> int:
        self.left -= 1
        if self.left <= 0:
            raise OSError(28, "No space left on device")
        return int(self.file.write(content))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


@pytest.mark.parametrize("at", [1, 2, 20, 35, None])  # torch hides some of these behind errors of its own
def test_a_full_disk_is_one_line_and_frees_what_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int | None
) -> None:
    path = tmp_path / "last.ckpt"
    AtomicIO().save_checkpoint(state(0), path)
    real = open

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if at is None:
            patch.setattr(os, "fsync", full)
        else:
            patch.setattr("builtins.open", lambda *args: FullAt(real(*args), at))
        with pytest.raises(CheckpointError, match=r"cannot write .*last\.ckpt: No space left on device;"):
            AtomicIO().save_checkpoint(state(1), path)
    assert load(path) == 0 and os.listdir(tmp_path) == ["last.ckpt"]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"last\.ckpt: File exists"):
        AtomicIO().save_checkpoint(state(0), tmp_path / "file" / "last.ckpt")


def test_errors_that_are_not_the_disks_keep_their_name(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no storage") as raised:
        AtomicIO().save_checkpoint({"bad": Unsavable()}, tmp_path / "last.ckpt")
    assert not isinstance(raised.value, CheckpointError)


def test_a_flipped_bit_falls_back_and_says_so(tmp_path: Path, flip: Callable[[Path], None]) -> None:
    path = tmp_path / "last.ckpt"
    for i in range(2):
        AtomicIO().save_checkpoint(state(i), path)
    flip(path)
    assert torch.load(path)["i"] == 1  # torch itself does not notice
    with pytest.warns(UserWarning, match=r"last\.ckpt is damaged; using its predecessor .*last\.ckpt\.prev"):
        assert load(path) == 0


def test_a_damaged_checkpoint_does_not_push_out_its_good_predecessor(
    tmp_path: Path, flip: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last.ckpt"
    for i in range(2):
        AtomicIO().save_checkpoint(state(i), path)
    flip(path)
    real = os.replace

    def killed_before_the_last_step(source: str, target: str) -> None:
        if source.endswith(".tmp"):
            raise Killed
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed_before_the_last_step)
        with pytest.raises(Killed):
            AtomicIO().save_checkpoint(state(2), path)
    with pytest.warns(UserWarning, match="damaged"):
        assert load(path) == 0


def test_damage_anywhere_is_noticed_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    AtomicIO().save_checkpoint(state(1), path)
    whole = path.read_bytes()
    draw = random.Random(0)
    noticed = 0
    for _ in range(400):
        content = bytearray(whole)
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(content if draw.random() < 0.8 else content[: draw.randrange(len(content))])
        try:
            assert load(path) == 1
        except CheckpointError:
            noticed += 1
    assert noticed > 100


def test_no_intact_checkpoint_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        AtomicIO().load_checkpoint(path)
    path.write_bytes(b"")
    with pytest.raises(
        CheckpointError, match=r"^checkpoint .* is damaged and it has no intact predecessor; copy it"
    ):
        AtomicIO().load_checkpoint(path)


def test_only_the_predecessor_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    assert not has_checkpoint(path)
    AtomicIO().save_checkpoint(state(4), tmp_path / "last.ckpt.prev")
    assert has_checkpoint(path)
    with pytest.warns(UserWarning, match="damaged"):
        assert load(path) == 4


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "owned"),)

    torch.save({"evil": Evil()}, tmp_path / "last.ckpt")
    with pytest.raises(
        CheckpointError, match=r"last\.ckpt was not loaded: .* dicts \(posix\.mkdir\), which could"
    ) as raised:
        AtomicIO().load_checkpoint(tmp_path / "last.ckpt")
    assert "weights_only" not in str(raised.value) and "\n" not in str(raised.value)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("held", "told"),
    [
        (
            {"callbacks": {"Mine": {"last": [1, deque([2])]}}},
            r"callbacks\.Mine\.last\.1 is a collections\.deque, but",
        ),
        ({"rewards": {"own": {"rule": lambda: 1}}}, r"rewards\.own\.rule is a builtins\.function, but"),
        ({"rewards": {"own": threading.Lock()}}, r"rewards\.own is a _thread\.lock, but"),
        ({"a": {EndReason.SUCCESS: 1}}, r"a\.key is a lit_agentrl\.episode\.EndReason, but"),
        ({"a": np.random.default_rng(0)}, r"a is a numpy\.random\._generator\.Generator, but"),
    ],
)
def test_what_no_resume_would_read_is_refused_by_the_first_save(
    held: dict[str, Any], told: str, tmp_path: Path
) -> None:
    """With the place where it stands, in a file and in a folder; what was there stays."""
    path = tmp_path / "last.ckpt"
    AtomicIO().save_checkpoint(state(1), path)
    with pytest.raises(CheckpointError, match=rf"^cannot write .*last\.ckpt: {told} .* are intact$"):
        AtomicIO().save_checkpoint({**state(2), **held}, path)
    assert load(path) == 1 and os.listdir(tmp_path) == ["last.ckpt"]
    with pytest.raises(CheckpointError, match=told):
        AtomicIO().save_sharded({**state(2), **held}, tmp_path / "folder.ckpt")
    assert os.listdir(tmp_path) == ["last.ckpt"]


def test_plain_data_of_every_kind_is_saved(tmp_path: Path) -> None:
    held = {
        "a": {("b", 1): {1, 2}}, "c": OrderedDict(d=None), "e": torch.float32, "f": torch.Size([2]), "g": 1j, "h": b"i",
        "j": torch.nn.Parameter(torch.zeros(2)), "k": bytearray(b"l"),
    }  # fmt: skip
    AtomicIO().save_checkpoint(held, tmp_path / "last.ckpt")
    assert AtomicIO().load_checkpoint(tmp_path / "last.ckpt").keys() == held.keys()


def test_code_in_a_folder_of_shares_is_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "owned"),)

    folder = tmp_path / "last.ckpt"
    sharded_io.save(state(1), folder)
    assert load(folder) == 1
    (folder / ".metadata").write_bytes(pickle.dumps(Evil()))
    sums = {
        path.name: sharded_io.compute_checksum(path)
        for path in folder.iterdir()
        if path.name != sharded_io.SUMS
    }
    (folder / sharded_io.SUMS).write_text(json.dumps(sums))
    with pytest.raises(CheckpointError, match=r"last\.ckpt was not loaded: .*\(posix\.mkdir\)"):
        AtomicIO().load_checkpoint(folder)
    assert not (tmp_path / "owned").exists()
