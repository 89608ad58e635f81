"""Saves while training goes on: how often, what they cost, and how their errors surface."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer

from lit_agentrl.callbacks.checkpoints import BestCheckpoint, FinalExport, LastCheckpoint
from lit_agentrl.callbacks.iteration_log import IterationLog
from lit_agentrl.callbacks.save_period import SavePeriod
from lit_agentrl.strategies import checkpoint_io
from lit_agentrl.strategies.checkpoint_io import AtomicIO, CheckpointError


def choose(save_s: float, iteration_s: float, core_s: float = 0.0) -> SavePeriod:
    """Return the period after two saves, the first of which waited for the disk."""
    period, began = SavePeriod(), 0.0  # differences of a running clock would be rounded otherwise each time
    period.note_save(began, began + 100.0, 1, 0.0)
    assert period.every == 1
    began += 100.0 + iteration_s
    period.note_save(began, began + save_s, 1, core_s)
    return period


@pytest.mark.parametrize(
    ("save_s", "iteration_s", "every"),
    [(0.004, 0.3, 1), (0.1, 5.8, 1), (0.3, 5.8, 2), (1.0, 2.0, 10), (30.0, 4.4, 137), (0.1, 0.0, 2_000_000_000)],
)  # fmt: skip
def test_the_period_limits_the_share_of_saves(save_s: float, iteration_s: float, every: int) -> None:
    period = choose(save_s, iteration_s)
    assert period.every == every
    if every < 1000:
        assert save_s / (save_s + every * iteration_s) <= 0.05
    assert (period.line is None) == (every == 1)


def test_the_line_names_the_choice_and_why() -> None:
    assert choose(0.5, 2.0, core_s=0.25).line == (
        "checkpoints: the next after 8 iterations, so that they take at most 5% of the time: one takes 0.75 s, an "
        "iteration 2 s (callbacks.last.every=auto)"
    )


def test_the_period_follows_later_costs() -> None:
    period = choose(0.5, 2.0)
    assert period.every == 5
    began = period._resumed_at + 5 * 20.0
    period.note_save(began, began + 0.5, 5, 0.0)
    assert period.every == 1


class Pace(Callback):
    """Lets each iteration last, so that the saves of the toy are cheap beside it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_train_epoch_start(self, *_: Any) -> None:
        time.sleep(self.seconds)


