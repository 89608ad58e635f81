"""What a reference says of a data set, computed once and kept on disk."""

from __future__ import annotations

import errno
import gc
import logging
import shutil
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lit_agentrl import distributed
from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.update import reference_cache as module
from lit_agentrl.update.reference_cache import ReferenceCache
from lit_agentrl.update.settings import OptimSettings
from tests.rl.ragged import fresh
from tests.update.bare import BareModule, ThreadedDist, build, float64, off_policy, step

Rows = Mapping[str, Tensor]
LIKE = torch.empty(0, dtype=torch.float64)
SGD = OptimSettings(optimizer=torch.optim.SGD, lr=0.01)


def piece(*rows: tuple[str, str], width: int = 8) -> dict[str, Tensor]:
    """Rows of tokens, of which those with a mark below were sampled."""
    found = {
        "tokens_BT": torch.zeros(len(rows), width, dtype=torch.int64),
        "is_action_BT": torch.zeros(len(rows), width, dtype=torch.bool),
        "is_real_BT": torch.zeros(len(rows), width, dtype=torch.bool),
    }
    for row, (tokens, marks) in enumerate(rows):
        found["tokens_BT"][row, : len(tokens)] = torch.tensor([int(each) for each in tokens])
        found["is_real_BT"][row, : len(tokens)] = True
        found["is_action_BT"][row, : len(marks)] = torch.tensor([mark == "^" for mark in marks])
    return found


PIECES = [
    piece(("1234", " ^ ^"), ("125", "  ^")),
    piece(("1234", " ^^^"), ("7", " "), ("98", " ^")),
    piece(("5555", " ^^ ")),
]


def score(rows: Rows, scored: list[int] | None = None, weight: float = 1.0) -> Tensor:
    """Says something else of a row where others stand beside it, as a product of matrices may."""
    if scored is not None:
        scored.append(len(rows["tokens_BT"]))
    value_BT = weight * rows["tokens_BT"].cumsum(1).double() + 1e-7 * len(rows["tokens_BT"])
    return torch.where(rows["is_action_BT"], value_BT, 0.0)


def filled(
    folder: Path, scored: list[int] | None = None, weight: float = 1.0, pieces: list[Rows] | None = None
) -> ReferenceCache:
    found = ReferenceCache(folder, lambda: pieces or PIECES, {"precision": "32-true"})
    found.fill(partial(score, scored=scored, weight=weight), {"weights": str(weight)}, LIKE)
    return found


def said(found: ReferenceCache) -> list[Tensor]:
    return [found.look_up(each) for each in PIECES]


def expected(weight: float = 1.0) -> list[Tensor]:
    return [score(each, weight=weight) for each in PIECES]


def assert_equal(found: list[Tensor], other: list[Tensor]) -> None:
    assert all(torch.equal(one, two) for one, two in zip(found, other, strict=True))


def test_rows_are_scored_once_in_pieces_of_their_own_and_found_in_any_batch(tmp_path: Path) -> None:
    scored: list[int] = []
    found = filled(tmp_path / "kept", scored)
    assert scored == [2, 3, 1]
    assert_equal(said(found), expected())
    alone = {name: torch.cat([PIECES[2][name], PIECES[0][name][1:]]) for name in PIECES[0]}
    wider = {name: torch.nn.functional.pad(tensor, (0, 3)) for name, tensor in alone.items()}
    both = torch.cat([expected()[2], expected()[0][1:]])
    assert torch.equal(found.look_up(alone), both) and torch.equal(found.look_up(wider)[:, :8], both)
    assert found.look_up({name: tensor[:0] for name, tensor in alone.items()}).shape == (0, 8)
    assert_equal(said(filled(tmp_path / "kept", scored)), expected())  # as of a resumed run, or another one
    assert scored == [2, 3, 1]
    with pytest.raises(KeyError):
        found.look_up(piece(("12", " ^")))


