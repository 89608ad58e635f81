"""The frozen reference policy that a KL term compares with."""

from __future__ import annotations

import copy
from typing import Any

import torch

from lit_agentrl.rl.algorithm import Algorithm


def frozen(network: Any, algorithm: Algorithm) -> Any:
    """A copy of the policy's network as it is now, without gradient, in the precision that the KL term asks for."""
    reference = copy.deepcopy(network).requires_grad_(False)
    name = algorithm.kl.reference_dtype if algorithm.kl is not None else None
    return reference if name is None else reference.to(getattr(torch, name))