class Saves:
    """Notes which iterations are on disk, and holds or fails the writes of some."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written: list[tuple[str, int]] = []
        self.slow: dict[int, float] = {}
        self.full: set[int] = set()
        save = checkpoint_io.save_plain

        def watched(value: Any, path: str) -> None:
            iteration = value["epoch"] + 1
            time.sleep(self.slow.get(iteration, 0.0))
            if iteration in self.full:
                raise OSError(28, "No space left on device")
            save(value, path)
            self.written.append((Path(path).name.partition(".")[0], iteration))

        monkeypatch.setattr(checkpoint_io, "save_plain", watched)

    @property
    def last(self) -> list[int]:
        return [iteration for name, iteration in self.written if name == "last"]


@pytest.fixture
def saves(monkeypatch: pytest.MonkeyPatch) -> Saves:
    return Saves(monkeypatch)


def train(
    launch: Callable[..., Trainer], folder: Path, epochs: int, *more: Callback, **options: Any
) -> LastCheckpoint:
    last = LastCheckpoint(folder / "checkpoints", **options)
    launch(folder, epochs, loggers=False, callbacks=[IterationLog(), *more, last])
    return last


def test_cheap_saves_follow_every_iteration(
    tmp_path: Path, launch: Callable[..., Trainer], saves: Saves, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lit_agentrl.callbacks.save_period.SHARE", 10.0)
    last = train(launch, tmp_path, 5, Pace(0.1))
    assert saves.last == [1, 2, 3, 4, 5]
    assert last.describe()["every"] == 1 and last.describe()["skipped"] == 0


def test_dear_saves_are_rare_and_the_end_is_saved(
    tmp_path: Path, launch: Callable[..., Trainer], saves: Saves, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("lit_agentrl.callbacks.save_period.SHARE", 1e-6)
    last = train(launch, tmp_path, 6)
    assert saves.last == [1, 2, 6]
    assert last.describe()["every"] > 100
    assert "checkpoints: the next after" in capsys.readouterr().out


def test_a_save_that_is_due_during_a_write_is_left_out_and_counted(
    tmp_path: Path, launch: Callable[..., Trainer], saves: Saves, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lit_agentrl.callbacks.save_period.SHARE", 10.0)
    saves.slow = {2: 0.35}
    last = train(launch, tmp_path, 6, Pace(0.1))
    assert saves.last[:2] == [1, 2] and saves.last[-1] == 6
    assert last.describe()["skipped"] >= 2 and 3 not in saves.last


def test_a_given_period_waits_for_the_write_before(
    tmp_path: Path, launch: Callable[..., Trainer], saves: Saves
) -> None:
    saves.slow = {2: 0.2}
    last = train(launch, tmp_path, 5, every=1)
    assert saves.last == [1, 2, 3, 4, 5] and last.describe()["every"] == 1
    assert last.describe()["held_seconds"] > 0.1


def test_a_full_disk_ends_the_run_in_the_next_iteration_with_one_line(
    tmp_path: Path, launch: Callable[..., Trainer], saves: Saves
) -> None:
    saves.full = {3}
    started: list[int] = []

    class Noted(Callback):
        def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
            started.append(trainer.current_epoch + 1)

    class Settled(Callback):
        def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
            io = trainer.strategy.checkpoint_io
            assert isinstance(io, AtomicIO)
            while io.writer.is_pending(str(last.path)):
                time.sleep(0.01)

    last = LastCheckpoint(tmp_path / "checkpoints", every=1)
    line = r"^cannot write .*last\.ckpt: No space left on device; earlier checkpoints are intact$"
    with pytest.raises(CheckpointError, match=line):
        launch(tmp_path, 6, loggers=False, callbacks=[IterationLog(), Settled(), Noted(), last])
    assert started == [1, 2, 3] and saves.last == [1, 2]
    assert torch.load(last.path)["epoch"] == 1
    assert sorted(os.listdir(last.path.parent)) == ["last.ckpt", "last.ckpt.prev"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_run_that_is_interrupted_finishes_its_write(
    tmp_path: Path, launch: Callable[..., Trainer], saves: Saves, stop_at: Any, error: type[BaseException]
) -> None:
    saves.slow = {2: 0.2}
    with pytest.raises((SystemExit, MemoryError)):
        train(launch, tmp_path, 5, stop_at(3, error()), every=1)
    assert saves.last == [1, 2]
    assert not list((tmp_path / "checkpoints").glob("*.tmp"))


class Held(Callback):
    only_for_resuming = True

    def state_dict(self) -> dict[str, Any]:
        return {"moments": torch.zeros(3)}


class Needed(Callback):
    def state_dict(self) -> dict[str, Any]:
        return {"notes": "x"}


def test_the_best_checkpoint_holds_weights_alone_and_is_written_before_the_last(
    tmp_path: Path, launch: Callable[..., Trainer], saves: Saves, toy_module: Any
) -> None:
    saves.slow = {4: 0.1}
    folder = tmp_path / "checkpoints"
    callbacks = [IterationLog(), Held(), Needed(), BestCheckpoint(folder), LastCheckpoint(folder, every=2)]
    launch(
        tmp_path, 8, module=toy_module({2: 0.1, 4: 0.2, 6: 0.3, 8: 0.1}), loggers=False, callbacks=callbacks
    )
    assert saves.written == [
        ("best", 2), ("last", 2), ("best", 4), ("last", 4), ("best", 6), ("last", 6), ("last", 8)
    ]  # fmt: skip
    best, last = torch.load(folder / "best.ckpt"), torch.load(folder / "last.ckpt")
    assert {"optimizer_states", "lr_schedulers"} & best.keys() == set() and "optimizer_states" in last
    assert {"Held", "Needed"} <= last["callbacks"].keys()
    assert "Needed" in best["callbacks"] and "Held" not in best["callbacks"]


class Exporting:
    """What a module needs so that it is exported, for the toy."""

    policy = SimpleNamespace(network=torch.nn.Linear(1, 1), tokenizer=None)
    version = 0
    exports_network_alone = True
    trainer: Any

    def export(self, folder: str, network: Any) -> None:
        Path(folder, f"model-{self.trainer.current_epoch}").write_text("weights")


@pytest.mark.parametrize(
    ("scores", "found"), [(None, "model-4"), ({}, "model-4"), ({2: 0.5, 4: 0.1}, "model-1")]
)
def test_the_export_exists_at_the_end_of_every_run(
    tmp_path: Path,
    launch: Callable[..., Trainer],
    toy_module: Any,
    scores: dict[int, float] | None,
    found: str,
) -> None:
    class Toy(Exporting, toy_module): ...  # type: ignore[misc]

    # dropped, without a number that compares, and with one
    module = Toy(scores or {2: float("nan"), 4: float("nan")})
    best = [] if scores is None else [BestCheckpoint(tmp_path / "checkpoints")]
    launch(
        tmp_path,
        4,
        module=module,
        loggers=False,
        callbacks=[FinalExport(tmp_path / "hf"), IterationLog(), *best],
    )
    assert os.listdir(tmp_path / "hf") == [found]
