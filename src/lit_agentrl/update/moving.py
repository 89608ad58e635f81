"""A reference that follows the policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from lit_agentrl.checks import require_number, require_whole
from lit_agentrl.models.lora import find_adapter_layers
from lit_agentrl.models.policy import Policy
from lit_agentrl.update.reference import Reference, make_frozen


@dataclass(frozen=True, kw_only=True)
class Moving(Reference):
    """A reference that follows the policy slowly: TR-DPO, arXiv 2404.09656.

    After every ``every`` iterations: ``reference <- (1 - alpha) reference + alpha policy``.  It begins as the initial
    policy.  ``every=1`` with ``alpha < 1`` is the paper's soft update, ``alpha=1`` its hard update;
    with ``every=1`` too, the reference is the policy before the first step of each iteration.  ``alpha=0`` is
    `Start`.

    Args:
        alpha: share of the policy, in [0, 1].
        every: iterations between moves.

    Raises:
        ValueError: a value is out of range; in `make`, adapters or another precision than the policy's.
    """

    alpha: float = 0.6
    every: int = 1
    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_number("alpha", self.alpha, "in [0, 1]", lambda value: 0 <= value <= 1)
        require_whole("every", self.every, 1)

    def make(self, policy: Policy, dtype: str | None) -> Any:
        """Return a copy of the policy's network."""
        if find_adapter_layers(policy.network):
            raise ValueError(
                "reference=moving holds whole weights that move, and under model/lora the reference is the policy's "
                "own base; use reference=start, or model/lora=none"
            )
        if dtype is not None:  # a lower precision would round small moves away
            raise ValueError(
                f"algo.kl.reference_dtype={dtype} is not possible under reference=moving, which has the policy's own "
                "precision; leave it null"
            )
        return make_frozen(policy.network, None)

    @torch.no_grad()
    def move(self, reference: Any, network: Any, iteration: int) -> None:
        """Move the reference towards the policy; bit-exact at alpha 0 and 1."""
        if (iteration + 1) % self.every:
            return
        for module in (reference, network):
            module.state_dict()  # shards gathered weights again, so that each rank moves only its own
        for own, other in zip(reference.parameters(), network.parameters(), strict=True):
            own.lerp_(other, self.alpha)
