"""The one place that shifts: logits at position t-1 score the token at position t."""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


class TokenScores(NamedTuple):
    """Per-token scores, zero where ``is_action_BT`` is False."""

    logp_BT: Tensor  # nats, of token t at position t
    entropy_BT: Tensor | None  # nats, of the distribution that token t was drawn from
    hidden_AD: Tensor | None = None  # last hidden state before each of the A action tokens, row by row


def at_least_float32(x: Tensor) -> Tensor:
    """float64 as it is, any other precision as float32."""
    return x if x.dtype == torch.float64 else x.float()


def score_tokens(
    network: PreTrainedModel,
    *,
    tokens_BT: Tensor,
    is_action_BT: Tensor,
    temperature: float = 1.0,
    with_entropy: bool = False,
    with_hidden: bool = False,
) -> TokenScores:
    r"""Log-probability of every action token under ``network``, from one parallel forward.

    ``logp[b, t] = log softmax(z[b, t-1] / temperature)[tokens[b, t]]``, float32 unless the network's
    precision is float64.  Rows must be right-padded: under causal attention padding cannot reach real tokens,
    so no mask is passed and the fused causal kernel is used.

    Args:
        network: causal LM; gradient flows into its parameters unless grad mode is off.
        tokens_BT: int64 ids.
        is_action_BT: True at tokens to score; position 0 has no predecessor and must be False.
        temperature: the sampling temperature (> 0).
        with_entropy: also return the entropy (costs one more pass over the vocabulary).
        with_hidden: also return the hidden states that the logits were read from, for a value head.

    Raises:
        ValueError: an action token at position 0.
    """
    if bool(is_action_BT[:, 0].any()):
        raise ValueError("the first token of a row is an action: nothing precedes it that could score it")
    # the last column is never a predecessor
    output = network(input_ids=tokens_BT[:, :-1], use_cache=False, output_hidden_states=with_hidden)
    chosen = is_action_BT[:, 1:]
    logits_AV = at_least_float32(output.logits[chosen]) / temperature
    log_probs_AV = torch.log_softmax(logits_AV, dim=-1)
    logp_A = log_probs_AV.gather(1, tokens_BT[:, 1:][chosen].unsqueeze(1)).squeeze(1)

    def scatter(values_A: Tensor) -> Tensor:
        out_BT = torch.zeros(tokens_BT.shape, dtype=values_A.dtype, device=tokens_BT.device)
        index = torch.nonzero(is_action_BT, as_tuple=True)
        return out_BT.index_put(index, values_A)

    entropy_BT = scatter(-(log_probs_AV.exp() * log_probs_AV).sum(-1)) if with_entropy else None
    hidden_AD = output.hidden_states[-1][chosen] if with_hidden else None
    return TokenScores(scatter(logp_A), entropy_BT, hidden_AD)


def hidden_before(network: nn.Module, *, tokens_BT: Tensor, is_action_BT: Tensor) -> Tensor:
    """The last hidden state before each action token, (A, D), row by row; gradient into the trunk.

    Args:
        network: a trunk, or a causal LM.  Of the latter the whole is called, if with one position for its head:
            where it is cut up over ranks, its trunk cannot compute alone.
        tokens_BT: right-padded rows of ids.
        is_action_BT: where hidden states are wanted.
    """
    trunk = cast(nn.Module, getattr(network, "base_model", network))
    kept: list[Tensor] = []
    with trunk.register_forward_hook(lambda _module, _inputs, output: kept.append(output.last_hidden_state)):
        only_last = {} if trunk is network else {"logits_to_keep": 1}
        network(input_ids=tokens_BT[:, :-1], use_cache=False, **only_last)
    return kept[0][is_action_BT[:, 1:]]