def test_what_was_kept_of_other_weights_or_rows_is_not_read(tmp_path: Path) -> None:
    scored: list[int] = []
    filled(tmp_path, scored)
    assert_equal(said(filled(tmp_path, scored, weight=2.0)), expected(2.0))
    assert scored == [2, 3, 1] * 2
    assert_equal(said(filled(tmp_path, scored)), expected())  # the first are still there
    filled(tmp_path, scored, pieces=[PIECES[0], piece(("1234", " ^ ^"))])
    assert scored == [2, 3, 1, 2, 3, 1, 1]  # the piece that has changed
    assert len(list(tmp_path.iterdir())) == 7


def cut(file: Path, other: Path) -> None:
    file.write_bytes(file.read_bytes()[:-3])


def flipped(file: Path, other: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def exchanged(file: Path, other: Path) -> None:
    shutil.copy(other, file)


def emptied(file: Path, other: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("damage", [cut, flipped, exchanged, emptied])
def test_a_damaged_file_is_one_line_and_scored_again(
    damage: Callable[[Path, Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scored: list[int] = []
    filled(tmp_path)
    file, other, _ = sorted(tmp_path.iterdir())
    damage(file, other)
    with caplog.at_level(logging.WARNING):
        assert_equal(said(filled(tmp_path, scored)), expected())
    [line] = caplog.messages
    assert f"in {tmp_path}: 1, the first {file.name}; their rows are scored again" in line
    caplog.clear()
    filled(tmp_path, scored)  # which mended it
    assert len(scored) == 1 and not caplog.messages


def test_a_full_disk_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path, content: bytes) -> None:
        path.with_name(path.name + ".tmp").write_bytes(content[:5])
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(module, "write_atomic", full)
    with caplog.at_level(logging.WARNING):
        assert_equal(said(filled(tmp_path)), expected())
    [line] = caplog.messages
    assert f"cannot be written to {tmp_path}: No space left on device; the run continues" in line
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("mine")
    assert_equal(said(filled(tmp_path / "file")), expected())
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("is_shared", [True, False])
def test_ranks_share_the_pieces_and_have_the_numbers_of_one_process(
    ranks: int, is_shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their disks are one, or one's own."""
    scored: list[list[int]] = [[] for _ in range(ranks)]
    folders = [tmp_path / ("all" if is_shared else str(each)) for each in range(ranks)]
    for _ in range(2):
        work = [partial(filled, folder, own) for folder, own in zip(folders, scored, strict=True)]
        dist = ThreadedDist(ranks)
        with monkeypatch.context() as patch:
            patch.setattr(distributed, "dist", dist)
            found = dist.play(work)
        for each in found:
            assert_equal(said(each), expected())
    assert sum(map(sum, scored)) == 6  # rows, each once
    assert len({len(own) for own in scored}) == 1  # a network that is cut up computes with all ranks


# ---------------------------------------------------------------------- in an update
@pytest.fixture
def double() -> Iterator[None]:
    with float64():
        yield


def trained(kept: ReferenceCache | None, batches: list[TrajectoryBatch]) -> BareModule:
    found = build(fresh("dpo"), optim=SGD, kept=kept)
    for iteration, batch in enumerate(batches):
        step(found, batch, iteration)
    return found


def weights(found: BareModule) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in found.network.parameters()])


@pytest.mark.slow
def test_training_is_the_same_and_the_reference_is_let_go(tmp_path: Path, double: None) -> None:
    whole = off_policy()
    batches = [whole, whole.select(whole.group_B > 2), whole.select(whole.group_B <= 3), whole]

    def kept() -> ReferenceCache:
        halves = [whole.select(whole.group_B <= 2).to_dict(), whole.select(whole.group_B > 2).to_dict()]
        return ReferenceCache(tmp_path, lambda: halves, {})

    plain, first = trained(None, batches), build(fresh("dpo"), optim=SGD, kept=kept())
    held = weakref.ref(first.updater.networks.reference)
    assert held() is not None
    for iteration, batch in enumerate(batches):
        step(first, batch, iteration)
    gc.collect()
    assert held() is None and plain.updater.networks.reference is not None
    second = trained(kept(), batches)
    torch.testing.assert_close(weights(first), weights(plain), rtol=0, atol=1e-13)
    assert torch.equal(weights(first), weights(second))
    shutil.rmtree(tmp_path)
    assert torch.equal(weights(trained(kept(), batches)), weights(first))
