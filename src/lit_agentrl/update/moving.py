"""A reference that follows the policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from lit_agentrl.checks import require_number, require_whole
from lit_agentrl.models.lora import find_adapter_layers
from lit_agentrl.models.policy import Policy
from lit_agentrl.update.reference import Reference, frozen


@dataclass(frozen=True, kw_only=True)
class Moving(Reference):
    """``reference <- (1 - alpha) reference + alpha policy`` after every ``every`` iterations: TR-DPO, arXiv 2404.09656.

    It begins as the start.  ``every=1`` with ``alpha < 1`` is the paper's soft update, ``alpha=1`` its hard update;
    with ``every=1`` too, the reference is the policy before the first step of each iteration.  ``alpha=0`` is the
    start.

    Args:
        alpha: share of the policy, in [0, 1].
        every: iterations from one move to the next.

    Raises:
        ValueError: a value out of range; at start, adapters or another precision than the policy's.
    """

    alpha: float = 0.6
    every: int = 1
    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_number("alpha", self.alpha, "in [0, 1]", lambda value: 0 <= value <= 1)
        require_whole("every", self.every, 1)

    def make(self, policy: Policy, dtype: str | None) -> Any:
        """A copy of the policy."""
        if find_adapter_layers(policy.network):
            raise ValueError(
                "reference=moving holds whole weights that move, and under model/lora the reference is the policy's "
                "own base; use reference=start, or model/lora=none"
            )
        if dtype is not None:  # which would round small moves away
            raise ValueError(
                f"algo.kl.reference_dtype={dtype} cannot be had under reference=moving, which is held in the policy's "
                "own precision; leave it null"
            )
        return frozen(policy.network, None)

    @torch.no_grad()
    def move(self, reference: Any, network: Any, iteration: int) -> None:
        """Exact at both ends: the reference to the bit at 0, the policy to the bit at 1."""
        if (iteration + 1) % self.every:
            return
        for each in (reference, network):
            each.state_dict()  # where a strategy cuts weights up, a rank holds its share alone from here on
        for own, other in zip(reference.parameters(), network.parameters(), strict=True):
            own.lerp_(other, self.alpha)
