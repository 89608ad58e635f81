"""A run that is stopped, or dies, and continues must leave what the uninterrupted run leaves."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_accumulator import (
    EventAccumulator as PluginEventAccumulator,
)

from lit_agentrl.callbacks.checkpoints import BestCheckpoint, LastCheckpoint
from lit_agentrl.callbacks.iteration_log import IterationLog
from lit_agentrl.callbacks.transcripts import Transcripts

Launch = Callable[..., Trainer]


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    found = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    return {tag: values for tag, values in found.items() if not tag.startswith("time/")}


def texts(folder: Path) -> dict[str, list[tuple[int, bytes]]]:
    # the board itself reads with this accumulator, which also forgets texts; the plain one keeps them
    events = PluginEventAccumulator(str(folder / "tensorboard"), tensor_size_guidance={"text": 0})
    events.Reload()
    tags = [tag for tag in events.Tags()["tensors"] if tag.startswith("transcripts")]
    return {tag: [(e.step, e.tensor_proto.string_val[0]) for e in events.Tensors(tag)] for tag in tags}


def weights(folder: Path, name: str = "last") -> dict[str, Any]:
    return torch.load(folder / "checkpoints" / f"{name}.ckpt", weights_only=True)


def assert_same_run(one: Path, other: Path) -> None:
    assert (one / "metrics.csv").read_text() == (other / "metrics.csv").read_text()
    assert scalars(one) == scalars(other)
    assert texts(one) == texts(other) and len(texts(one)) == 2
    for split in ("train", "val"):
        name = f"transcripts/{split}.jsonl"
        assert (one / name).read_text() == (other / name).read_text()
    for name in ("last", "best"):
        ours, theirs = weights(one, name), weights(other, name)
        assert all(torch.equal(ours["state_dict"][k], v) for k, v in theirs["state_dict"].items())
        assert ours["callbacks"] == theirs["callbacks"] and ours["epoch"] == theirs["epoch"]
    files = [
        {str(p.relative_to(f)) for p in f.rglob("*") if "tensorboard" not in str(p)} for f in (one, other)
    ]
    assert files[0] == files[1]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("straight")


@pytest.fixture
def uninterrupted(straight: Path, launch: Launch) -> Path:
    if not (straight / "metrics.csv").exists():
        launch(straight, 6)
    return straight


def test_rows_and_steps_of_a_straight_run(uninterrupted: Path) -> None:
    rows = list(csv.DictReader((uninterrupted / "metrics.csv").read_text().splitlines()))
    assert [row["iteration"] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    assert [bool(row["val/success"]) for row in rows] == [False, True] * 3  # no stale copies between
    assert [step for step, _ in scalars(uninterrupted)["train/loss"]] == [1, 2, 3, 4, 5, 6]


def test_two_and_four_equal_six(uninterrupted: Path, tmp_path: Path, launch: Launch) -> None:
    launch(tmp_path, 2)
    launch(tmp_path, 6)
    assert_same_run(tmp_path, uninterrupted)


@pytest.mark.parametrize("iteration", [1, 4])
def test_a_run_that_died_after_logging_repeats_the_iteration(
    uninterrupted: Path, tmp_path: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch, iteration: int
) -> None:
    save = Trainer.save_checkpoint

    def dies(trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        if trainer.current_epoch + 1 == iteration:
            raise MemoryError
        save(trainer, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "save_checkpoint", dies)
        with pytest.raises(MemoryError):
            launch(tmp_path, 6)
    assert f"\n{iteration}," in (tmp_path / "metrics.csv").read_text()
    (tmp_path / "metrics.csv").open("a").write(f"{iteration + 1},0.1")
    (tmp_path / "transcripts" / "train.jsonl").open("a").write('{"schema": 1, "iter')
    launch(tmp_path, 6)
    assert_same_run(tmp_path, uninterrupted)


def test_a_damaged_last_checkpoint_costs_one_iteration_and_nothing_else(
    uninterrupted: Path, tmp_path: Path, launch: Launch, flip: Callable[[Path], None]
) -> None:
    launch(tmp_path, 4)
    last = tmp_path / "checkpoints" / "last.ckpt"
    flip(last)
    with pytest.warns(UserWarning, match=r"last\.ckpt is damaged; using its predecessor"):
        launch(tmp_path, 6)
    assert_same_run(tmp_path, uninterrupted)


@pytest.mark.parametrize("stop", [{"max_epochs": 2}, {"max_epochs": 6, "max_steps": 3}])
def test_the_end_of_training_is_saved_whatever_the_period(
    uninterrupted: Path, tmp_path: Path, launch: Launch, stop: dict[str, int]
) -> None:
    def callbacks() -> list[Any]:
        folder = tmp_path / "checkpoints"
        return [
            IterationLog(),
            Transcripts(tmp_path / "transcripts", every=2),
            BestCheckpoint(folder),
            LastCheckpoint(folder, every=4, keep=1),
        ]

    launch(tmp_path, callbacks=callbacks(), **stop)
    assert "state_dict" in weights(tmp_path)
    launch(tmp_path, 6, callbacks=callbacks())
    assert (tmp_path / "metrics.csv").read_text() == (uninterrupted / "metrics.csv").read_text()
    ours, theirs = weights(tmp_path)["state_dict"], weights(uninterrupted)["state_dict"]
    assert all(torch.equal(ours[key], value) for key, value in theirs.items())
    assert not (tmp_path / "checkpoints" / "last.ckpt.prev").exists()


def test_every_saves_only_its_turns(tmp_path: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []
    monkeypatch.setattr(Trainer, "save_checkpoint", lambda t, *a, **k: saved.append(t.current_epoch + 1))
    launch(tmp_path, 5, callbacks=[IterationLog(), LastCheckpoint(tmp_path, every=2)], loggers=False)
    assert saved == [2, 4, 5]


def test_metrics_measured_before_training_stay_out_of_the_first_row(
    tmp_path: Path, launch: Launch, toy_module: Any
) -> None:
    module = toy_module()
    module.row["val/success"] = 0.5
    launch(tmp_path, 1, module=module, callbacks=[IterationLog(), LastCheckpoint(tmp_path)])
    assert "val/success" not in (tmp_path / "metrics.csv").read_text()
    assert set(module.last_row) == {"train/loss", "time/update"} and module.row == {}


def test_a_run_that_stopped_early_does_not_train_on(tmp_path: Path, launch: Launch, toy_module: Any) -> None:
    class Logged(toy_module):
        def on_validation_epoch_end(self) -> None:
            self.log("val/success", 1.0, logger=False, batch_size=1)

    def run() -> Trainer:
        stopper = EarlyStopping("val/success", mode="max", patience=1, check_on_train_epoch_end=False)
        callbacks = [IterationLog(), LastCheckpoint(tmp_path / "checkpoints"), stopper]
        return launch(tmp_path, 8, module=Logged(), callbacks=callbacks)

    assert run().current_epoch == 4
    assert run().current_epoch == 4
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 5


def test_a_module_without_a_row_is_refused(tmp_path: Path, launch: Launch, toy_module: Any) -> None:
    module = toy_module()
    del module.row
    with pytest.raises(ValueError, match="^Toy needs row and last_row, dicts of metrics"):
        launch(tmp_path, 1, module=module)


def test_a_logger_that_cannot_rewind_is_named_on_resume(tmp_path: Path, launch: Launch) -> None:
    from lightning.pytorch.loggers.logger import DummyLogger

    class Foreign(DummyLogger):
        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

    callbacks = [IterationLog(), LastCheckpoint(tmp_path / "checkpoints")]
    launch(tmp_path, 1, callbacks=callbacks, loggers=[Foreign()])
    with pytest.warns(UserWarning, match="Foreign cannot rewind"):
        launch(tmp_path, 2, callbacks=callbacks, loggers=[Foreign()])


def test_transcripts_of_a_run(uninterrupted: Path) -> None:
    lines = [json.loads(x) for x in (uninterrupted / "transcripts/train.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [1] * 4 + [2] * 4 + [4] * 4 + [6] * 4
    assert {line["episode"]["group"] for line in lines if line["iteration"] == 4} == {3}
    lines = [json.loads(x) for x in (uninterrupted / "transcripts/val.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [2, 4, 6]
