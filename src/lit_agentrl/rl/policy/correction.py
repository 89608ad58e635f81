"""Importance weights that correct for differences between engine and trainer log-probs.

``rho_t = exp(old_logp_t - sampler_logp_t)`` for each sampled token, where ``old_logp`` is the trainer's log-prob (nats)
under the weights that sampled, and ``sampler_logp`` is the log-prob that the engine recorded.  A part that takes both
columns makes a run recompute ``old_logp``.  The weight multiplies the policy loss of the token.  No input carries
gradient.  A token of weight 0 gets no gradient from the policy loss, but it still counts where an aggregation divides
by the number of tokens.

Arguments are (B, T), ``trajectory_B`` is (B,); weights are (B, T), and 0 where no token was sampled.  Log-ratios are
clamped to [-20, 20] before the exponential, per token and after any sum.  All functions raise ValueError when shapes
disagree.

Truncated importance sampling: Yao et al., "Your efficient RL framework secretly brings you off-policy RL training"
(2025).  Weights of sequences: Liu, Li et al., "When speed kills stability: demystifying RL collapse from the
training-inference mismatch" (2025).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lit_agentrl.checks import require
from lit_agentrl.rl.masked import check_shapes, require_whole_rows
from lit_agentrl.rl.policy.ratios import LOG_RATIO_LIMIT


def none() -> None:
    """Use no correction; `update.max_logp_gap` limits the difference of log-probs."""


def truncated(
    *, old_logp_BT: Tensor, sampler_logp_BT: Tensor, is_action_BT: Tensor, cap: float = 2.0
) -> Tensor:
    """``min(rho_t, cap)``: bounded variance, biased where the engine samples too rarely.

    Raises:
        ValueError: if shapes disagree or ``cap`` is below 1.
    """
    _check_cap(cap)
    log_BT = _compute_log_ratio(old_logp_BT, sampler_logp_BT, is_action_BT)
    return _compute_ratio(log_BT, is_action_BT).clamp(max=cap)


def masked(
    *,
    old_logp_BT: Tensor,
    sampler_logp_BT: Tensor,
    is_action_BT: Tensor,
    low: float = 0.5,
    high: float = 2.0,
) -> Tensor:
    """``rho_t`` within [low, high], else 0: skip tokens on which log-probs disagree.

    IcePop is this rule with ``low`` 0.5 and ``high`` 5 (alpha and beta of arXiv 2510.18855, section 2.3.2).

    Raises:
        ValueError: if shapes disagree, or not ``0 <= low < 1 <= high``.
    """
    _check_band(low, high)
    log_BT = _compute_log_ratio(old_logp_BT, sampler_logp_BT, is_action_BT)
    ratio_BT = _compute_ratio(log_BT, is_action_BT)
    is_kept_BT = (ratio_BT >= low) & (ratio_BT <= high)
    return torch.where(is_kept_BT, ratio_BT, torch.zeros_like(ratio_BT))


def sequence(
    *,
    old_logp_BT: Tensor,
    sampler_logp_BT: Tensor,
    is_action_BT: Tensor,
    trajectory_B: Tensor,
    cap: float = 2.0,
) -> Tensor:
    """``min(prod_t rho_t, cap)``, one weight for all tokens of a trajectory.

    The update is without bias where no weight reaches ``cap``.

    Raises:
        ValueError: if shapes disagree, ``cap`` is below 1, or a trajectory is spread over several rows.
    """
    _check_cap(cap)
    log_BT = _compute_log_ratio_of_whole_rows(old_logp_BT, sampler_logp_BT, is_action_BT, trajectory_B)
    return _compute_ratio(log_BT.sum(1, keepdim=True), is_action_BT).clamp(max=cap)


def geometric(
    *,
    old_logp_BT: Tensor,
    sampler_logp_BT: Tensor,
    is_action_BT: Tensor,
    trajectory_B: Tensor,
    cap: float = 1.002,
) -> Tensor:
    """``min(g_i, cap)``, one weight for all tokens of trajectory i.

    ``g_i = (prod_t rho_t)^(1/T_i)``, the geometric mean over its T_i sampled tokens.

    Raises:
        ValueError: if shapes disagree, ``cap`` is below 1, or a trajectory is spread over several rows.
    """
    _check_cap(cap)
    log_BT = _compute_log_ratio_of_whole_rows(old_logp_BT, sampler_logp_BT, is_action_BT, trajectory_B)
    return _compute_ratio(_average(log_BT, is_action_BT), is_action_BT).clamp(max=cap)


def geometric_masked(
    *,
    old_logp_BT: Tensor,
    sampler_logp_BT: Tensor,
    is_action_BT: Tensor,
    trajectory_B: Tensor,
    low: float = 0.999,
    high: float = 1.002,
) -> Tensor:
    """``rho_t`` if ``g_i`` of `geometric` lies within [low, high], else 0 for the whole trajectory.

    Raises:
        ValueError: if shapes disagree, not ``0 <= low < 1 <= high``, or a trajectory is spread over several rows.
    """
    _check_band(low, high)
    log_BT = _compute_log_ratio_of_whole_rows(old_logp_BT, sampler_logp_BT, is_action_BT, trajectory_B)
    mean_B1 = _average(log_BT, is_action_BT).exp()
    is_kept_B1 = (mean_B1 >= low) & (mean_B1 <= high)
    return _compute_ratio(log_BT, is_action_BT & is_kept_B1)


def _check_cap(cap: float) -> None:
    require(1 <= cap < math.inf, "cap", cap, "finite and >= 1")


def _check_band(low: float, high: float) -> None:
    require(0 <= low < 1, "low", low, "in [0, 1)")
    require(1 <= high < math.inf, "high", high, "finite and >= 1")


def _compute_log_ratio(old_logp_BT: Tensor, sampler_logp_BT: Tensor, is_action_BT: Tensor) -> Tensor:
    check_shapes(old_logp_BT=old_logp_BT, sampler_logp_BT=sampler_logp_BT, is_action_BT=is_action_BT)
    log_BT = torch.where(is_action_BT, old_logp_BT - sampler_logp_BT, torch.zeros_like(old_logp_BT))
    return log_BT.detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def _compute_log_ratio_of_whole_rows(
    old_logp_BT: Tensor, sampler_logp_BT: Tensor, is_action_BT: Tensor, trajectory_B: Tensor
) -> Tensor:
    """Compute per-token log-ratios; refuse trajectories of several rows."""
    log_BT = _compute_log_ratio(old_logp_BT, sampler_logp_BT, is_action_BT)
    check_shapes(is_action_BT=is_action_BT, trajectory_B=trajectory_B)
    require_whole_rows(
        trajectory_B=trajectory_B, is_action_BT=is_action_BT,
        option="algo/correction=sequence, geometric or geometric_masked",
        alternative="algo/correction=truncated or masked",
    )  # fmt: skip
    return log_BT


def _average(log_BT: Tensor, is_action_BT: Tensor) -> Tensor:
    """Return the mean log-ratio over the sampled tokens of each row, (B, 1)."""
    return log_BT.sum(1, keepdim=True) / is_action_BT.sum(1, keepdim=True).clamp(min=1)


def _compute_ratio(log_ratio: Tensor, is_weighted_BT: Tensor) -> Tensor:
    """Return the exponential at tokens that are weighted, else 0; (B, T)."""
    ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return torch.where(is_weighted_BT, ratio, torch.zeros_like(ratio))
