"""A clip rule in log space over whole sequences: GMPO."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_agentrl.rl.clipping import Clipped
from lit_agentrl.rl.masked import check_shapes, require_whole_rows


def log_wide(
    *,
    ratio_BT: Tensor,
    advantage_BT: Tensor,
    is_action_BT: Tensor,
    trajectory_B: Tensor,
    low: float = 0.4,
    high: float = 0.4,
) -> Clipped:
    """``-A_i exp(sum of d'_t / T_i)``, the geometric mean of clipped ratios: GMPO, arXiv 2507.20673.

    ``d_t = log rho_t``; ``d'_t = min(d_t, high)`` where A_i > 0, else ``max(d_t, -low)``.  A clipped token
    loses its gradient, the others of its row keep theirs.  Each sampled token holds the loss of its row, so
    that ``algo/aggregate=seq_mean_token_mean`` gives GMPO's mean over trajectories; others weigh the
    trajectories by length.  With ``algo/ratio=token`` this is GMPO; ``sequence`` clips the log of GSPO's
    ratio.

    Args:
        ratio_BT: from the ratio axis; carries gradient.
        advantage_BT: no gradient.  A_i is its mean over the row's sampled tokens, so that estimators per
            token or turn lose their differences within the row.
        is_action_BT: sampled tokens; elsewhere the loss is 0.
        trajectory_B: each trajectory must lie in one row, since its tokens are multiplied.
        low: nats, > 0; acts on tokens of rows with A_i < 0.
        high: nats, > 0; acts on tokens of rows with A_i > 0.

    Raises:
        ValueError: if shapes disagree, a bound is not positive or a trajectory is spread over several rows.
    """
    for name, bound in (("low", low), ("high", high)):
        if not bound > 0:
            raise ValueError(
                f"algo.clip.{name}={bound} must be > 0 (nats); algo/clip=none switches clipping off"
            )
    check_shapes(
        ratio_BT=ratio_BT, advantage_BT=advantage_BT, is_action_BT=is_action_BT, trajectory_B=trajectory_B
    )
    require_whole_rows(
        trajectory_B=trajectory_B, is_action_BT=is_action_BT, option="algo/clip=log_wide",
        alternative="algo/clip=clip_higher",
    )  # fmt: skip
    length_B1 = is_action_BT.sum(1, keepdim=True).clamp(min=1)
    total_B1 = torch.where(is_action_BT, advantage_BT.detach(), 0).sum(1, keepdim=True)
    advantage_B1 = total_B1 / length_B1
    # 1 where not sampled: whatever stands there must reach neither the logarithm nor its gradient
    log_BT = torch.where(is_action_BT, ratio_BT, 1).log()
    clipped_BT = torch.where(advantage_B1 > 0, log_BT.clamp(max=high), log_BT.clamp(min=-low))
    loss_B1 = -advantage_B1 * (clipped_BT.sum(1, keepdim=True) / length_B1).exp()
    return Clipped(
        torch.where(is_action_BT, loss_B1, 0),
        is_action_BT & (advantage_B1 < 0) & (log_BT < -low),
        is_action_BT & (advantage_B1 > 0) & (log_BT > high),
    )
