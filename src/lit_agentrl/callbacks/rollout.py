"""Fills batches with episodes: rollouts, group selection, packing.  It computes no advantage."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lit_agentrl import seeds
from lit_agentrl.callbacks.rollout_row import of_all_ranks, rollout_row, stop_if_failing
from lit_agentrl.engines.base import Engine, SamplingParams
from lit_agentrl.envs.base import Task
from lit_agentrl.modules.collective import gather_objects, gather_rows, rank, sum_over_ranks
from lit_agentrl.rewards.pipeline import RewardPipeline
from lit_agentrl.rl.binding import bind, try_out
from lit_agentrl.rl.filters import Selection
from lit_agentrl.rollout.batch import pack, trajectory_id
from lit_agentrl.rollout.sampler import EpisodeSpec, Sampler
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.context import FULL, Context
from lit_agentrl.text.ledger import AnswerStop
from lit_agentrl.text.prompts import Prompt
from lit_agentrl.types import EndReason, Episode, StepBatch


@dataclass(frozen=True, kw_only=True)
class RolloutSettings:
    """How an iteration's episodes are played.

    Args:
        prompts: groups per iteration (P).
        members: episodes per group (N).
        temperature, top_p, top_k, max_reply_tokens, max_context_tokens: see ``SamplingParams``.
        allow_truncated_sampling: opt-in for ``top_p < 1`` or ``top_k > 0`` in training, which makes the
            recorded log-probs those of another distribution than the one sampled from.
        max_failed_share: share of an iteration's episodes whose game may fail before the run stops.
        max_waves: how often an iteration's prompts may be drawn for a filter that asks for more groups.

    Raises:
        ValueError: a value out of range, naming the option.
    """

    prompts: int
    members: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_reply_tokens: int = 64
    max_context_tokens: int = 1024
    allow_truncated_sampling: bool = False
    max_failed_share: float = 0.1
    max_waves: int = 10

    def __post_init__(self) -> None:
        for name in ("prompts", "members", "max_waves"):
            if getattr(self, name) < 1:
                raise ValueError(f"rollout.{name}={getattr(self, name)} must be >= 1")
        if not self.temperature > 0:
            raise ValueError(
                f"rollout.temperature={self.temperature} must be > 0: greedy rollouts cannot explore"
            )
        if (self.top_p < 1 or self.top_k > 0) and not self.allow_truncated_sampling:
            raise ValueError(
                f"rollout.top_p={self.top_p} rollout.top_k={self.top_k}: truncated sampling makes training "
                "off-policy; set rollout.allow_truncated_sampling=true to accept that"
            )
        if not 0 <= self.max_failed_share <= 1:
            raise ValueError(f"rollout.max_failed_share={self.max_failed_share} must be in [0, 1]")

    @property
    def params(self) -> SamplingParams:
        try:
            return SamplingParams(
                temperature=self.temperature,
                top_p=self.top_p,
                top_k=self.top_k,
                max_reply_tokens=self.max_reply_tokens,
                max_context_tokens=self.max_context_tokens,
            )
        except ValueError as error:
            raise ValueError(f"rollout.{error}") from error


@dataclass(frozen=True)
class Evaluation:
    """How an evaluation is played: on which split, how sampled, how often each instance."""

    split: str
    params: SamplingParams
    members: int = 1


class RolloutCallback(Callback):
    """Plays the episodes of every batch before the module sees it.

    Args:
        tasks: the run's games; ``task_P`` indexes them.
        engine: makes the engine from ``network``, ``stop``, ``end_of_turn_ids``, ``max_context_tokens`` and
            ``forward_context``.
        prompt, chat: wording and template.
        settings: numbers and sampling of training rollouts.
        select_groups: group selection, a function of ``rl/filters.py`` with its constants bound.
        val_params, test_params: sampling parameters of validation and test.
        further_wave: prompts of (iteration, wave), for filters that ask for more groups.
        context: what of an episode the policy reads before a reply.
        with_greedy: also play each prompt once greedily, for an advantage that takes ``baseline_B``; those
            episodes are counted in tokens and time, but not in the means of ``rollout/*``.
        seed: run seed.
        rewards: what training sees in place of the environment's points.
    """

    def __init__(
        self,
        *,
        tasks: Sequence[Task],
        engine: Callable[..., Engine],
        prompt: Prompt,
        chat: ChatRenderer,
        settings: RolloutSettings,
        select_groups: Callable[..., Selection],
        val_params: SamplingParams,
        test_params: SamplingParams,
        further_wave: Callable[[int, int], StepBatch],
        context: Context = FULL,
        with_greedy: bool = False,
        seed: int = 0,
        rewards: RewardPipeline | None = None,
    ) -> None:
        try_out("filter", select_groups, Selection)
        self._tasks = tasks
        self._make_engine = engine
        self._prompt = prompt
        self._chat = chat
        self._context = context
        self.settings = settings
        self._select_groups = select_groups
        self._further_wave = further_wave
        self._with_greedy = with_greedy
        self._val = Evaluation("val", val_params)
        self._test = Evaluation("test", test_params)
        self._seed = seed
        self._rewards = rewards or RewardPipeline()
        self._engine: Engine | None = None
        self._whole: Callable[[Any], AbstractContextManager[Any]] = nullcontext
        self._samplers: dict[tuple[str, SamplingParams], Sampler] = {}
        self.val_episodes: list[Episode] = []  # all episodes of the last validation, for reports
        self.test_episodes: list[Episode] = []

    def set_test(self, evaluation: Evaluation) -> None:
        """How later tests are played."""
        self._test = evaluation
        self._samplers = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Build the engine around the module's own network, once it lies on its device."""
        self._whole = getattr(trainer.strategy, "gathered", nullcontext)
        self._engine = self._make_engine(
            network=pl_module.network,
            stop=AnswerStop(self._chat.tokenizer),
            end_of_turn_ids=self._chat.end_of_turn_ids,
            max_context_tokens=self.settings.max_context_tokens,
            forward_context=trainer.precision_plugin.forward_context,
        )
        self._samplers = {}

    def state_dict(self) -> dict[str, Any]:
        """What the reward parts have learnt; empty without any that learn."""
        return self._rewards.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""
        self._rewards.load_state_dict(state_dict)

    # ------------------------------------------------------------------ training
    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: StepBatch, batch_idx: int
    ) -> None:
        # dropout and whatever else draws from the global generator is keyed like everything else
        torch.manual_seed(seeds.key(self._seed, "global", batch.iteration, rank()))
        started = time.perf_counter()
        batch.episodes = self._play_wave(pl_module, batch, batch)
        trainer.strategy.barrier("rollout")  # ranks wait for each other here: an absent one is named
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
            row |= self._rewards.learn(gather_objects(batch.episodes), iteration=batch.iteration)
        played = [e for e in batch.episodes if e.num_action_tokens and e.end is not EndReason.ERROR]
        if not int(sum_over_ranks(torch.tensor(len(played), device=pl_module.device))):
            raise ValueError(
                "no episode of this iteration can be trained on: every reply was empty or failed"
            )
        trained = [episode for episode in played if episode.group in kept]
        baselines = {e.group: e.total_reward for e in batch.greedy_episodes if not e.error}
        batch.trajectories = pack(trained, baselines) if trained else None
        row |= rollout_row(
            batch, [task.name for task in self._tasks], seconds=time.perf_counter() - started,
            device=pl_module.device,
        )  # fmt: skip

    def _play_wave(
        self, pl_module: LightningModule, prompts: StepBatch, batch: StepBatch, wave: int = 0
    ) -> list[Episode]:
        """The episodes of these prompts; greedy ones go to ``batch.greedy_episodes``."""
        params = self.settings.params
        episodes = self._play("train", pl_module, prompts, self.settings.members, params, wave)
        if self._with_greedy:
            greedy = replace(params, temperature=0.0, top_p=1.0, top_k=0)
            batch.greedy_episodes.extend(self._play("train", pl_module, prompts, 1, greedy, wave))
        stop_if_failing([*episodes, *batch.greedy_episodes], self.settings.max_failed_share)
        return episodes

    def _keep_groups(self, batch: StepBatch) -> tuple[set[int], bool]:
        """Scores what was played; group selection over all ranks, and whether it asks for further groups."""
        if self._rewards:
            self._rewards.score(gather_objects(batch.episodes), iteration=batch.iteration)
        played = [episode for episode in batch.episodes if episode.end is not EndReason.ERROR]
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

    # ------------------------------------------------------------------ evaluation
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.val_episodes = []

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.test_episodes = []

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: StepBatch, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        started = time.perf_counter()
        played = self._play(self._val.split, pl_module, batch, self._val.members, self._val.params)
        batch.episodes = of_all_ranks(played)
        self.val_episodes.extend(batch.episodes)
        row: dict[str, float] = pl_module.row  # type: ignore[assignment]
        row["time/validate"] = row.get("time/validate", 0.0) + time.perf_counter() - started

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: StepBatch, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        played = self._play(self._test.split, pl_module, batch, self._test.members, self._test.params)
        batch.episodes = of_all_ranks(played)
        self.test_episodes.extend(batch.episodes)

    def _play(
        self, split: str, pl_module: LightningModule, batch: StepBatch, members: int, params: SamplingParams,
        wave: int = 0,
    ) -> list[Episode]:  # fmt: skip
        assert self._engine is not None, "setup() comes before rollouts"
        self._engine.sync_weights(int(getattr(pl_module, "version", 0)))
        if (split, params) not in self._samplers:
            self._samplers[split, params] = Sampler(
                self._engine, tasks=self._tasks, split=split, prompt=self._prompt, chat=self._chat,
                params=params, seed=self._seed, context=self._context,
                probes=self._rewards.probes if split == "train" else None,
            )  # fmt: skip
        prompts = zip(batch.group_P, batch.task_P, batch.seed_P, strict=True)
        with self._whole(pl_module.network):  # ranks decode different numbers of steps: no collective within
            return self._samplers[split, params].play(
                EpisodeSpec(batch.iteration, group, member, task, seed, wave)
                for group, task, seed in prompts
                for member in range(members)
            )
