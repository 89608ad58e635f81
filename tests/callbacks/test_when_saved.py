"""When the last and the best checkpoint are saved, and what a kill leaves behind is cleaned."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer

from lit_agentrl.callbacks.checkpoints import BestCheckpoint, LastCheckpoint
from lit_agentrl.callbacks.iteration_log import IterationLog
from lit_agentrl.strategies.checkpoint_io import AtomicIO, CheckpointError


def test_leftovers_of_a_killed_write_are_removed_at_start(
    tmp_path: Path, launch: Callable[..., Trainer]
) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    names = {"last.ckpt.tmp", "best.ckpt.tmp", "last.ckpt.lnk", "notes.tmp"}
    for name in names:
        (folder / name).write_text("half")
    launch(tmp_path, 1, callbacks=[IterationLog(), LastCheckpoint(folder)], loggers=False)
    assert set(os.listdir(folder)) == {"notes.tmp", "last.ckpt"}


def best_of(
    launch: Callable[..., Trainer], folder: Path, module: Any, epochs: int, **options: Any
) -> BestCheckpoint:
    best = BestCheckpoint(folder / "checkpoints", **options)
    callbacks = [IterationLog(), best, LastCheckpoint(folder / "checkpoints")]
    launch(folder, epochs, module=module, loggers=False, callbacks=callbacks)
    return best


@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_best_is_saved_and_the_later_of_a_tie_but_no_nan(
    tmp_path: Path, launch: Callable[..., Trainer], toy_module: Any, mode: str
) -> None:
    scores = {2: math.nan, 4: 0.1, 6: 0.5, 8: 0.5 if mode == "max" else 0.1, 10: math.nan}
    best = best_of(launch, tmp_path, toy_module(scores), 2, mode=mode)
    assert best.best_score is None and not best.path.exists()
    best = best_of(launch, tmp_path, toy_module(scores), 10, mode=mode)
    assert (best.best_score, best.best_iteration) == (scores[8], 8)
    assert torch.load(best.path)["epoch"] == 7


def test_the_best_survives_a_resume_in_a_moved_folder(
    tmp_path: Path, launch: Callable[..., Trainer], toy_module: Any
) -> None:
    scores = {2: 0.9, 4: 0.3}
    best_of(launch, tmp_path / "old", toy_module(scores), 2)
    (tmp_path / "old").rename(tmp_path / "new")
    best = best_of(launch, tmp_path / "new", toy_module(scores), 4)
    assert (best.best_score, best.best_iteration) == (0.9, 2)
    assert torch.load(tmp_path / "new" / "checkpoints" / "best.ckpt")["epoch"] == 1


def test_a_score_from_before_training_is_not_the_first_iterations(
    tmp_path: Path, launch: Callable[..., Trainer], toy_module: Any, batches: Any
) -> None:
    class Logged(toy_module):
        def on_validation_epoch_end(self) -> None:
            self.log("val/success", 0.75, logger=False, batch_size=1)

    module, best = Logged(), BestCheckpoint(tmp_path / "checkpoints")
    trainer = Trainer(
        max_epochs=2, accelerator="cpu", logger=False, callbacks=[best], check_val_every_n_epoch=2,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0, plugins=[AtomicIO()],
    )  # fmt: skip
    trainer.validate(module, batches(), verbose=False)
    trainer.fit(module, batches(), batches())
    assert (best.best_score, best.best_iteration) == (0.75, 2)


@pytest.mark.parametrize("epochs", [1, 3])  # every second one is validated
def test_the_last_iteration_counts_however_short_the_run(
    tmp_path: Path, launch: Callable[..., Trainer], toy_module: Any, epochs: int
) -> None:
    best = best_of(launch, tmp_path, toy_module({2: 0.1, epochs: 0.7}), epochs)
    assert (best.best_score, best.best_iteration) == (0.7, epochs) and best.path.exists()


def test_a_misspelt_monitor_is_named(tmp_path: Path, launch: Callable[..., Trainer], toy_module: Any) -> None:
    with pytest.raises(ValueError, match=r"BestCheckpoint\.monitor=val/succes was not.*valid: val/success"):
        best_of(launch, tmp_path, toy_module(), 2, monitor="val/succes")


def test_the_export_is_replaced_whole_or_kept(
    tmp_path: Path, launch: Callable[..., Trainer], toy_module: Any
) -> None:
    class Exporting(toy_module):
        policy = SimpleNamespace(network=object(), tokenizer=None)
        version = 0

        def export(self, folder: str, network: Any) -> None:
            if self.trainer.current_epoch == 5:
                raise OSError(28, "No space left on device")
            Path(folder, f"model-{self.trainer.current_epoch}").write_text("weights")

    module = Exporting({2: 0.1, 4: 0.2, 6: 0.3})
    with pytest.raises(
        CheckpointError, match=r"cannot write .*hf: No space left on device; its earlier contents are"
    ):
        best_of(launch, tmp_path, module, 6)
    assert os.listdir(tmp_path / "hf") == ["model-3"] and not (tmp_path / "hf.tmp").exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LastCheckpoint("x", every=0), r"^every=0 must be"),
        (lambda: LastCheckpoint("x", keep=3), r"^keep=3 must be"),
        (lambda: BestCheckpoint("x", keep=0), r"^keep=0 must be"),
        (lambda: BestCheckpoint("x", mode="most"), r"^mode=most must be"),
    ],
)
def test_wrong_options_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_an_export_that_a_kill_left_half_done_is_undone_at_start(
    tmp_path: Path, launch: Callable[..., Trainer], toy_module: Any
) -> None:
    for name in ("hf.old", "hf.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    best_of(launch, tmp_path, toy_module(), 1)
    assert os.listdir(tmp_path / "hf") == ["hf.old"] and not (tmp_path / "hf.tmp").exists()
