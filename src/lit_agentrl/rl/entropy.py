"""Entropy terms of the loss, a coefficient that follows the entropy, and a choice of tokens by entropy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_agentrl.rl.masked import check_shapes


def none() -> None:
    """No entropy term; entropies are then only computed for logging."""


def bonus(*, entropy_BT: Tensor, is_action_BT: Tensor, coef: float) -> Tensor:
    """``-coef * H_t`` for each sampled token, 0 elsewhere: A3C, arXiv 1602.01783, section 4.

    Args:
        entropy_BT: nats, of the full distribution at the sampling temperature, (B, T); carries gradient.
        is_action_BT: sampled tokens.
        coef: loss units per nat, > 0.

    Raises:
        ValueError: if shapes disagree or ``coef`` is not positive.
    """
    if not coef > 0:
        raise ValueError(f"algo.entropy.coef={coef} must be > 0; algo/entropy=none switches the bonus off")
    check_shapes(entropy_BT=entropy_BT, is_action_BT=is_action_BT)
    return -coef * torch.where(is_action_BT, entropy_BT, torch.zeros_like(entropy_BT))


@dataclass(frozen=True, kw_only=True)
class AdaptiveEntropy:
    """A coefficient of `bonus` that grows while entropy is low: Skywork-OR1, arXiv 2505.22312.

    The caller holds the coefficient and saves it in checkpoints.

    Attributes:
        target: nats per token, > 0.
        delta: change per update, > 0.
        max_coef: upper bound of the coefficient, >= ``delta``; the lower one is 0.
    """

    target: float
    delta: float
    max_coef: float

    def __post_init__(self) -> None:
        """Checks the constants."""
        for name in ("target", "delta", "max_coef"):
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise ValueError(f"algo.entropy.{name}={value} must be finite and > 0")
        if self.max_coef < self.delta:
            raise ValueError(
                f"algo.entropy.max_coef={self.max_coef} must be >= algo.entropy.delta={self.delta}"
            )

    def update(self, coef: float, entropy: float) -> float:
        """``coef + delta`` if ``entropy <= target`` else ``coef - delta``, within [0, max_coef].

        An ``entropy`` (mean over sampled tokens, nats) that is not finite leaves the coefficient alone.

        Raises:
            ValueError: if ``coef`` is outside [0, max_coef].
        """
        self._check_coef(coef)
        if not math.isfinite(entropy):
            return coef
        change = self.delta if entropy <= self.target else -self.delta
        return min(max(coef + change, 0.0), self.max_coef)

    def applied(self, coef: float, entropy: float) -> float:
        """The weight to use in the loss: ``coef`` while ``entropy <= target``, else 0.

        Raises:
            ValueError: if ``coef`` is outside [0, max_coef].
        """
        self._check_coef(coef)
        return coef if entropy <= self.target else 0.0

    def _check_coef(self, coef: float) -> None:
        if not 0 <= coef <= self.max_coef:
            raise ValueError(f"algo.entropy.coef={coef} must be in [0, max_coef={self.max_coef}]")


@torch.no_grad()
def top_entropy_quantile(*, entropy_BT: Tensor, is_action_BT: Tensor, share: float) -> Tensor:
    """``is_kept_BT``: the ``max(1, floor(share * n))`` of n sampled tokens with the highest entropy.

    Meant for the policy loss: arXiv 2506.01939.  Tokens tied with the last one are kept too, so
    that the order of rows does not matter.  Call it on all rows of a minibatch (of all ranks): the quantile
    of a micro-batch would make the gradient depend on the split.

    Args:
        entropy_BT: nats, as recorded before the update, (B, T); no gradient.
        is_action_BT: sampled tokens; others are never kept.
        share: in (0, 1]; 1 keeps every sampled token.

    Raises:
        ValueError: if shapes disagree, ``share`` is out of range or a sampled token's entropy is NaN.
    """
    if not 0 < share <= 1:
        raise ValueError(f"algo.entropy.share={share} must be in (0, 1]; 1.0 keeps every token")
    check_shapes(entropy_BT=entropy_BT, is_action_BT=is_action_BT)
    entropy_N = entropy_BT[is_action_BT]
    if not len(entropy_N):
        return torch.zeros_like(is_action_BT)
    if bool(entropy_N.isnan().any()):
        raise ValueError("entropy_BT is NaN at a sampled token")
    num_kept = max(1, int(share * len(entropy_N) + 1e-9))  # 0.29 * 100 is 28.999... in floating point
    lowest_kept = entropy_N.topk(num_kept).values[-1]
    return is_action_BT & (entropy_BT >= lowest_kept)
