"""Which network a reference is: the start, or what a class of one's own makes of the policy."""

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
    """The network whose log-probs a KL term or a loss of pairs compares the policy's with; it is never trained.

    Attributes:
        is_start: it is the policy as it was at the start.
        moves: its weights change while the policy is trained; checkpoints hold them.
    """

    is_start: ClassVar[bool] = False
    moves: ClassVar[bool] = False

    @property
    def requires(self) -> list[Requirement]:
        """Something that reads it, where it is another than the start."""
        return [] if self.is_start else [Requirement(READS_REFERENCE, remedy="reference=start")]

    @property
    def provides(self) -> list[Fact]:
        """That it stands still, unless it moves."""
        return [] if self.moves else [STILL_REFERENCE]

    def make(self, policy: Policy, dtype: str | None) -> Any:
        """The network, at the start of a run; called once, before anything is played.

        Args:
            policy: as it is at the start.
            dtype: precision that is asked for, such as ``bfloat16``; None: the policy's own.

        Raises:
            ValueError: it cannot be had.
        """
        raise NotImplementedError

    def move(self, reference: Any, network: Any, iteration: int) -> None:
        """After the update of an iteration, numbered from 0: change the reference in place, or leave it."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must know beside the weights of one that moves."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`.

        Raises:
            ValueError: the network is another than that of the checkpoint.
        """
        return None


class Start(Reference):
    """The policy as it was at the start; with adapters their base, at no cost in memory."""

    is_start: ClassVar[bool] = True

    def make(self, policy: Policy, dtype: str | None) -> Any:
        """See `frozen`."""
        return frozen(policy.network, dtype)


def frozen(network: Any, dtype: str | None) -> Any:
    """A copy of the policy's network as it is now, without gradient, in the precision ``dtype``, None being its own.

    A network with adapters is returned itself, at no cost in memory: with `disable_adapters` it is the base, which is
    what the policy was at the start.

    Raises:
        ValueError: another precision is asked of a base that the policy itself is computed with.
    """
    if find_adapter_layers(network):
        if dtype is not None:
            raise ValueError(
                f"algo.kl.reference_dtype={dtype} cannot be had under model/lora, whose reference is the policy's own "
                "base; leave it null"
            )
        return network
    reference = copy.deepcopy(network).requires_grad_(False)
    return reference if dtype is None else reference.to(getattr(torch, dtype))
