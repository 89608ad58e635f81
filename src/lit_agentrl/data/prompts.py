"""The stream of prompts: which instance of which game each group of an iteration plays."""

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

_GROUPS_OF_A_WAVE = 1 << 36  # more than any run plays; further waves count from multiples of it
_FIRST_BESIDE = 1 << 42  # behind all of them


class OneBatch:
    """A data loader of one batch; a plain iterable draws no random number and warns about no workers."""

    def __init__(self, make: Callable[[], StepBatch]) -> None:
        self._make = make

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[StepBatch]:
        yield self._make()


@dataclass(frozen=True)
class EvalSpec:
    """One evaluated game.

    Attributes:
        task: its index among the run's tasks.
        prompts: how many instances of it.
        first: the number of the first.
        trained_in: the seed of a run whose training instances they are, as of ``rollout.instances``; None: those that
            every run is evaluated on.
    """

    task: int
    prompts: int
    first: int = 0
    trained_in: int | None = None


class PromptStream(LightningDataModule):
    """Prompts of every iteration, addressed by (run seed, iteration, prompt): nothing to save or restore.

    Evaluation instances depend neither on the run seed nor on the other games of the run, so runs are compared on
    equal instances; the sampling noise depends on the seed.  Under several ranks each takes every
    ``world_size``-th prompt.

    Args:
        prompts: groups per iteration.
        task_weights: relative share of each training task; index = ``task_P``.
        seed: run seed.
        val, test: games evaluated, one batch each; ``test`` may be exchanged.
        instances: of training, played in passes, each of which has all of them in an order of its own; None: new
            ones always.  What a filter asks for is drawn from them at random.
        recorded: what is trained on in place of rollouts.
        beside: what is trained on beside them.
        is_judged: evaluations compare what is held out of it, instead of playing.
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
        recorded: Recordings | None = None,
        beside: Recordings | None = None,
        is_judged: bool = False,
    ) -> None:
        super().__init__()
        if instances is not None:
            require_whole("instances", instances, 1)
        self._instances = instances
        require_whole("prompts", prompts, 1)
        self._recorded = recorded
        self._beside = beside and replace(beside, first=_FIRST_BESIDE)
        self._is_judged = is_judged
        self._prompts = prompts
        self._shares = np.cumsum(task_weights) / np.sum(task_weights)
        self._seed = seed
        self._val = val
        self.test = test

    @property
    def has_test(self) -> bool:
        return bool(self.test)

    @property
    def plays(self) -> bool:
        """Whether training plays."""
        return self._recorded is None

    def batch(self, iteration: int, wave: int = 0) -> StepBatch:
        """All prompts of one wave of a training iteration, before they are dealt over ranks."""
        address = [self._address(iteration, p, wave) for p in range(self._prompts)]
        keys = [seeds.make_key(self._seed, "instance", *at) for at in address]
        draws = [seeds.make_key(self._seed, "task", *at) / 2**63 for at in address]
        tasks = np.searchsorted(self._shares, draws, side="right").clip(max=len(self._shares) - 1)
        first = wave * _GROUPS_OF_A_WAVE + iteration * self._prompts  # group ids are unique over the run
        return StepBatch(
            iteration, keys, tasks.tolist(), list(range(first, first + self._prompts)), wave=wave
        )

    def _address(self, iteration: int, prompt: int, wave: int) -> tuple[int, ...]:
        """By which the instance of a prompt, and its game, are drawn."""
        address = (iteration, prompt) if wave == 0 else (iteration, prompt, wave)
        if self._instances is None:
            return address
        if wave:
            return (seeds.make_key(self._seed, "repeated", *address) % self._instances,)
        number, place = divmod(iteration * self._prompts + prompt, self._instances)
        order = np.random.default_rng(seeds.make_key(self._seed, "pass", number)).permutation(self._instances)
        return (int(order[place]),)

    def wave(self, iteration: int, wave: int) -> StepBatch:
        """This rank's prompts of a further wave, which a filter asked for."""
        return self._dealt(self.batch(iteration, wave))

    def train_dataloader(self) -> OneBatch:
        return OneBatch(self._trained)

    def _trained(self) -> StepBatch:
        if self._recorded is None:
            batch = self._dealt(self.batch(self._iteration()))
            if self._beside is not None:
                batch.recorded = self._beside.at(self._iteration(), **self._place())
            return batch
        return self._recorded.at(self._iteration(), **self._place())

    def _place(self) -> dict[str, int]:
        if self.trainer is None:
            return {}
        return {"rank": self.trainer.global_rank, "world_size": self.trainer.world_size}

    def val_dataloader(self) -> list[OneBatch]:
        if self._is_judged:
            return [OneBatch(partial(self._held_out, "val"))]
        return [OneBatch(partial(self._evaluation, spec, "val")) for spec in self._val]

    def test_dataloader(self) -> list[OneBatch]:
        if self._is_judged:
            return [OneBatch(partial(self._held_out, "test"))]
        return [OneBatch(partial(self._evaluation, spec, "test")) for spec in self.test]

    def _iteration(self) -> int:
        return self.trainer.current_epoch if self.trainer is not None else 0

    def _done(self) -> int:
        """Completed iterations: 0 at the start, k after iteration k, so every validation has its own noise."""
        is_fitting = self.trainer is not None and self.trainer.state.fn == TrainerFn.FITTING
        return self._iteration() + int(is_fitting)

    def _held_out(self, split: str) -> StepBatch:
        assert self._recorded is not None
        return self._recorded.judged(split, self._done(), **self._place())

    def _evaluation(self, spec: EvalSpec, split: str) -> StepBatch:
        done = self._done()
        # the 0 stands where the game's place in the run's list once did: its instances must not depend on that
        numbers = range(spec.first, spec.first + spec.prompts)
        if spec.trained_in is None:
            keys = [seeds.make_key(0, f"{split}-instance", 0, p) for p in numbers]
        else:
            keys = [seeds.make_key(spec.trained_in, "instance", p) for p in numbers]
        return self._dealt(StepBatch(done, keys, [spec.task] * spec.prompts, list(numbers)))

    def _dealt(self, batch: StepBatch) -> StepBatch:
        """This rank's share of the prompts."""
        if self.trainer is None or self.trainer.world_size == 1:
            return batch
        mine = slice(self.trainer.global_rank, None, self.trainer.world_size)
        return StepBatch(
            batch.iteration, batch.seed_P[mine], batch.task_P[mine], batch.group_P[mine], wave=batch.wave
        )
