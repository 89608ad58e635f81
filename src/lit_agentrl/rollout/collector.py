"""Collection of an iteration's batch: play, score, select groups, play further waves, pack."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from lit_agentrl import seeds
from lit_agentrl.batch import LEFT_OUT, SKIPPED, StepBatch, TrajectoryBatch
from lit_agentrl.checks import blame
from lit_agentrl.distributed import gather_rows, get_rank, sum_over_ranks
from lit_agentrl.episode import Episode, Source
from lit_agentrl.facts import MORE_GROUPS
from lit_agentrl.report.iteration import compute_rollout_row, stop_if_failing
from lit_agentrl.rewards.base import RewardContext
from lit_agentrl.rewards.pipeline import RewardPipeline
from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.policy.filters import Selection
from lit_agentrl.rollout.adviser import Adviser
from lit_agentrl.rollout.pack import get_trajectory_id, pack
from lit_agentrl.rollout.questions import Answers, Question
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Wave
from lit_agentrl.rollout.settings import RolloutSettings
from lit_agentrl.rollout.structures.base import MAX_WAVES, Progress, Structure
from lit_agentrl.rollout.structures.hook import TemporaryStep
from lit_agentrl.rollout.workers.base import Played, sum_counts, sum_usage
from lit_agentrl.task_sampler import TaskSampler

# a context that takes a step on episodes, yields a function that plays waves with the new weights, and undoes the step
TryOut = Callable[[Sequence[Episode], TemporaryStep], AbstractContextManager[Callable[[Wave], Played]]]
# keys in the state next to the names of reward parts, which contain no dot
_STRUCTURE, _SAMPLER = "algo.structure", "task_sampler.state"


class _Chosen(NamedTuple):
    """The episodes and groups that an iteration trains on.

    Attributes:
        episodes: The scored episodes of this rank.
        groups: Numbers of the selected groups, of all ranks.
        want_more: Whether the selection asks for further groups.
    """

    episodes: Sequence[Episode]
    groups: set[int]
    want_more: bool


class Collector:
    """A collector of the episodes of training iterations; it computes no advantages.

    Args:
        rules: Rules by which episodes are played, with the probes of ``rewards``.
        settings: Numbers of episodes and sampling parameters.
        structure: Structure of the groups.
        select_groups: Group selection, a function of ``rl/policy/filters.py`` with its constants bound.
        further_prompts: Returns this rank's prompts of (iteration, wave).
        rewards: Rewards that replace the environment's rewards in training.
        sampler: Sampler of the tasks of prompts, which learns from what was played; None learns nothing.
    """

    def __init__(
        self,
        rules: Rules,
        settings: RolloutSettings,
        *,
        structure: Structure,
        select_groups: Callable[..., Selection],
        further_prompts: Callable[[int, int], StepBatch],
        rewards: RewardPipeline | None = None,
        sampler: TaskSampler | None = None,
    ) -> None:
        self.rules = rules
        self.settings = settings
        self.structure = structure
        self.select_groups = select_groups
        self._further_prompts = further_prompts
        self._rewards = rewards or RewardPipeline()
        self._sampler = sampler or TaskSampler()
        self._engine_metrics: dict[str, float] = {}

    def setup(self, device: torch.device, policy: Any = None) -> None:
        """Set up the reward parts, which may need the network of the policy."""
        self._rewards.setup(
            RewardContext(
                device=device, tokenizer=self.rules.chat.tokenizer, seed=self.rules.seed,
                open_answerer=partial(Adviser, device=device), policy=policy, encode_reply=self.rules.encode_reply,
            )
        )  # fmt: skip

    def close(self) -> None:
        """Release the resources of the reward parts."""
        self._rewards.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the learned state of reward parts, structure and sampler; empty if nothing learns."""
        states = {_STRUCTURE: self.structure.state_dict(), _SAMPLER: self._sampler.state_dict()}
        return self._rewards.state_dict() | {key: state for key, state in states.items() if state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the result of :meth:`state_dict`."""
        rewards = dict(state)
        if structure := rewards.pop(_STRUCTURE, None):
            self.structure.load_state_dict(structure)
        if sampler := rewards.pop(_SAMPLER, None):
            self._sampler.load_state_dict(sampler)
        self._rewards.load_state_dict(rewards)

    def seed_iteration(self, iteration: int) -> None:
        """Seed the global generator, for dropout and other uses, with a key of the iteration."""
        torch.manual_seed(seeds.make_key(self.rules.seed, "global", iteration, get_rank()))

    def add_structure_columns(self, batch: StepBatch) -> None:
        """Add the structure's columns, with masks of the tokens that loss or advantages exclude."""
        rows, hook = batch.trajectories, self.structure.hook
        with _name_structure():
            batch.columns |= hook.make_columns(
                batch.iteration, TrajectoryBatch.make_empty() if rows is None else rows
            )
            if rows is None:
                return
            if (mask_BT := hook.mask_tokens(batch.iteration, rows)) is not None:
                batch.columns[LEFT_OUT] = mask_BT
            if (mask_BT := hook.skip_tokens(batch.iteration, rows)) is not None:
                batch.columns[SKIPPED] = mask_BT

    def plan_first_wave(self, prompts: StepBatch) -> Wave:
        """Return the first wave for the prompts of an iteration."""
        with _name_structure():
            specs = self.structure.plan(prompts, self.settings.members)
        return self._make_wave(prompts.iteration, 0, specs)

    def collect(
        self,
        batch: StepBatch,
        play: Callable[[Wave], Played],
        *,
        device: torch.device,
        trial: TryOut | None = None,
        ask: Callable[[Sequence[Question]], Answers] | None = None,
    ) -> dict[str, float]:
        """Fill a batch of prompts; return what is logged.

        Args:
            batch: Batch that receives episodes and packed trajectories.
            play: Plays a wave.
            device: Device of the collectives.
            trial: Takes a step on episodes, yields a function that plays waves with the new weights, and undoes the
                step at the end of its context.
            ask: Answers questions of the structure.

        Raises:
            ValueError: Too many games failed, nothing can be trained on, or the filter asks for groups that the
                structure does not provide.
        """
        self.seed_iteration(batch.iteration)
        started = time.perf_counter()
        played, chosen = self._play_waves(batch, play, trial)
        waves = len(played)
        worker_seconds = sum(wave_result.seconds for wave_result in played)
        metrics = {"time/ahead": worker_seconds} if worker_seconds else {}
        metrics |= sum_counts(played)
        metrics["rollout/waves"] = float(waves)
        metrics |= self._engine_metrics
        if self._rewards:
            metrics |= self._rewards.learn(_drop_replayed(chosen.episodes), iteration=batch.iteration)
        self._pack(batch, chosen, device)
        progress = self._describe_progress(batch, waves, chosen.want_more)
        metrics |= self._teach_structure(
            progress if ask is None else replace(progress, ask=_record_usage(ask, played))
        )
        with blame("task_sampler"):
            learned = self._sampler.learn(progress.sampled)
        metrics |= {f"task_sampler/{name}": value for name, value in learned.items()}
        batch.used = sum_usage(played)
        metrics |= {f"engine/{name}": value for name, value in batch.used.items()}
        names, seconds = [task.name for task in self.rules.tasks], time.perf_counter() - started
        return metrics | compute_rollout_row(
            batch, names, seconds=seconds, device=device, playing_seconds=worker_seconds or None
        )

    def _play_waves(
        self, batch: StepBatch, play: Callable[[Wave], Played], trial: TryOut | None
    ) -> tuple[list[Played], _Chosen]:
        """Play waves until no rank wants more; return their results and the choice of groups."""
        wave = self.plan_first_wave(batch)
        played = [play(wave)]
        self._add_played(batch, wave, played[-1])
        chosen = self._choose_groups(batch, 1)
        while (further := self._plan_further(batch, len(played), chosen.want_more)) is not None:
            with self._use_weights(batch, len(played), play, trial) as play_further:
                wave = self._make_wave(batch.iteration, len(played), further)
                played.append(play_further(wave))
                self._add_played(batch, wave, played[-1])
            chosen = self._choose_groups(batch, len(played))
        return played, chosen

    def _make_wave(self, iteration: int, number: int, specs: Sequence[EpisodeSpec]) -> Wave:
        for spec in specs:
            if (spec.iteration, spec.wave) != (iteration, number):
                raise ValueError(
                    f"algo.structure={type(self.structure).__name__} plays an episode of iteration {spec.iteration}, "
                    f"wave {spec.wave}, in iteration {iteration}, wave {number}, and its draws would be those of "
                    "another episode; name it by the iteration and the wave that it is played in"
                )
        with _name_structure():
            branching = self.structure.branching(self.settings.members)
        return Wave("train", iteration, self.settings.params, tuple(specs), number, branching)

    def _add_played(self, batch: StepBatch, wave: Wave, played: Played) -> None:
        """Add the episodes of a wave to the batch."""
        for spec, episode in zip(wave.specs, played.episodes, strict=True):
            (batch.greedy_episodes if spec.greedy else batch.episodes).append(episode)
        if len({get_trajectory_id(episode) for episode in batch.episodes}) < len(batch.episodes):
            raise ValueError(
                f"algo.structure={type(self.structure).__name__} plays a member of a group twice; give each further "
                "episode of a group a member of its own"
            )
        stop_if_failing(played.episodes, self.settings.max_failed_share)
        self._engine_metrics |= played.metrics  # a wave in which this rank plays nothing has no metrics

    def _plan_further(self, batch: StepBatch, waves: int, want_more: bool) -> Sequence[EpisodeSpec] | None:
        """Return this rank's next episodes; None if no rank has any."""
        if want_more and MORE_GROUPS not in self.structure.provides:
            raise ValueError(
                f"filter asks for more groups, and {type(self.structure).__name__} plays none: set "
                "algo/structure=refill"
            )
        with _name_structure():
            specs = self.structure.after_wave(self._describe_progress(batch, waves, want_more))
        total = int(sum_over_ranks(torch.tensor(len(specs))))
        if total and waves >= MAX_WAVES:
            raise ValueError(f"algo.structure asks for more than {MAX_WAVES} waves in one iteration")
        return specs if total else None

    @contextmanager
    def _use_weights(
        self, batch: StepBatch, waves: int, play: Callable[[Wave], Played], trial: TryOut | None
    ) -> Iterator[Callable[[Wave], Played]]:
        """Yield a function that plays the next wave with the weights that the structure wants."""
        with _name_structure():
            step = self.structure.hook.plan_temporary_step(
                self._describe_progress(batch, waves, want_more=False)
            )
        if step is None:
            yield play
            return
        if trial is None:
            raise ValueError("algo.structure asks for a step of the weights, and nobody here takes one")
        with trial(batch.episodes, step) as play_with_step:
            yield play_with_step

    def _describe_progress(self, batch: StepBatch, waves: int, want_more: bool) -> Progress:
        return Progress(
            iteration=batch.iteration,
            waves=waves,
            members=self.settings.members,
            seed=self.rules.seed,
            want_more=want_more,
            episodes=[*batch.episodes, *batch.greedy_episodes],
            sampled=batch.episodes,
            draw=lambda wave: self._further_prompts(batch.iteration, wave),
        )

    def _teach_structure(self, progress: Progress) -> dict[str, float]:
        """Let the structure learn from the iteration; return its curves, averaged over all ranks."""
        names = sorted(self.structure.curves)
        with _name_structure():
            sums = self.structure.learn(progress)
            own_sums = torch.tensor([sums[name] for name in names], dtype=torch.float64).reshape(-1, 2)
        if not names:
            return {}
        pairs = sum_over_ranks(own_sums).tolist()
        return {
            f"structure/{name}": total / weight
            for name, (total, weight) in zip(names, pairs, strict=True)
            if weight
        }

    def _choose_groups(self, batch: StepBatch, waves: int) -> _Chosen:
        """Score the training episodes and select groups over all ranks."""
        with _name_structure():
            trained = self.structure.train_on(self._describe_progress(batch, waves, want_more=False))
        if self._rewards:
            unscored = {
                id(e) for e in self._rewards.score(_drop_replayed(trained), iteration=batch.iteration)
            }
            trained = [episode for episode in trained if id(episode) not in unscored]
        played = [episode for episode in trained if not episode.failed]
        tensors, _ = gather_rows(
            {
                "return_B": torch.tensor([e.training_return for e in played]),
                "success_B": torch.tensor([e.success for e in played], dtype=torch.bool),
                "group_B": torch.tensor([e.group for e in played], dtype=torch.int64),
                "trajectory_B": torch.tensor([get_trajectory_id(e) for e in played], dtype=torch.int64),
                "task_B": torch.tensor([e.task for e in played], dtype=torch.int64),
            },
            torch.tensor([get_trajectory_id(e) for e in played], dtype=torch.int64),
        )
        selection: Selection = bind(self.select_groups, tensors)
        groups = set(selection.keep_groups.tolist())
        batch.num_groups = len(set(tensors["group_B"].tolist()))
        batch.num_kept_groups = len(groups)
        return _Chosen(trained, groups, selection.want_more)

    def _pack(self, batch: StepBatch, chosen: _Chosen, device: torch.device) -> None:
        played = [e for e in chosen.episodes if e.num_action_tokens and not e.failed]
        if not int(sum_over_ranks(torch.tensor(len(played), device=device))):
            raise ValueError(
                "no episode of this iteration can be trained on: each is empty, failed or was not scored"
            )
        trained = [episode for episode in played if episode.group in chosen.groups]
        baselines = {e.group: e.total_reward for e in batch.greedy_episodes if not e.error}
        if trained:
            batch.trajectories = pack(trained, baselines)
        self.add_structure_columns(batch)


def _record_usage(
    ask: Callable[[Sequence[Question]], Answers], played: list[Played]
) -> Callable[[Sequence[Question]], Answers]:
    """Return ``ask``, wrapped to record its engine usage next to that of the waves."""

    def ask_and_record(questions: Sequence[Question]) -> Answers:
        asked = ask(questions)
        played.append(Played([], used=asked.used))
        return asked

    return ask_and_record


def _drop_replayed(episodes: Sequence[Episode]) -> Sequence[Episode]:
    """Return the episodes of this iteration; replayed ones were scored when they were played."""
    return [episode for episode in episodes if episode.source is not Source.REPLAY]


def _name_structure() -> AbstractContextManager[None]:
    """Name the structure in errors that it raises, except process-group failures."""
    return blame("algo.structure", but=(RuntimeError,))
