"""Heads on a causal language model: scores of a reward model, values of a critic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from lit_agentrl import seeds
from lit_agentrl.models.logprobs import ensure_float32, find_places, read_hidden_at
from lit_agentrl.models.packing import Packing


class ScoreHead(nn.Module):
    """A linear head with one or several scores per token.

    ``r = w h + b`` for the last hidden state h after a token; several heads are rows of one matrix.

    Args:
        hidden: Hidden size of the network.
        seed: Seed of the initial weights; the initial bias is 0.
        heads: Number of scores; None for one score without an axis of its own.
    """

    def __init__(self, hidden: int, seed: int = 0, heads: int | None = None) -> None:
        super().__init__()
        self.is_single = heads is None
        self.linear = nn.Linear(hidden, heads or 1)
        generator = torch.Generator().manual_seed(seeds.make_key(seed, "score head"))
        with torch.no_grad():
            self.linear.weight.copy_(
                torch.randn(heads or 1, hidden, generator=generator) / (hidden + 1) ** 0.5
            )
        nn.init.zeros_(self.linear.bias)

    def forward(
        self, network: nn.Module, *, tokens_BT: Tensor, is_scored_BT: Tensor, packing: Packing | None = None,
        place_A: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Compute ``score_BT``, or ``score_BTH`` of several heads, with gradient into head and network.

        Args:
            network: Causal LM.
            tokens_BT: Right-padded rows of ids.
            is_scored_BT: True at tokens after which to score; the score is 0 elsewhere.
            packing: Packing of the rows; None if they are not packed.
            place_A: Places of the scored tokens; see `find_places`.
        """
        places = find_places(is_scored_BT, place_A)
        hidden_AD = read_hidden_at(
            network, tokens_BT=tokens_BT, is_read_BT=is_scored_BT, packing=packing, place_A=place_A
        )
        out_AH = self.linear(hidden_AD.to(self.linear.weight.dtype))
        score_A = ensure_float32(out_AH.squeeze(-1) if self.is_single else out_AH)
        shape = (*tokens_BT.shape, *score_A.shape[1:])
        score_BT = torch.zeros(shape, dtype=score_A.dtype, device=tokens_BT.device)
        return score_BT.index_put(places, score_A)

    @property
    def column(self) -> str:
        """The name of the column of scores."""
        return "score_BT" if self.is_single else "score_BTH"


class ValueHead(Protocol):
    """The interpretation of the outputs of a critic's linear head.

    Attributes:
        columns: Names of the (B, T) columns for sampled tokens; the first is ``value_BT``, the value of the state
            before the token.
        select_tokens: Returns Q of all tokens, (…, V), from the output of the linear head; None: the head has no Q,
            and cannot reweight a policy.
    """

    columns: tuple[str, ...]
    select_tokens: Callable[[Tensor], Tensor] | None = None

    def get_width(self, vocabulary: int) -> int:
        """Return the number of outputs of the linear head."""

    def read(self, out_AC: Tensor, token_A: Tensor) -> Tensor:
        """Return the columns of A sampled tokens, (A,), or (A, C) of several; with gradient."""


class StateValues(ValueHead):
    """The single output of the head is ``value_BT``, ``V(s)``."""

    columns: tuple[str, ...] = ("value_BT",)

    def get_width(self, vocabulary: int) -> int:
        return 1

    def read(self, out_AC: Tensor, token_A: Tensor) -> Tensor:
        return ensure_float32(out_AC.squeeze(-1))


class ValuesAndCosts(ValueHead):
    """Two outputs: ``value_BT``, ``V(s)`` of rewards, and ``cost_value_BT``, that of costs."""

    columns: tuple[str, ...] = ("value_BT", "cost_value_BT")

    def get_width(self, vocabulary: int) -> int:
        return 2

    def read(self, out_AC: Tensor, token_A: Tensor) -> Tensor:
        return ensure_float32(out_AC)
