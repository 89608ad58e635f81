"""Optimisation by hand under Lightning: steps, schedules, what is skipped, and the doors of a strategy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn

from lit_agentrl.distributed import StrategyDoors, max_over_ranks
from lit_agentrl.modules.evaluated import EvaluatedModule
from lit_agentrl.strategies.doors import doors_of
from lit_agentrl.update.minibatches import minibatches
from lit_agentrl.update.settings import UpdateSettings

Tensors = dict[str, Tensor]


class ManualModule(EvaluatedModule):
    """A module that steps its optimizers itself, and counts the steps that it has to skip.

    Args:
        update: says when to stop over skipped steps.
        levels: see `EvaluatedModule`.
    """

    def __init__(self, update: UpdateSettings, levels: dict[str, tuple[float, float]] | None = None) -> None:
        super().__init__(levels)
        self.automatic_optimization = False
        self.update = update
        self._bad_steps = 0
        self._doors = StrategyDoors()

    def setup(self, stage: str) -> None:
        """Meet the strategy; refuse a precision whose gradients are scaled: they are clipped, and judged, as they are.

        Raises:
            ValueError: ``trainer.precision=16-mixed``.
        """
        if getattr(self.trainer.precision_plugin, "scaler", None) is not None:
            raise ValueError(
                "trainer.precision=16-mixed scales gradients, which is not supported; use bf16-mixed"
            )
        self._doors = doors_of(self.trainer.strategy)

    # ------------------------------------------------------------------ doors of the strategy
    def configure_model(self) -> None:
        """Lets the strategy cut the networks up; Lightning calls it before every fit and evaluation."""
        trained = [n for name in ("network", "critic") if (n := getattr(self, name, None)) is not None]
        self._doors.shard(
            trained, [n for n in self.frozen_networks if all(n is not each for each in trained)]
        )

    @property
    def frozen_networks(self) -> Sequence[nn.Module]:
        """Networks that are read but not trained, and are no part of checkpoints."""
        return ()

    @contextmanager
    def _in_use(self, network: nn.Module) -> Iterator[nn.Module]:
        """Around the use of a frozen network, which lies on the module's device within."""
        with self._doors.in_use(network, self.device):
            yield network

    def _minibatches(
        self, tensors: Tensors, units: str, generator: torch.Generator
    ) -> tuple[Tensors, list[Tensor]]:
        """The rows that this rank trains on in an epoch, and which of them belong to each minibatch."""
        return minibatches(
            tensors, count=self.update.minibatches, units=units, generator=generator,
            deal=self._doors.deal,
        )  # fmt: skip

    def _synchronised(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Around one backward: gradients are exchanged between ranks at the last one of a step alone."""
        return nullcontext() if is_last else self._doors.block_backward_sync()

    def _clipped(self, parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
        """Scales gradients down to the norm ``limit``; returns their norm before."""
        return self._doors.clip_gradient_norm(parameters, limit)

    # ------------------------------------------------------------------ optimizers and schedules
    def _optimizers(self) -> list[LightningOptimizer]:
        """The policy's, then the critic's."""
        found = self.optimizers()
        return cast(list[LightningOptimizer], found if isinstance(found, list) else [found])

    def _zero_grad(self) -> None:
        for optimizer in self._optimizers():
            optimizer.zero_grad()

    def _step_schedules(self) -> None:
        schedules = self.lr_schedulers()
        for schedule in schedules if isinstance(schedules, list) else [schedules]:
            assert isinstance(schedule, torch.optim.lr_scheduler.LRScheduler)
            schedule.step()

    # ------------------------------------------------------------------ steps that are skipped
    def _is_empty(self, is_empty: bool, reason: str) -> bool:
        """Skip and count an iteration with nothing to train on; stop the run when they do not cease."""
        if not bool(max_over_ranks(torch.tensor(float(not is_empty), device=self.device))):
            self._skip(f"{reason} in", "choose another filter or more groups")
            self._step_schedules()
            return True
        return False

    def _is_usable(self, norm: Tensor) -> bool:
        """Skip and count steps whose gradient is not finite; stop the run when they do not cease."""
        if bool(torch.isfinite(norm)):
            self._bad_steps = 0
            return True
        self._skip(
            "the gradient was not finite in",
            "lower optim.lr or update.grad_clip, or resume from an earlier checkpoint",
        )
        return False

    def _skip(self, reason: str, remedy: str) -> None:
        self._bad_steps += 1
        self.row["train/skipped_steps"] = self.row.get("train/skipped_steps", 0.0) + 1
        if self._bad_steps >= self.update.max_bad_steps:
            raise ValueError(f"{reason} {self._bad_steps} consecutive steps; {remedy}")
