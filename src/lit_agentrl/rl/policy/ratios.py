"""Importance ratios between the current policy and the policy that sampled.

``delta_t = logp_t - old_logp_t`` in nats, ``T_i`` is the number of sampled tokens of trajectory i, and ``sg`` stops the
gradient.  Gradient flows through ``logp_BT`` only.  Every function returns ``ratio_BT`` of shape (B, T), exactly 1
where ``is_action_BT`` is False, whatever the inputs hold there.  Log-ratios are clamped to [-20, 20] before the
exponential, per token and after any sum; a clamped log-ratio carries no gradient.  All functions raise ValueError when
shapes disagree.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lit_agentrl.rl.masked import check_shapes, require_whole_rows, sum_columns

LOG_RATIO_LIMIT = 20.0  # nats


def none(*, logp_BT: Tensor, is_action_BT: Tensor) -> Tensor:
    """``exp(logp - sg[logp])``: value 1, gradient of the log-prob; REINFORCE, RLOO on-policy."""
    check_shapes(logp_BT=logp_BT, is_action_BT=is_action_BT)
    return _compute_log_ratio(logp_BT, logp_BT, is_action_BT).exp()


def token(*, logp_BT: Tensor, old_logp_BT: Tensor, is_action_BT: Tensor) -> Tensor:
    """``exp(delta_t)``: PPO, arXiv 1707.06347, equation 6."""
    check_shapes(logp_BT=logp_BT, old_logp_BT=old_logp_BT, is_action_BT=is_action_BT)
    return _compute_log_ratio(logp_BT, old_logp_BT, is_action_BT).exp()


def turn(*, logp_BT: Tensor, old_logp_BT: Tensor, is_action_BT: Tensor, turn_BT: Tensor) -> Tensor:
    """``exp(sum of delta over the turn)``: LOOP per turn, arXiv 2502.01600.

    Raises:
        ValueError: also if a sampled token has no turn (``turn_BT`` < 0).
    """
    check_shapes(logp_BT=logp_BT, old_logp_BT=old_logp_BT, is_action_BT=is_action_BT, turn_BT=turn_BT)
    if bool((is_action_BT & (turn_BT < 0)).any()):
        raise ValueError("turn_BT is negative at a sampled token; algo/ratio=turn needs a turn number there")
    delta_BT = _compute_log_ratio(logp_BT, old_logp_BT, is_action_BT)
    index_BT = turn_BT.clamp(min=0).long()
    num_turns = int(index_BT.max()) + 1 if index_BT.numel() else 1
    sum_BK = sum_columns(delta_BT, index_BT, num_turns)
    return _clamp_and_exp(sum_BK.gather(1, index_BT), is_action_BT)


def trajectory(*, logp_BT: Tensor, old_logp_BT: Tensor, is_action_BT: Tensor, trajectory_B: Tensor) -> Tensor:
    """``exp(sum of delta over the trajectory)``, a plain product: LOOP per trajectory, arXiv 2502.01600.

    Raises:
        ValueError: also if a trajectory is spread over several rows.
    """
    delta_BT = _compute_log_ratio_of_whole_rows(logp_BT, old_logp_BT, is_action_BT, trajectory_B)
    return _clamp_and_exp(delta_BT.sum(1, keepdim=True), is_action_BT)


def sequence(*, logp_BT: Tensor, old_logp_BT: Tensor, is_action_BT: Tensor, trajectory_B: Tensor) -> Tensor:
    """``s_i = exp(sum of delta / T_i)``, the geometric mean: GSPO, arXiv 2507.18071, equation 7.

    Raises:
        ValueError: also if a trajectory is spread over several rows.
    """
    delta_BT = _compute_log_ratio_of_whole_rows(logp_BT, old_logp_BT, is_action_BT, trajectory_B)
    length_B1 = is_action_BT.sum(1, keepdim=True).clamp(min=1)
    return _clamp_and_exp(delta_BT.sum(1, keepdim=True) / length_B1, is_action_BT)


def sequence_token(
    *, logp_BT: Tensor, old_logp_BT: Tensor, is_action_BT: Tensor, trajectory_B: Tensor
) -> Tensor:
    """``sg[s_i] exp(logp_t - sg[logp_t])``: GSPO-token, arXiv 2507.18071, equation 14.

    Advantages may differ within a row; if they do not, value and gradient equal those of `sequence` under aggregation
    by the mean over tokens.

    Raises:
        ValueError: also if a trajectory is spread over several rows.
    """
    ratio_BT = sequence(
        logp_BT=logp_BT, old_logp_BT=old_logp_BT, is_action_BT=is_action_BT, trajectory_B=trajectory_B
    )
    return ratio_BT.detach() * none(logp_BT=logp_BT, is_action_BT=is_action_BT)


def _compute_log_ratio(logp_BT: Tensor, old_logp_BT: Tensor, is_action_BT: Tensor) -> Tensor:
    delta_BT = torch.where(is_action_BT, logp_BT - old_logp_BT.detach(), torch.zeros_like(logp_BT))
    return delta_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def _clamp_and_exp(log_ratio: Tensor, is_action_BT: Tensor) -> Tensor:
    log_ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return torch.where(is_action_BT, log_ratio, torch.zeros_like(log_ratio)).exp()


def _compute_log_ratio_of_whole_rows(
    logp_BT: Tensor, old_logp_BT: Tensor, is_action_BT: Tensor, trajectory_B: Tensor
) -> Tensor:
    """Compute per-token log-ratios; refuse trajectories of several rows."""
    check_shapes(
        logp_BT=logp_BT, old_logp_BT=old_logp_BT, is_action_BT=is_action_BT, trajectory_B=trajectory_B
    )
    require_whole_rows(
        trajectory_B=trajectory_B, is_action_BT=is_action_BT,
        option="algo/ratio=trajectory, sequence or sequence_token", alternative="algo/ratio=turn or token",
    )  # fmt: skip
    return _compute_log_ratio(logp_BT, old_logp_BT, is_action_BT)
