"""A policy whose next tokens the values of a critic reweigh, as one network that an engine runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lit_agentrl.engines.native.cache import Beside


class Reweighted(nn.Module):
    """``pi(a | s) ~ p(a | s) exp(beta (Q(s, a) - V(s)))``, of policy p: ILQL, arXiv 2206.11871.

    V is the same for all tokens, so that ``beta Q`` is added to the logits.  The critic's network reads what the policy
    reads, and keeps its states in the same slots.  A sampling temperature divides the sum.

    Args:
        network: the policy's, for inference alone.
        trunk: the critic's.
        head: linear, on the trunk.
        tokens: picks Q of all tokens (A, V), in points, out of what the head gives.
        beta: in 1 / points.
    """

    def __init__(
        self,
        network: PreTrainedModel,
        *,
        trunk: nn.Module,
        head: nn.Linear,
        tokens: Callable[[Tensor], Tensor],
        beta: float,
    ) -> None:
        super().__init__()
        self.network, self.trunk, self.head = network, trunk, head
        self._tokens, self.beta = tokens, beta
        self.config = network.config

    @property
    def device(self) -> torch.device:
        return self.network.device

    def forward(
        self, input_ids: Tensor, past_key_values: Any = None, logits_to_keep: int = 0, **given: Any
    ) -> Any:
        """What the policy's network gives, its ``logits`` reweighed; no cache but that of slots."""
        found = self.network(
            input_ids=input_ids, past_key_values=past_key_values, logits_to_keep=logits_to_keep, **given
        )
        layers = self.config.get_text_config().num_hidden_layers
        beside = None if past_key_values is None else Beside(past_key_values, layers)
        states_BTD = self.trunk(input_ids=input_ids, past_key_values=beside, **given).last_hidden_state
        states_BTD = states_BTD[:, -found.logits.shape[1] :]
        q_BTV = self._tokens(self.head(states_BTD.to(self.head.weight.dtype)))
        found.logits = found.logits + (self.beta * q_BTV).to(found.logits.dtype)
        return found
