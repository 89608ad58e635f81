"""A head of one number on a causal language model, which makes it a reward model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lit_agentrl import seeds
from lit_agentrl.models.logprobs import at_least_float32, hidden_at
from lit_agentrl.models.packing import Packing


class ScoreHead(nn.Module):
    """``r = w h + b``, h the last hidden state after a token.

    Args:
        hidden: width of the network.
        seed: the first weights are drawn with it; the first bias is 0.
    """

    def __init__(self, hidden: int, seed: int = 0) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, 1)
        draw = torch.Generator().manual_seed(seeds.key(seed, "score head"))
        with torch.no_grad():
            self.linear.weight.copy_(torch.randn(1, hidden, generator=draw) / (hidden + 1) ** 0.5)
        nn.init.zeros_(self.linear.bias)

    def forward(
        self, network: nn.Module, *, tokens_BT: Tensor, is_scored_BT: Tensor, packing: Packing | None = None
    ) -> Tensor:
        """``score_BT``, 0 where not asked for; gradient into head and network.

        Args:
            network: causal LM.
            tokens_BT: right-padded rows of ids.
            is_scored_BT: True after which tokens a score is wanted.
            packing: of the rows, where they are to be packed.
        """
        hidden_AD = hidden_at(network, tokens_BT=tokens_BT, is_read_BT=is_scored_BT, packing=packing)
        score_A = at_least_float32(self.linear(hidden_AD.to(self.linear.weight.dtype)).squeeze(-1))
        score_BT = torch.zeros(tokens_BT.shape, dtype=score_A.dtype, device=tokens_BT.device)
        return score_BT.index_put(torch.nonzero(is_scored_BT, as_tuple=True), score_A)
