"""Reference networks: the initial policy, and the base class of others."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from lit_agentrl.facts import READS_REFERENCE, STILL_REFERENCE
from lit_agentrl.models.lora import find_adapter_layers
from lit_agentrl.models.policy import Policy
from lit_agentrl.requirements import Fact, Requirement


class Reference:
    """A frozen network for KL terms and losses of pairs.

    Attributes:
        is_start: whether it is the initial policy.
        moves: whether its weights change during training, so that checkpoints must hold them.
    """

    is_start: ClassVar[bool] = False
    moves: ClassVar[bool] = False

    @property
    def requires(self) -> list[Requirement]:
        """A reader of the reference, unless the reference is the initial policy."""
        return [] if self.is_start else [Requirement(READS_REFERENCE, remedy="reference=start")]

    @property
    def provides(self) -> list[Fact]:
        """The fact that the weights are fixed, unless the reference moves."""
        return [] if self.moves else [STILL_REFERENCE]

    def make(self, policy: Policy, dtype: str | None) -> Any:
        """Make the network at the start of a run; called once, before the rollouts.

        Args:
            policy: the initial policy.
            dtype: requested precision, such as ``bfloat16``; None for the policy's own.

        Raises:
            ValueError: the network cannot be made.
        """
        raise NotImplementedError

    def move(self, reference: Any, network: Any, iteration: int) -> None:
        """Change the reference in place after the update of an iteration (from 0)."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints, besides the weights of a moving reference."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of `state_dict`.

        Raises:
            ValueError: the network differs from that of the checkpoint.
        """
        return None


class Start(Reference):
    """The initial policy; with adapters it is their base, without extra memory."""

    is_start: ClassVar[bool] = True

    def make(self, policy: Policy, dtype: str | None) -> Any:
        """Return a frozen copy, see `make_frozen`."""
        return make_frozen(policy.network, dtype)


def make_frozen(network: Any, dtype: str | None) -> Any:
    """Return a frozen copy of a network, in the precision ``dtype`` or its own.

    A network with adapters is returned itself, without extra memory: with `disable_adapters` it is the base, which
    equals the initial policy.

    Raises:
        ValueError: another precision is requested for a base that the policy shares.
    """
    if find_adapter_layers(network):
        if dtype is not None:
            raise ValueError(
                f"algo.kl.reference_dtype={dtype} is not possible under model/lora, whose reference is the policy's "
                "own base; leave it null"
            )
        return network
    reference = copy.deepcopy(network).requires_grad_(False)
    return reference if dtype is None else reference.to(getattr(torch, dtype))
