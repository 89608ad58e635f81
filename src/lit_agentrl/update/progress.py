"""What an update borrows from a training loop, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lit_agentrl.distributed import StrategyDoors, max_over_ranks


@dataclass(frozen=True, kw_only=True)
class Loop:
    """What a training loop lends to one update.

    Attributes:
        device: of the networks.
        optimizers: the policy's, then the critic's.
        schedules: stepped once an iteration.
        backward: of a scalar loss.
        doors: of the strategy.
    """

    device: torch.device
    optimizers: Sequence[Optimizer]
    schedules: Sequence[LRScheduler]
    backward: Callable[[Tensor], None]
    doors: StrategyDoors = field(default_factory=StrategyDoors)

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step_schedules(self) -> None:
        for schedule in self.schedules:
            schedule.step()


@dataclass
class Progress:
    """Steps taken and skipped; the first two numbers lie in checkpoints.

    Attributes:
        version: optimizer steps taken: the version of the weights.
        bad_steps: steps skipped in a row.
        skipped: steps skipped in this iteration.
    """

    max_bad_steps: int
    version: int = 0
    bad_steps: int = 0
    skipped: int = 0

    def is_nothing(self, is_empty: bool, reason: str, loop: Loop) -> bool:
        """Whether no rank has anything to train on: the iteration is then skipped and counted.

        Raises:
            ValueError: the last of so many in a row, as of `skip`.
        """
        if bool(max_over_ranks(torch.tensor(float(not is_empty), device=loop.device))):
            return False
        self.skip(f"{reason} in", "choose another filter or more groups")
        loop.step_schedules()
        return True

    def is_usable(self, norm: Tensor) -> bool:
        """Whether the gradient is finite; else the step is skipped and counted.

        Raises:
            ValueError: as of `skip`.
        """
        if bool(torch.isfinite(norm)):
            self.bad_steps = 0
            return True
        self.skip(
            "the gradient was not finite in",
            "lower optim.lr or update.grad_clip, or resume from an earlier checkpoint",
        )
        return False

    def skip(self, reason: str, remedy: str) -> None:
        """Count a step that is not taken.

        Raises:
            ValueError: ``max_bad_steps`` were skipped in a row.
        """
        self.bad_steps += 1
        self.skipped += 1
        if self.bad_steps >= self.max_bad_steps:
            raise ValueError(f"{reason} {self.bad_steps} consecutive steps; {remedy}")
