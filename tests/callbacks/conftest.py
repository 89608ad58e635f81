"""A toy run: one manual-optimisation batch an epoch, random numbers addressed by iteration, no network."""

from __future__ import annotations

import logging
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from tensorboard.summary.writer import event_file_writer
from torch import nn

from lit_agentrl.batch import StepBatch
from lit_agentrl.callbacks.checkpoints import BestCheckpoint, LastCheckpoint
from lit_agentrl.callbacks.iteration_log import IterationLog
from lit_agentrl.callbacks.transcripts import Transcripts
from lit_agentrl.episode import EndReason, Episode, FinishReason, Segment, Turn
from lit_agentrl.loggers.files import CSVLog, TensorBoardLog
from lit_agentrl.strategies.checkpoint_io import AtomicIO


def episode(group: int = 0, member: int = 0, success: bool = False, **changes: Any) -> Episode:
    """One turn that walks up."""
    turn = Turn(
        observation="P _\n_ O",
        prefix_tokens=[1, 2, 3],
        prefix_segments=[Segment.PROMPT, Segment.PROMPT, Segment.FORCED],
        reply_tokens=[4, 5],
        reply_segments=[Segment.THINK, Segment.ANSWER],
        reply_logps=[-0.1, -1 / 3],
        reply_entropies=[0.5, 0.25],
        reply_text="<think>a wall</think><answer>Up</answer>",
        finish=FinishReason.LENGTH,
        actions=["Up"],
        reward=1.5 if success else -0.1,
    )
    end = EndReason.SUCCESS if success else EndReason.TURN_LIMIT
    fields: dict[str, Any] = {"iteration": 0, "group": group, "member": member, "task": 0, "turns": [turn]}
    fields |= {"task_name": "sokoban", "instance_seed": 7, "instance_id": "abc", "end": end}
    return Episode(**{**fields, "success": success, **changes})


class Batches:
    """One batch an epoch, as the data stream of a run yields them."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[StepBatch]:
        yield StepBatch(iteration=0, seed_P=[0], task_P=[0], group_P=[0])


class Toy(LightningModule):
    """Two weights and dropout; fills ``row`` and the batch's episodes as the real module and rollout do."""

    def __init__(self, scores: dict[int, float] | None = None) -> None:
        super().__init__()
        self.automatic_optimization = False
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        self.row: dict[str, float] = {}
        self.last_row: dict[str, float] = {}
        self.scores = scores or {}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.1)

    def on_train_batch_start(self, batch: StepBatch, batch_idx: int) -> None:
        torch.manual_seed(1000 + self.trainer.current_epoch)

    def training_step(self, batch: StepBatch, batch_idx: int) -> None:
        optimizer = self.optimizers()
        loss = self.net(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        batch.episodes = [
            episode(group=self.trainer.current_epoch, member=m, success=m == 5) for m in range(6)
        ]
        self.row["train/loss"] = loss.item()
        self.row["time/update"] = torch.rand(()).item()
        if self.trainer.current_epoch >= 2:  # a metric that is new in iteration 3
            self.row["train/kl"] = loss.item() / 3

    def validation_step(self, batch: StepBatch, batch_idx: int) -> None:
        batch.episodes = [episode(success=True)]
        batch.outcomes = [each.outcome for each in batch.episodes]

    def on_validation_epoch_end(self) -> None:
        weight = next(self.net.parameters()).sum().item()
        is_start = self.trainer.state.fn == TrainerFn.VALIDATING
        self.row["val/success"] = self.scores.get(0 if is_start else self.trainer.current_epoch + 1, weight)


class Stop(Callback):
    """Raises at the end of an iteration, before it is logged (the callbacks of a run stand behind it)."""

    def __init__(self, iteration: int, error: BaseException) -> None:
        self.iteration, self.error = iteration, error

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch + 1 == self.iteration:
            raise self.error


def fit(folder: Path, max_epochs: int, callbacks: list[Callback] | None = None, **options: Any) -> Trainer:
    """Launch the toy in ``folder``, continuing from its last checkpoint if there is one."""
    module = options.pop("module", None) or Toy()
    loggers = options.pop("loggers", None)
    measures_start = options.pop("measures_start", False)
    last = folder / "checkpoints" / "last.ckpt"
    if callbacks is None:
        callbacks = [IterationLog(), Transcripts(folder / "transcripts", every=2)]
        callbacks += [BestCheckpoint(last.parent), LastCheckpoint(last.parent, every=1)]
    trainer = Trainer(
        max_epochs=max_epochs, accelerator="cpu", callbacks=callbacks, plugins=[AtomicIO()],
        logger=[CSVLog(folder), TensorBoardLog(folder)] if loggers is None else loggers,
        num_sanity_val_steps=0, log_every_n_steps=1, check_val_every_n_epoch=2, default_root_dir=folder,
        enable_model_summary=False, **{"enable_progress_bar": False, **options},
    )  # fmt: skip
    resume = last if last.exists() or Path(f"{last}.prev").exists() else None
    if measures_start and resume is None:
        trainer.validate(module, Batches(), verbose=False)
        module.row = {}
    trainer.fit(module, Batches(), Batches(), ckpt_path=resume)
    return trainer


def flip_bit(path: Path) -> None:
    """Damage one bit of the first tensor in a checkpoint (elsewhere it may hit harmless padding)."""
    with zipfile.ZipFile(path) as archive:
        entry = next(item for item in archive.infolist() if "/data/" in item.filename)
        with archive.open(entry) as data:
            needle = data.read()
    content = bytearray(path.read_bytes())
    content[content.index(needle)] ^= 1
    path.write_bytes(content)


@pytest.fixture(autouse=True)
def _event_files_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of one second are read in the order of their names, and the process counts them: 100 comes before 99."""
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(10**6))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=".*(does not have many workers|LeafSpec|isn't a|litlogger).*"
        )
        yield


@pytest.fixture
def launch() -> Callable[..., Trainer]:
    return fit


@pytest.fixture(scope="session")
def make_episode() -> Callable[..., Episode]:
    return episode


@pytest.fixture
def toy_module() -> type[Toy]:
    return Toy


@pytest.fixture
def stop_at() -> type[Stop]:
    return Stop


@pytest.fixture
def batches() -> type[Batches]:
    return Batches


@pytest.fixture
def flip() -> Callable[[Path], None]:
    return flip_bit
