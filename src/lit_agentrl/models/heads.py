"""Heads on a causal language model: of one number, which makes it a reward model, and of a critic's values."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from lit_agentrl import seeds
from lit_agentrl.models.logprobs import at_least_float32, hidden_at
from lit_agentrl.models.packing import Packing


class ScoreHead(nn.Module):
    """``r = w h + b``, h the last hidden state after a token; several are rows of one matrix.

    Args:
        hidden: width of the network.
        seed: the first weights are drawn with it; the first bias is 0.
        heads: how many scores it gives; None: one, without an axis of its own.
    """

    def __init__(self, hidden: int, seed: int = 0, heads: int | None = None) -> None:
        super().__init__()
        self.is_single = heads is None
        self.linear = nn.Linear(hidden, heads or 1)
        draw = torch.Generator().manual_seed(seeds.make_key(seed, "score head"))
        with torch.no_grad():
            self.linear.weight.copy_(torch.randn(heads or 1, hidden, generator=draw) / (hidden + 1) ** 0.5)
        nn.init.zeros_(self.linear.bias)

    def forward(
        self, network: nn.Module, *, tokens_BT: Tensor, is_scored_BT: Tensor, packing: Packing | None = None
    ) -> Tensor:
        """``score_BT``, or ``score_BTH`` of several, 0 where not asked for; gradient into head and network.

        Args:
            network: causal LM.
            tokens_BT: right-padded rows of ids.
            is_scored_BT: True after which tokens a score is wanted.
            packing: of the rows, where they are to be packed.
        """
        hidden_AD = hidden_at(network, tokens_BT=tokens_BT, is_read_BT=is_scored_BT, packing=packing)
        out_AH = self.linear(hidden_AD.to(self.linear.weight.dtype))
        score_A = at_least_float32(out_AH.squeeze(-1) if self.is_single else out_AH)
        shape = (*tokens_BT.shape, *score_A.shape[1:])
        score_BT = torch.zeros(shape, dtype=score_A.dtype, device=tokens_BT.device)
        return score_BT.index_put(torch.nonzero(is_scored_BT, as_tuple=True), score_A)

    @property
    def column(self) -> str:
        """Name of what it gives."""
        return "score_BT" if self.is_single else "score_BTH"


class ValueHead(Protocol):
    """How the numbers of a critic's linear head are read.

    Attributes:
        columns: what it gives of each sampled token, (B, T) by name; ``value_BT``, the value of the state before it,
            is the first.
    """

    columns: tuple[str, ...]

    def width(self, vocabulary: int) -> int:
        """Outputs of the linear head."""

    def read(self, out_AC: Tensor, token_A: Tensor) -> Tensor:
        """Of A sampled tokens the columns, (A,), or (A, C) of several; with gradient."""


class StateValues:
    """``value_BT`` is ``V(s)``, the one number of the head."""

    columns: tuple[str, ...] = ("value_BT",)

    def width(self, vocabulary: int) -> int:
        return 1

    def read(self, out_AC: Tensor, token_A: Tensor) -> Tensor:
        return at_least_float32(out_AC.squeeze(-1))


class ValuesAndCosts:
    """``value_BT`` is ``V(s)`` of rewards, ``cost_value_BT`` that of costs: two heads."""

    columns: tuple[str, ...] = ("value_BT", "cost_value_BT")

    def width(self, vocabulary: int) -> int:
        return 2

    def read(self, out_AC: Tensor, token_A: Tensor) -> Tensor:
        return at_least_float32(out_AC)


class TokenValues:
    """The head gives ``Q(s, a)`` of every token a of the vocabulary.

    ``value_BT`` is ``max_a Q(s, a)``, ``q_BT`` that of the token that was sampled, and ``spread_BT``
    ``logsumexp_a Q(s, a) - Q(s, sampled)``, which is at least 0.
    """

    columns: tuple[str, ...] = ("value_BT", "q_BT", "spread_BT")

    def width(self, vocabulary: int) -> int:
        return vocabulary

    def read(self, out_AC: Tensor, token_A: Tensor) -> Tensor:
        all_AV = at_least_float32(out_AC)
        q_A = all_AV.gather(1, token_A[:, None]).squeeze(1)
        return torch.stack([all_AV.amax(1), q_A, all_AV.logsumexp(1) - q_A], dim=1)


class TokensAndState:
    """The head gives ``Q(s, a)`` of every token a of the vocabulary, and behind them ``V(s)``.

    ``value_BT`` is V, ``implicit_q_BT`` Q of the token that was sampled, and ``spread_BT`` as of `TokenValues`.
    """

    columns: tuple[str, ...] = ("value_BT", "implicit_q_BT", "spread_BT")

    def width(self, vocabulary: int) -> int:
        return vocabulary + 1

    def read(self, out_AC: Tensor, token_A: Tensor) -> Tensor:
        out_AC = at_least_float32(out_AC)
        all_AV, value_A = out_AC[:, :-1], out_AC[:, -1]
        q_A = all_AV.gather(1, token_A[:, None]).squeeze(1)
        return torch.stack([value_A, q_A, all_AV.logsumexp(1) - q_A], dim=1)

    def tokens(self, out: Tensor) -> Tensor:
        """Q of all tokens, (…, V), of what the linear head gives."""
        return out[..., :-1]
