"""A policy whose next-token logits are reweighted by the values of a critic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lit_agentrl.engines.native.cache import SecondNetworkCache
from lit_agentrl.engines.native.cache_argument import find_cache_argument


class Reweighted(nn.Module):
    """A policy reweighted by the values of a critic (ILQL, arXiv 2206.11871).

    ``pi(a | s) ~ p(a | s) exp(beta (Q(s, a) - V(s)))`` for a policy p.  V is the same for all tokens, so adding
    ``beta Q`` to the logits suffices.  The critic's network reads the same tokens as the policy and keeps its state
    in the same slots. A sampling temperature divides the sum.

    Args:
        network: The policy's network, used only for inference.
        trunk: The critic's network.
        head: Linear head on the trunk.
        select_q: Selects Q of all tokens (A, V), in units of reward, from the output of the head.
        beta: Coefficient in 1 / reward.
    """

    def __init__(
        self,
        network: PreTrainedModel,
        *,
        trunk: nn.Module,
        head: nn.Linear,
        select_q: Callable[[Tensor], Tensor],
        beta: float,
    ) -> None:
        super().__init__()
        self.network, self.trunk, self.head = network, trunk, head
        self._select_q, self.beta = select_q, beta
        self.config = network.config

    @property
    def device(self) -> torch.device:
        return self.network.device

    def forward(self, input_ids: Tensor, cache: Any = None, logits_to_keep: int = 0, **given: Any) -> Any:
        """Return the output of the policy's network with reweighted ``logits``.

        Supports no cache other than that of slots.
        """
        output = self.network(
            input_ids=input_ids, logits_to_keep=logits_to_keep, **_name_cache(self.network, cache), **given
        )
        layers = self.config.get_text_config().num_hidden_layers
        critic_cache = None if cache is None else SecondNetworkCache(cache, layers)
        states_BTD = self.trunk(
            input_ids=input_ids, **_name_cache(self.trunk, critic_cache), **given
        ).last_hidden_state
        states_BTD = states_BTD[:, -output.logits.shape[1] :]
        q_BTV = self._select_q(self.head(states_BTD.to(self.head.weight.dtype)))
        output.logits = output.logits + (self.beta * q_BTV).to(output.logits.dtype)
        return output


def _name_cache(network: nn.Module, cache: Any) -> dict[str, Any]:
    """Return the cache under the name by which the network takes it."""
    return {} if cache is None else {find_cache_argument(network) or "past_key_values": cache}
