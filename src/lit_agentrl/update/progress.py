"""Interface of an update to the training loop, and its progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lit_agentrl.checks import NotFinite
from lit_agentrl.distributed import StrategyHooks, max_over_ranks


@dataclass(frozen=True, kw_only=True)
class Loop:
    """Objects of the training loop that an update uses.

    Attributes:
        device: device of the networks.
        optimizers: the policy's, then the critic's.
        schedules: learning rate schedules, stepped once per iteration.
        backward: runs the backward pass of a scalar loss.
        hooks: hooks of the strategy.
        is_watched: whether a module or callback watches each backward pass, in the thread of the loop.
    """

    device: torch.device
    optimizers: Sequence[Optimizer]
    schedules: Sequence[LRScheduler]
    backward: Callable[[Tensor], None]
    hooks: StrategyHooks = field(default_factory=StrategyHooks)
    is_watched: bool = False

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step_schedules(self) -> None:
        for schedule in self.schedules:
            schedule.step()


@dataclass
class Progress:
    """Steps taken and iterations skipped; checkpoints hold version and bad_steps.

    Attributes:
        version: optimizer steps taken, which is the version of the weights.
        bad_steps: iterations skipped in a row.
        skipped: 1 if the current iteration was skipped, else 0.
    """

    max_bad_steps: int
    version: int = 0
    bad_steps: int = 0
    skipped: int = 0

    def skip_if_empty(self, is_empty: bool, reason: str, loop: Loop) -> bool:
        """Skip and count the iteration if no rank has rows; return whether it was skipped.

        Raises:
            ValueError: too many iterations were skipped in a row, see `skip`.
        """
        if bool(max_over_ranks(torch.tensor(float(not is_empty), device=loop.device))):
            return False
        self.skip(f"{reason} in", "choose another filter or more groups")
        loop.step_schedules()
        return True

    def require_finite(self, norm: Tensor) -> None:
        """Check that a gradient norm is finite, before the step changes the weights.

        Raises:
            NotFinite: the norm is not finite.
        """
        if not bool(torch.isfinite(norm)):
            raise NotFinite(
                f"the gradient of optimizer step {self.version + 1} is not finite (norm {float(norm)}): lower optim.lr"
                ", or look for infinite rewards", version=self.version + 1,
            )  # fmt: skip

    def require_finite_weights(self, loop: Loop) -> None:
        """Check after the last step of an iteration that the weights are finite; a collective.

        So every checkpoint holds finite weights.

        Raises:
            NotFinite: a weight is not finite.
        """
        weights = [
            p for optimizer in loop.optimizers for group in optimizer.param_groups for p in group["params"]
        ]
        local_weights = [(w.to_local() if isinstance(w, DTensor) else w).detach() for w in weights]
        # the extremes are NaN if any weight is, and are computed at memory speed
        broken = [~torch.stack(w.aminmax()).isfinite().all() for w in local_weights if w.numel()]
        count = torch.stack(broken).sum() if broken else torch.zeros(())  # a rank may hold no weights
        if bool(max_over_ranks(count.float().to(loop.device))):
            raise NotFinite(
                f"the weights after {self.version} optimizer steps are not finite: lower optim.lr",
                version=self.version + 1,  # the broken weights have not been saved
            )

    def count_step(self, *, moves_policy: bool) -> None:
        """Count a step of the optimizers."""
        self.version += moves_policy
        self.bad_steps = 0

    def skip(self, reason: str, remedy: str) -> None:
        """Count an iteration that takes no step.

        Raises:
            ValueError: ``max_bad_steps`` were skipped in a row.
        """
        self.bad_steps += 1
        self.skipped += 1
        if self.bad_steps >= self.max_bad_steps:
            raise ValueError(f"{reason} {self.bad_steps} consecutive steps; {remedy}")
