"""Scores of the sides of a comparison, divergences of scores, and references.

A score is linear in ``x_A``, one number per sampled token (nats): ``logp - ref_logp``, or ``logp`` without a reference.
Tokens that were not sampled are in no unit.  A divergence is a function of the score.  Shapes: A tokens, S sides.
Gradient flows through ``x_A``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lit_agentrl.checks import require
from lit_agentrl.rl.preference.units import Units


def summed(x_A: Tensor, *, units: Units, side_S: Tensor, other_S: Tensor) -> Tensor:
    """``sum_t x_t``: DPO, arXiv 2305.18290.

    Args:
        x_A: nats per sampled token.
        units: the units of the tokens.
        side_S: the units to score.
        other_S: the units they are compared with.
    """
    return units.sum(x_A)[side_S]


def length_averaged(x_A: Tensor, *, units: Units, side_S: Tensor, other_S: Tensor) -> Tensor:
    """``sum_t x_t / n`` for n sampled tokens: SimPO, arXiv 2405.14734, and trl's IPO.

    Arguments are as for `summed`.
    """
    return (units.sum(x_A) / units.length_N)[side_S]


def turn_discounted(
    x_A: Tensor, *, units: Units, side_S: Tensor, other_S: Tensor, discount: float = 0.7
) -> Tensor:
    """``sum_k phi(k, K) sum_{t of turn k} x_t``: DMPO, arXiv 2406.14868, equation 12.

    ``phi(k, K) = g^k (1 - g^(K - k)) / (1 - g^K)`` for turn k of K, from 0; ``(K - k) / K`` for g = 1.  A single turn
    has weight 1.  ``discount``, g, is in (0, 1]; the other arguments are as for `summed`.
    """
    require(0 < discount <= 1, "discount", discount, "in (0, 1]")
    turn_A, turns_A = units.turn_A.double(), units.turns_N[units.unit_A].double()
    if discount == 1:
        weight_A = (turns_A - turn_A) / turns_A
    else:
        weight_A = discount**turn_A * (1 - discount ** (turns_A - turn_A)) / (1 - discount**turns_A)
    return units.sum(weight_A * x_A)[side_S]


def length_desensitised(
    x_A: Tensor, *, units: Units, side_S: Tensor, other_S: Tensor, alpha: float = 0.5
) -> Tensor:
    """Sum with weight ``alpha`` beyond the shorter side's length: LD-DPO, arXiv 2409.06411.

    ``alpha`` is in [0, 1]; 1 is `summed`.  The other arguments are as for `summed`.
    """
    require(0 <= alpha <= 1, "alpha", alpha, "in [0, 1]; 1 is algo/score=summed")
    sum_before_A = torch.cat([x_A.new_zeros(1), x_A.cumsum(0)])
    common_length_S = torch.minimum(units.length_N[side_S], units.length_N[other_S]).long()
    start_S = units.start_N[side_S]
    common_S = sum_before_A[start_S + common_length_S] - sum_before_A[start_S]
    return common_S + alpha * (units.sum(x_A)[side_S] - common_S)


# ---------------------------------------------------------------------- divergences: the score as an implicit reward
def reverse_kl(score_S: Tensor) -> Tensor:
    """``s``: DPO; the constraint is KL(policy || reference)."""
    return score_S


def forward_kl(score_S: Tensor) -> Tensor:
    """``-exp(-s)``: f-DPO, arXiv 2309.16240, table 1.

    ``-s`` is clamped to at most 20.
    """
    return -torch.exp((-score_S).clamp(max=20))


def jensen_shannon(score_S: Tensor) -> Tensor:
    """``log sigmoid(s)``: f-DPO, up to a constant."""
    return logsigmoid(score_S)


def alpha_divergence(score_S: Tensor, *, alpha: float = 0.5) -> Tensor:
    """``exp((alpha - 1) s) / (alpha - 1)``: f-DPO, up to a constant.

    ``alpha`` is in (0, 1); the limit at 1 is `reverse_kl`, at 0 `forward_kl`.  The exponent is clamped to at most 20.
    """
    require(0 < alpha < 1, "alpha", alpha, "in (0, 1)")
    return torch.exp(((alpha - 1) * score_S).clamp(max=20)) / (alpha - 1)


def alpha_power(score_S: Tensor, *, alpha: float = 0.25) -> Tensor:
    """``(1 - p^-alpha) / alpha`` with ``p = exp(s)``: AlphaPO, arXiv 2501.03884.

    It is meant for length-averaged log-probs.  ``alpha`` is finite and not 0; the limit at 0 is `reverse_kl`.  The
    exponent is clamped to at most 20.
    """
    require(math.isfinite(alpha) and alpha != 0, "alpha", alpha, "finite and not 0")
    return (1 - torch.exp((-alpha * score_S).clamp(max=20))) / alpha


def log_odds(score_S: Tensor) -> Tensor:
    """``s - log(1 - exp(s))``: ORPO, arXiv 2403.07691.

    It is meant for length-averaged log-probs without a reference.  ``s`` is clamped to at most -1e-6, because odds are
    infinite at 0.
    """
    score_S = score_S.clamp(max=-1e-6)
    return score_S - torch.log(-torch.expm1(score_S))


# ---------------------------------------------------------------------- references
def without(*, logp_BT: Tensor) -> Tensor:
    """Use no reference: scores are of the log-probs themselves."""
    return torch.zeros_like(logp_BT)


def frozen(*, ref_logp_BT: Tensor) -> Tensor:
    """A frozen copy of the initial policy."""
    return ref_logp_BT.detach()


def sampler(*, old_logp_BT: Tensor) -> Tensor:
    """The policy that sampled the tokens, by its recorded log-probs.

    In a run with rollouts, it is the policy of the iteration.  For recorded episodes, it is the policy that played
    them; if training starts from that policy, this equals the frozen reference.  The reference needs no second network
    and no forward pass.
    """
    return old_logp_BT.detach()


def round_start(*, old_logp_BT: Tensor, sampler_logp_BT: Tensor) -> Tensor:
    """The policy before the first step of the iteration, which needs one more forward pass.

    The result is ``old_logp_BT``.  Only if a part reads ``sampler_logp_BT`` too does the update compute old log-probs
    instead of copying those of the sampler.
    """
    return old_logp_BT.detach()
