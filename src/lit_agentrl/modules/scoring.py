"""Scores of rows without gradient: log-probs of a network, values of a critic."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.modules.critic import Critic
from lit_agentrl.modules.microbatches import micro_batched


def score_rows(
    network: Any, tensors: Mapping[str, Tensor], *, temperature: float, tokens_per_microbatch: int
) -> Tensor:
    """Log-probs (nats) of every action token under ``network``, (B, T), without gradient.

    Args:
        network: causal LM.
        tensors: holds ``tokens_BT``, ``is_action_BT`` and ``is_real_BT``.
        temperature: of the sampling.
        tokens_per_microbatch: padded tokens of a forward and backward; without backward, twice as many fit.
    """

    def scored(tokens_BT: Tensor, is_action_BT: Tensor) -> Tensor:
        return score_tokens(
            network, tokens_BT=tokens_BT, is_action_BT=is_action_BT, temperature=temperature
        ).logp_BT

    return micro_batched(scored, tensors, 2 * tokens_per_microbatch)


def value_rows(
    critic: Critic, network: Any, tensors: Mapping[str, Tensor], *, tokens_per_microbatch: int
) -> Tensor:
    """Values (points) before every action token, (B, T), without gradient; arguments as of `score_rows`."""
    return micro_batched(partial(critic, network), tensors, 2 * tokens_per_microbatch)
