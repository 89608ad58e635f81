"""The frozen reference policy that a KL term compares with."""

from __future__ import annotations

import copy
from typing import Any

import torch

from lit_agentrl.models.lora import adapter_layers


def frozen(network: Any, dtype: str | None) -> Any:
    """A copy of the policy's network as it is now, without gradient, in the precision ``dtype``, None being its own.

    A network with adapters is returned itself, at no cost in memory: with `adapters_off` it is the base, which is
    what the policy was at the start.

    Raises:
        ValueError: another precision is asked of a base that the policy itself is computed with.
    """
    if adapter_layers(network):
        if dtype is not None:
            raise ValueError(
                f"algo.kl.reference_dtype={dtype} cannot be had under model/lora, whose reference is the policy's own "
                "base; leave it null"
            )
        return network
    reference = copy.deepcopy(network).requires_grad_(False)
    return reference if dtype is None else reference.to(getattr(torch, dtype))
