"""Temporary unlearning step on sampled tokens, undone after the context."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lit_agentrl.distributed import sum_over_ranks
from lit_agentrl.models.logprobs import score_tokens


def sum_complements(logp_BT: Tensor, is_action_BT: Tensor, *, epsilon: float) -> Tensor:
    """Compute the complement loss of EEPO over rows.

    ``-sum_k (1 / T_k) sum_t log(1 - min(p_t, 1 - epsilon))`` for rows k of T_k actions each.

    Args:
        logp_BT: (B, T) nats, with gradient.
        is_action_BT: (B, T) sampled tokens.
        epsilon: in (0, 1).
    """
    p_BT = logp_BT.exp().clamp(max=1 - epsilon)
    per_token_BT = torch.where(is_action_BT, torch.log1p(-p_BT), 0.0)
    return -(per_token_BT.sum(1) / is_action_BT.sum(1).clamp(min=1)).sum()


@contextmanager
def unlearn(
    network: PreTrainedModel,
    rows: Mapping[str, Tensor] | None,
    *,
    lr: float,
    epsilon: float,
    temperature: float,
    forward_context: Callable[[], AbstractContextManager[object]],
) -> Iterator[None]:
    """Take one SGD step on the mean complement loss; undo it after the context.

    The loss is `sum_complements` divided by the number of rows with sampled tokens, over all ranks.  EEPO averages over
    responses, arXiv 2510.05837; here each row counts as one response, so a trajectory of several rows counts several
    times.  The weights are copied back afterwards, so they are bit-equal.

    Args:
        network: the policy's network, unsharded on each rank.
        rows: ``tokens_BT`` and ``is_action_BT`` of this rank; None: no rows.
        lr: learning rate of the step.
        epsilon: see `sum_complements`.
        temperature: sampling temperature.
        forward_context: context that sets the precision of forward passes.
    """
    weights = [weight for weight in network.parameters() if weight.requires_grad]
    before = [weight.detach().clone() for weight in weights]
    gradients = [torch.zeros_like(weight) for weight in weights]
    num_rows = 0
    for b in range(0 if rows is None else len(rows["tokens_BT"])):  # one by one: there are few
        assert rows is not None
        is_action_BT = rows["is_action_BT"][b : b + 1].to(weights[0].device)
        if not bool(is_action_BT.any()):
            continue
        num_rows += 1
        with torch.enable_grad(), forward_context():
            tokens_BT = rows["tokens_BT"][b : b + 1].to(weights[0].device)
            scores = score_tokens(
                network, tokens_BT=tokens_BT, is_action_BT=is_action_BT, temperature=temperature
            )
            loss = sum_complements(scores.logp_BT, is_action_BT, epsilon=epsilon)
        row_gradients = torch.autograd.grad(loss, weights, allow_unused=True)
        for gradient, row_gradient in zip(gradients, row_gradients, strict=True):
            if row_gradient is not None:
                gradient += row_gradient
    total = max(1, int(sum_over_ranks(torch.tensor(num_rows, device=weights[0].device))))
    try:
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.sub_(sum_over_ranks(gradient), alpha=lr / total)
        yield
    finally:
        with torch.no_grad():
            for weight, saved in zip(weights, before, strict=True):
                weight.copy_(saved)
