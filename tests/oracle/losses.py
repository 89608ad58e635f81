"""Our policy loss as one call, and gradients on either side."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.credit import advantages
from lit_agentrl.rl.objective import metric_values
from lit_agentrl.rl.policy import aggregation
from lit_agentrl.rl.policy.algorithm import Algorithm, policy_loss
from tests.oracle.batches import Batch

NORM = 30  # the constant of Dr. GRPO
MODES = {
    "token-mean": aggregation.token_mean,
    "token-sum": aggregation.token_sum,
    "seq-mean-token-sum": aggregation.seq_mean_token_sum,
    "seq-mean-token-mean": aggregation.seq_mean_token_mean,
    "seq-mean-token-sum-norm": partial(aggregation.seq_mean_token_sum_norm, max_tokens=NORM),
}


def with_gradient(loss_of: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """``loss_of(x)`` and its gradient with respect to x."""
    leaf = x.detach().clone().requires_grad_()
    loss = loss_of(leaf)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), gradient


def aggregated(loss_BT: Tensor, aggregate: Callable[..., Any], batch: Batch) -> Tensor:
    """A loss per token as one number."""
    weights = bind(aggregate, batch)
    total = torch.where(batch["is_action_BT"], weights.weight_BT * loss_BT, 0.0).sum()
    return aggregation.divide(total, weights.denominator)


def ours(
    batch: Batch, *, aggregate: Callable[..., Any], **parts: Any
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Loss, gradient with respect to the log-probs, and metrics of a mix."""
    mix = Algorithm(name="test", advantage=advantages.group_mean_std, aggregate=aggregate, **parts)
    weights = bind(aggregate, batch)
    metrics: dict[str, float] = {}

    def loss_of(logp_BT: Tensor) -> Tensor:
        total, sums = policy_loss(mix, tensors=batch | {"logp_BT": logp_BT}, weight_BT=weights.weight_BT)
        metrics.update(metric_values(sums))
        return aggregation.divide(total, weights.denominator)

    return *with_gradient(loss_of, batch["logp_BT"]), metrics
