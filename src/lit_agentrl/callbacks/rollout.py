"""Fills batches with episodes: rollouts, group selection, packing.  It computes no advantage."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lit_agentrl import seeds
from lit_agentrl.batch import StepBatch
from lit_agentrl.distributed import StrategyDoors, gather_rows, rank, sum_over_ranks
from lit_agentrl.engines.base import Engine, SamplingParams
from lit_agentrl.episode import Episode, Outcome
from lit_agentrl.report.iteration import of_all_ranks, rollout_row, stop_if_failing
from lit_agentrl.rewards.base import RewardContext
from lit_agentrl.rewards.pipeline import RewardPipeline
from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.filters import Selection
from lit_agentrl.rollout.ahead import PlayAhead, require_whole_weights
from lit_agentrl.rollout.pack import pack, trajectory_id
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.rollout.settings import RolloutSettings
from lit_agentrl.strategies.doors import doors_of


@dataclass(frozen=True)
class Evaluation:
    """How an evaluation is played: on which split, how sampled, how often each instance."""

    split: str
    params: SamplingParams
    members: int = 1


class RolloutCallback(Callback):
    """Plays the episodes of every batch before the module sees it.

    Args:
        rules: how episodes are played, with the probes of ``rewards``.
        settings: numbers and sampling of training rollouts.
        select_groups: group selection, a function of ``rl/filters.py`` with its constants bound.
        val_params, test_params: sampling parameters of validation and test.
        further_wave: prompts of (iteration, wave), for filters that ask for more groups.
        with_greedy: also play each prompt once greedily, for an advantage that takes ``baseline_B``; those
            episodes are counted in tokens and time, but not in the means of ``rollout/*``.
        rewards: what training sees in place of the environment's points.
    """

    def __init__(
        self,
        *,
        rules: Rules,
        settings: RolloutSettings,
        select_groups: Callable[..., Selection],
        val_params: SamplingParams,
        test_params: SamplingParams,
        further_wave: Callable[[int, int], StepBatch],
        with_greedy: bool = False,
        rewards: RewardPipeline | None = None,
    ) -> None:
        self.settings = settings
        self._select_groups = select_groups
        self._further_wave = further_wave
        self._with_greedy = with_greedy
        self._val = Evaluation("val", val_params)
        self._test = Evaluation("test", test_params)
        self._rewards = rewards or RewardPipeline()
        self._rules = rules
        self._engine: Engine | None = None
        self._scheduler: Scheduler | None = None
        self._ahead: PlayAhead | None = None
        if settings.overlap:
            self._ahead = PlayAhead(
                rules, lambda iteration: self._wave_of(further_wave(iteration, 0), 0),
                device=settings.overlap_device, threads=settings.overlap_threads,
                patience=settings.overlap_patience or 600.0,
            )  # fmt: skip
        self._doors = StrategyDoors()
        self.val_outcomes: list[Outcome] = []  # of all episodes of the last validation, for reports
        self.test_outcomes: list[Outcome] = []

    def set_test(self, evaluation: Evaluation) -> None:
        """How later tests are played."""
        self._test = evaluation

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Build the engine around the module's own network, which Lightning moves to its device afterwards."""
        self._doors = doors_of(trainer.strategy)
        forward_context = trainer.precision_plugin.forward_context
        self._engine = self._rules.open_engine(pl_module.network, forward_context)  # type: ignore[arg-type]
        self._close_games()
        self._scheduler = Scheduler(self._rules, self._engine)
        self._rewards.setup(RewardContext(
            device=trainer.strategy.root_device, tokenizer=self._rules.chat.tokenizer, seed=self._rules.seed,
            open_engine=self._rules.open_engine,
        ))  # fmt: skip
        if self._ahead is not None:
            require_whole_weights(trainer.strategy)

    def state_dict(self) -> dict[str, Any]:
        """What the reward parts have learnt; empty without any that learn."""
        return self._rewards.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""
        self._rewards.load_state_dict(state_dict)

    # ------------------------------------------------------------------ overlap
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._ahead is not None:
            self._ahead.begin(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: StepBatch, batch_idx: int
    ) -> None:
        if self._ahead is not None:
            self._ahead.update_is_over()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._close_games()
        if self._ahead is not None:
            self._ahead.end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._ahead is not None:
            self._ahead.end()

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self._ahead is not None:
            self._ahead.save(pl_module, checkpoint)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self._ahead is not None:
            self._ahead.load(checkpoint)

    # ------------------------------------------------------------------ training
    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: StepBatch, batch_idx: int
    ) -> None:
        # dropout and whatever else draws from the global generator is keyed like everything else
        torch.manual_seed(seeds.key(self._rules.seed, "global", batch.iteration, rank()))
        started = time.perf_counter()
        batch.episodes = self._play_wave(pl_module, batch, batch)
        self._doors.barrier("rollout")  # ranks wait for each other here: an absent one is named
        kept, want_more = self._keep_groups(batch)
        waves = 1
        while want_more and waves < self.settings.max_waves:
            further = self._further_wave(batch.iteration, waves)
            batch.episodes.extend(self._play_wave(pl_module, further, batch, waves))
            kept, want_more = self._keep_groups(batch)
            waves += 1
        row: dict[str, float] = pl_module.row  # type: ignore[assignment]
        row["rollout/waves"] = float(waves)
        if self._rewards:
            row |= self._rewards.learn(batch.episodes, iteration=batch.iteration)
        played = [e for e in batch.episodes if e.num_action_tokens and not e.failed]
        if not int(sum_over_ranks(torch.tensor(len(played), device=pl_module.device))):
            raise ValueError(
                "no episode of this iteration can be trained on: every reply was empty or failed"
            )
        trained = [episode for episode in played if episode.group in kept]
        baselines = {e.group: e.total_reward for e in batch.greedy_episodes if not e.error}
        batch.trajectories = pack(trained, baselines) if trained else None
        row |= rollout_row(
            batch, [task.name for task in self._rules.tasks], seconds=time.perf_counter() - started,
            device=pl_module.device, playing_seconds=row.get("time/ahead"),
        )  # fmt: skip
        if self._ahead is not None:
            row["train/staleness"] = self._staleness(pl_module, batch)
            self._ahead.go_on(trainer, pl_module)

    def _play_wave(
        self, pl_module: LightningModule, prompts: StepBatch, batch: StepBatch, wave: int = 0
    ) -> list[Episode]:
        """The episodes of these prompts; greedy ones go to ``batch.greedy_episodes``."""
        wanted = self._wave_of(prompts, wave)
        played = self._ahead.take(wanted) if self._ahead is not None else None
        if played is None:
            found = self._play(pl_module, wanted)
        else:
            found = played.episodes
            row: dict[str, float] = pl_module.row  # type: ignore[assignment]
            row["time/ahead"] = row.get("time/ahead", 0.0) + played.seconds
        of_spec = list(zip(wanted.specs, found, strict=True))
        episodes = [episode for spec, episode in of_spec if not spec.greedy]
        batch.greedy_episodes.extend(episode for spec, episode in of_spec if spec.greedy)
        stop_if_failing([*episodes, *batch.greedy_episodes], self.settings.max_failed_share)
        return episodes

    def _wave_of(self, prompts: StepBatch, wave: int) -> Wave:
        """What is played for these prompts: the members of each group, and the greedy episodes."""
        found = _wave("train", prompts, self.settings.members, self.settings.params, wave)
        if self._with_greedy:
            greedy = tuple(replace(spec, greedy=True) for spec in found.specs if spec.member == 0)
            found = replace(found, specs=found.specs + greedy)
        return found

    def _keep_groups(self, batch: StepBatch) -> tuple[set[int], bool]:
        """Scores what was played; group selection over all ranks, and whether it asks for further groups."""
        if self._rewards:
            self._rewards.score(batch.episodes, iteration=batch.iteration)
        played = [episode for episode in batch.episodes if not episode.failed]
        tensors, _ = gather_rows(
            {
                "return_B": torch.tensor([e.training_return for e in played]),
                "success_B": torch.tensor([e.success for e in played], dtype=torch.bool),
                "group_B": torch.tensor([e.group for e in played], dtype=torch.int64),
                "trajectory_B": torch.tensor([trajectory_id(e) for e in played], dtype=torch.int64),
                "task_B": torch.tensor([e.task for e in played], dtype=torch.int64),
            },
            torch.tensor([trajectory_id(e) for e in played], dtype=torch.int64),
        )
        selection: Selection = bind(self._select_groups, tensors)
        keep = set(selection.keep_groups.tolist())
        batch.num_groups = len(set(tensors["group_B"].tolist()))
        batch.num_kept_groups = len(keep)
        return keep, selection.want_more

    def _staleness(self, pl_module: LightningModule, batch: StepBatch) -> float:
        """Optimizer steps since the weights that sampled, mean over the tokens trained on."""
        if (trajectories := batch.trajectories) is None:
            pair = torch.zeros(2)
        else:
            lag_BT = int(getattr(pl_module, "version", 0)) - trajectories.policy_version_BT
            is_action_BT = trajectories.is_action_BT
            pair = torch.stack([(lag_BT * is_action_BT).sum(), is_action_BT.sum()]).float()
        total, count = sum_over_ranks(pair.to(pl_module.device)).tolist()
        return float(total / max(count, 1.0))

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
        batch.episodes = self._play(pl_module, _wave(how.split, batch, how.members, how.params))
        stop_if_failing(batch.episodes, self.settings.max_failed_share)
        batch.outcomes = of_all_ranks(batch.episodes)

    def _play(self, pl_module: LightningModule, wave: Wave) -> list[Episode]:
        assert self._engine is not None and self._scheduler is not None, "setup() comes before playing"
        self._engine.load(None, int(getattr(pl_module, "version", 0)))
        # ranks decode different numbers of steps: no collective within
        with self._doors.gathered(pl_module.network):  # type: ignore[arg-type]
            played = self._scheduler.play(wave)
        self._doors.barrier("played")  # a rank whose game hangs is named here
        return played

    def _close_games(self) -> None:
        if self._scheduler is not None:
            self._scheduler.close()


def _wave(split: str, batch: StepBatch, members: int, params: SamplingParams, number: int = 0) -> Wave:
    specs = (
        EpisodeSpec(batch.iteration, group, member, task, seed, number)
        for group, task, seed in zip(batch.group_P, batch.task_P, batch.seed_P, strict=True)
        for member in range(members)
    )
    return Wave(split, batch.iteration, params, tuple(specs), number)
