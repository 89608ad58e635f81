"""What an update borrows from a training loop, and how far it has come."""

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
    """What a training loop lends to one update.

    Attributes:
        device: of the networks.
        optimizers: the policy's, then the critic's.
        schedules: stepped once an iteration.
        backward: of a scalar loss.
        hooks: of the strategy.
        is_watched: something looks at each backward, in the thread of the loop.
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
    """Steps taken and iterations skipped; version and bad_steps lie in checkpoints.

    Attributes:
        version: optimizer steps taken: the version of the weights.
        bad_steps: iterations skipped in a row.
        skipped: whether this one was, 0 or 1.
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

    def require_finite(self, norm: Tensor) -> None:
        """Refuse to step on a gradient of this norm if it is not finite; the weights stay as they are.

        Raises:
            NotFinite: it is not.
        """
        if not bool(torch.isfinite(norm)):
            raise NotFinite(
                f"the gradient of optimizer step {self.version + 1} is not finite (norm {float(norm)}): lower optim.lr"
                ", or look for infinite rewards", version=self.version + 1,
            )  # fmt: skip

    def require_finite_weights(self, loop: Loop) -> None:
        """After the last step of an iteration, so that no checkpoint holds weights that are not finite; a collective.

        Raises:
            NotFinite: they are not.
        """
        weights = [
            p for optimizer in loop.optimizers for group in optimizer.param_groups for p in group["params"]
        ]
        own = [(w.to_local() if isinstance(w, DTensor) else w).detach() for w in weights]
        # extremes are read as fast as memory is, and are NaN where anything is
        broken = [~torch.stack(w.aminmax()).isfinite().all() for w in own if w.numel()]
        count = torch.stack(broken).sum() if broken else torch.zeros(())  # a rank may hold nothing
        if bool(max_over_ranks(count.float().to(loop.device))):
            raise NotFinite(
                f"the weights after {self.version} optimizer steps are not finite: lower optim.lr",
                version=self.version + 1,  # these have not been saved
            )

    def step_taken(self, *, moves_policy: bool) -> None:
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
