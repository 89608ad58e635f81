"""The stream of prompts: the task that each group of an iteration plays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from lightning.pytorch import LightningDataModule
from lightning.pytorch.trainer.states import TrainerFn

from lit_agentrl import seeds
from lit_agentrl.batch import StepBatch
from lit_agentrl.checks import require_whole
from lit_agentrl.data.recordings import Recordings
from lit_agentrl.task_sampler import Draw, TaskSampler, Uniform

# more groups than any run plays; the group ids of each later wave start at a multiple of this number
_GROUPS_OF_A_WAVE = 1 << 36
_FIRST_MIXED = 1 << 42  # first group id of mixed data, after the ids of all waves


class OneBatch:
    """A data loader with one batch, which draws no random numbers."""

    def __init__(self, make_batch: Callable[[], StepBatch]) -> None:
        self._make_batch = make_batch

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[StepBatch]:
        yield self._make_batch()


@dataclass(frozen=True)
class EvalSpec:
    """One evaluated game.

    Attributes:
        task: index among the run's games.
        prompts: number of its tasks.
        first: number of the first task.
        trained_in: seed of a run whose training tasks are evaluated, see ``rollout.instances``; None: the evaluation
            tasks of all runs.
        numbers: numbers of its tasks; None: ``prompts`` of them, from ``first`` on.
    """

    task: int
    prompts: int
    first: int = 0
    trained_in: int | None = None
    numbers: tuple[int, ...] | None = None


def make_evaluation_key(split: str, number: int) -> int:
    """Return the instance seed of an evaluation task.

    The seed is the same in all runs: the constant 0 stands for the index of the game, on which tasks must not depend.
    """
    return seeds.make_key(0, f"{split}-instance", 0, number)


class PromptStream(LightningDataModule):
    """Prompts of all iterations, a function of (run seed, iteration, prompt).

    The only state to save is therefore that of ``sampler``.  Evaluation tasks depend neither on the run seed nor on the
    other games of the run, so runs are compared on equal tasks; the sampling noise depends on the seed.  Each rank
    takes every ``world_size``-th prompt.

    Args:
        prompts: groups per iteration.
        task_weights: relative share of each training task; index = ``task_P``.
        seed: run seed.
        val, test: evaluated games, one batch each; ``test`` may be replaced.
        instances: number of training tasks, played in passes, each in its own order; None: always new tasks.  Further
            tasks for a filter are drawn from them at random.
        sampler: chooses the tasks; None: `Uniform`.
        recorded: data to train on instead of rollouts.
        mixed: data to train on together with rollouts.
        judges_test: with ``is_judged``, whether the test split of the held-out data is read.
        is_judged: True if evaluations read held-out data instead of playing.  If False, validations play ``val`` and
            also read the held-out data of ``recorded``, whichever of the two there are; tests play only.
    """

    def __init__(
        self,
        *,
        prompts: int,
        task_weights: Sequence[float],
        seed: int,
        val: Sequence[EvalSpec],
        test: Sequence[EvalSpec] = (),
        instances: int | None = None,
        sampler: TaskSampler | None = None,
        recorded: Recordings | None = None,
        mixed: Recordings | None = None,
        is_judged: bool = False,
        judges_test: bool = False,
    ) -> None:
        super().__init__()
        if instances is not None:
            require_whole("instances", instances, 1)
        self._instances = instances
        self._sampler = sampler or Uniform()
        require_whole("prompts", prompts, 1)
        self._recorded = recorded
        self._mixed = mixed and replace(mixed, first=_FIRST_MIXED)
        self._is_judged = is_judged
        self._judges_test = judges_test and bool(recorded and recorded.held_out.get("test"))
        self._prompts = prompts
        self._cumulative_weights = np.cumsum(task_weights) / np.sum(task_weights)
        self._seed = seed
        self._val_specs = val
        self.test = test

    @property
    def has_test(self) -> bool:
        return bool(self.test) or self._judges_test

    @property
    def has_val(self) -> bool:
        return bool(self.val_dataloader())

    @property
    def plays(self) -> bool:
        """True if training plays rollouts."""
        return self._recorded is None

    def make_batch(self, iteration: int, wave: int = 0) -> StepBatch:
        """Make all prompts of one wave of a training iteration, before the split over ranks."""
        addresses = self._sampler.choose(Draw(self._seed, iteration, wave, self._prompts, self._instances))
        keys = [seeds.make_key(self._seed, "instance", *address) for address in addresses]
        draws = [seeds.make_key(self._seed, "task", *address) / 2**63 for address in addresses]
        last_task = len(self._cumulative_weights) - 1
        tasks = np.searchsorted(self._cumulative_weights, draws, side="right").clip(max=last_task)
        first = wave * _GROUPS_OF_A_WAVE + iteration * self._prompts  # group ids are unique over the run
        return StepBatch(
            iteration, keys, tasks.tolist(), list(range(first, first + self._prompts)), wave=wave
        )

    def make_wave(self, iteration: int, wave: int) -> StepBatch:
        """Make this rank's prompts of a further wave, requested by a filter."""
        return self._take_share(self.make_batch(iteration, wave))

    def train_dataloader(self) -> OneBatch:
        return OneBatch(self._make_training_batch)

    def _make_training_batch(self) -> StepBatch:
        if self._recorded is None:
            batch = self._take_share(self.make_batch(self._get_iteration()))
            if self._mixed is not None:
                batch.recorded = self._mixed.make_batch(self._get_iteration(), **self._get_rank())
            return batch
        return self._recorded.make_batch(self._get_iteration(), **self._get_rank())

    def _get_rank(self) -> dict[str, int]:
        if self.trainer is None:
            return {}
        return {"rank": self.trainer.global_rank, "world_size": self.trainer.world_size}

    def val_dataloader(self) -> list[OneBatch]:
        held_out = OneBatch(partial(self._make_held_out, "val"))
        if self._is_judged:
            return [held_out]
        played = [OneBatch(partial(self._make_evaluation, spec, "val")) for spec in self._val_specs]
        return [*played, held_out] if self._recorded and self._recorded.held_out.get("val") else played

    def test_dataloader(self) -> list[OneBatch]:
        if self._is_judged:
            return [OneBatch(partial(self._make_held_out, "test"))]
        return [OneBatch(partial(self._make_evaluation, spec, "test")) for spec in self.test]

    def describe_held_out(self) -> str:
        """Return the number of groups that validations read, as text."""
        count = len(self._recorded.held_out.get("val", ())) if self._recorded else 0
        return f"{count} held-out group{'s' * (count != 1)}"

    def _get_iteration(self) -> int:
        return self.trainer.current_epoch if self.trainer is not None else 0

    def _count_done(self) -> int:
        """Count completed iterations, so that every validation has its own noise."""
        is_fitting = self.trainer is not None and self.trainer.state.fn == TrainerFn.FITTING
        return self._get_iteration() + int(is_fitting)

    def _make_held_out(self, split: str) -> StepBatch:
        assert self._recorded is not None
        return self._recorded.make_held_out(split, self._count_done(), **self._get_rank())

    def _make_evaluation(self, spec: EvalSpec, split: str) -> StepBatch:
        done = self._count_done()
        numbers = range(spec.first, spec.first + spec.prompts) if spec.numbers is None else spec.numbers
        if spec.trained_in is None:
            keys = [make_evaluation_key(split, p) for p in numbers]
        else:
            keys = [seeds.make_key(spec.trained_in, "instance", p) for p in numbers]
        return self._take_share(StepBatch(done, keys, [spec.task] * spec.prompts, list(numbers)))

    def _take_share(self, batch: StepBatch) -> StepBatch:
        """Return this rank's share of the prompts."""
        if self.trainer is None or self.trainer.world_size == 1:
            return batch
        own_slice = slice(self.trainer.global_rank, None, self.trainer.world_size)
        return StepBatch(
            batch.iteration,
            batch.seed_P[own_slice],
            batch.task_P[own_slice],
            batch.group_P[own_slice],
            wave=batch.wave,
        )
