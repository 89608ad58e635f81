"""Heads of a critic with Q of every token, for offline Q-learning: CQL and ILQL."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_agentrl.models.heads import ValueHead
from lit_agentrl.models.logprobs import ensure_float32


class TokenValues(ValueHead):
    """The head gives ``Q(s, a)`` of every token a of the vocabulary.

    ``value_BT`` is ``max_a Q(s, a)``, ``q_BT`` the Q of the sampled token, and ``spread_BT``
    ``logsumexp_a Q(s, a) - Q(s, sampled)``, which is at least 0.
    """

    columns: tuple[str, ...] = ("value_BT", "q_BT", "spread_BT")

    def get_width(self, vocabulary: int) -> int:
        return vocabulary

    def read(self, out_AC: Tensor, token_A: Tensor) -> Tensor:
        all_AV = ensure_float32(out_AC)
        q_A = all_AV.gather(1, token_A[:, None]).squeeze(1)
        return torch.stack([all_AV.amax(1), q_A, all_AV.logsumexp(1) - q_A], dim=1)


class TokensAndState(ValueHead):
    """The head gives ``Q(s, a)`` of every token a of the vocabulary, followed by ``V(s)``.

    ``value_BT`` is V, ``implicit_q_BT`` the Q of the sampled token, and ``spread_BT`` as in `TokenValues`.
    """

    columns: tuple[str, ...] = ("value_BT", "implicit_q_BT", "spread_BT")

    def get_width(self, vocabulary: int) -> int:
        return vocabulary + 1

    def read(self, out_AC: Tensor, token_A: Tensor) -> Tensor:
        out_AC = ensure_float32(out_AC)
        all_AV, value_A = out_AC[:, :-1], out_AC[:, -1]
        q_A = all_AV.gather(1, token_A[:, None]).squeeze(1)
        return torch.stack([value_A, q_A, all_AV.logsumexp(1) - q_A], dim=1)

    def select_tokens(self, out: Tensor) -> Tensor:
        """Return Q of all tokens, (…, V), from the output of the linear head."""
        return out[..., :-1]
