"""Lightning's side of rollouts: when batches are filled, with which network, and what checkpoints keep."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy, Strategy

from lit_agentrl import seeds
from lit_agentrl.batch import StepBatch
from lit_agentrl.distributed import StrategyDoors, rank
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.episode import Outcome
from lit_agentrl.report.iteration import of_all_ranks, stop_if_failing
from lit_agentrl.rollout.ahead import PlayAhead, staleness
from lit_agentrl.rollout.collector import Collector
from lit_agentrl.rollout.scheduler import Wave
from lit_agentrl.rollout.structures.base import members_of
from lit_agentrl.rollout.workers.base import Played, Worker
from lit_agentrl.rollout.workers.inline import Inline
from lit_agentrl.strategies.doors import doors_of

_AHEAD = "played_ahead"  # of a checkpoint
_SHARDED = (DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy)


@dataclass(frozen=True)
class Evaluation:
    """How an evaluation is played: on which split, how sampled, how often each instance."""

    split: str
    params: SamplingParams
    members: int = 1


def require_whole_weights(strategy: Strategy) -> None:
    """Refuse strategies that leave a process with a part of the weights.

    Raises:
        ValueError: naming the remedy.
    """
    if isinstance(strategy, _SHARDED):
        raise ValueError(
            f"rollout.overlap=true needs all weights in each process, and {type(strategy).__name__} shards them; "
            "use strategy=single or ddp, or rollout.overlap=false"
        )


class RolloutCallback(Callback):
    """Plays the episodes of every batch before the module sees it.

    Args:
        collector: fills the batches of training.
        first_prompts: this rank's prompts of an iteration, for playing ahead.
        val_params, test_params: sampling parameters of validation and test.
        make_worker: of (rules, network, forward_context), what plays ahead while an iteration trains; None where
            each is played when it is needed.
    """

    def __init__(
        self,
        *,
        collector: Collector,
        first_prompts: Callable[[int], StepBatch],
        val_params: SamplingParams,
        test_params: SamplingParams,
        make_worker: Callable[..., Worker] | None = None,
    ) -> None:
        self.settings = collector.settings
        self._collector = collector
        self._first_prompts = first_prompts
        self._val = Evaluation("val", val_params)
        self._test = Evaluation("test", test_params)
        self._make_worker = make_worker
        self._ahead: PlayAhead | None = None
        self._restored: dict[str, Any] | None = None
        self._here: Inline | None = None
        self._doors = StrategyDoors()
        self.val_outcomes: list[Outcome] = []  # of all episodes of the last validation, for reports
        self.test_outcomes: list[Outcome] = []

    def set_test(self, evaluation: Evaluation) -> None:
        """How later tests are played."""
        self._test = evaluation

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Build the engine around the module's own network, which Lightning moves to its device afterwards."""
        self._doors = doors_of(trainer.strategy)
        self._collector.setup(trainer.strategy.root_device)
        if self._make_worker is not None:
            require_whole_weights(trainer.strategy)
        self._close()
        network: Any = pl_module.network
        self._here = Inline(self._collector.rules, network, trainer.precision_plugin.forward_context)

    def state_dict(self) -> dict[str, Any]:
        """What reward parts and the structure have learnt."""
        return self._collector.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""
        self._collector.load_state_dict(state_dict)

    # ------------------------------------------------------------------ overlap
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._make_worker is None:
            return
        self._end_ahead()
        network: Any = pl_module.network
        worker = self._make_worker(self._collector.rules, network, trainer.precision_plugin.forward_context)
        self._ahead = PlayAhead(
            worker, network, lambda i: self._collector.first_wave(self._first_prompts(i)),
            last=None if trainer.max_epochs in (None, -1) else trainer.max_epochs,
        )  # fmt: skip
        if self._restored is not None and trainer.current_epoch > 0:
            self._ahead.resume(self._restored, trainer.current_epoch)
        self._restored = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: StepBatch, batch_idx: int
    ) -> None:
        if self._ahead is not None:
            self._ahead.update_is_over()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._close()
        self._end_ahead()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._end_ahead()

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self._ahead is not None and (state := self._ahead.state_dict()) is not None:
            checkpoint[_AHEAD] = state

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._restored = checkpoint.get(_AHEAD)

    # ------------------------------------------------------------------ training
    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: StepBatch, batch_idx: int
    ) -> None:
        # dropout and whatever else draws from the global generator is keyed like everything else
        torch.manual_seed(seeds.key(self._collector.rules.seed, "global", batch.iteration, rank()))
        row: dict[str, float] = pl_module.row  # type: ignore[assignment]
        row |= self._collector.collect(
            batch, lambda wave: self._play_training(pl_module, wave), device=pl_module.device,
            barrier=self._doors.barrier,
        )  # fmt: skip
        if self._ahead is not None:
            row["train/staleness"] = staleness(batch.trajectories, _version(pl_module), pl_module.device)
            self._ahead.go_on(_version(pl_module), trainer.current_epoch)

    def _play_training(self, pl_module: LightningModule, wave: Wave) -> Played:
        played = self._ahead.take(wave) if self._ahead is not None else None
        return self._play(pl_module, wave) if played is None else played

    def _play(self, pl_module: LightningModule, wave: Wave) -> Played:
        assert self._here is not None, "setup() comes before playing"
        # ranks decode different numbers of steps: no collective within
        with self._doors.gathered(pl_module.network):  # type: ignore[arg-type]
            played = self._here.play(wave, _version(pl_module))
        self._doors.barrier("played")  # a rank whose game hangs is named here
        return played

    # ------------------------------------------------------------------ evaluation
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.val_outcomes = []

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.test_outcomes = []

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: StepBatch, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        started = time.perf_counter()
        self._evaluate(pl_module, batch, self._val)
        self.val_outcomes.extend(batch.outcomes)
        row: dict[str, float] = pl_module.row  # type: ignore[assignment]
        row["time/validate"] = row.get("time/validate", 0.0) + time.perf_counter() - started

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: StepBatch, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        self._evaluate(pl_module, batch, self._test)
        self.test_outcomes.extend(batch.outcomes)

    def _evaluate(self, pl_module: LightningModule, batch: StepBatch, how: Evaluation) -> None:
        specs = tuple(members_of(batch, how.members))
        batch.episodes = self._play(pl_module, Wave(how.split, batch.iteration, how.params, specs)).episodes
        stop_if_failing(batch.episodes, self.settings.max_failed_share)
        batch.outcomes = of_all_ranks(batch.episodes)

    def _close(self) -> None:
        if self._here is not None:
            self._here.stop()

    def _end_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead.stop()
        self._ahead = None


def _version(pl_module: LightningModule) -> int:
    return int(getattr(pl_module, "version", 0))
