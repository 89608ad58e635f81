"""Credit from Q of all tokens beside V, in one critic: ILQL.

Notation, shapes and the treatment of NaN returns are those of ``critic_advantages.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lit_agentrl.rl.credit.advantages import Advantage
from lit_agentrl.rl.credit.turn_values import check_discount, check_weight, token_targets
from lit_agentrl.rl.masked import check_shapes

_MOST = 100.0  # weight of a token, as in IQL


def ilql(
    *,
    value_BT: Tensor,
    implicit_q_BT: Tensor,
    reward_BT: Tensor,
    is_action_BT: Tensor,
    is_turn_end_BT: Tensor,
    return_B: Tensor,
    trajectory_B: Tensor,
    first_turn_B: Tensor,
    target_implicit_q_BT: Tensor | None = None,
    turn_discount: float = 0.99,
    sharpness: float = 0.0,
) -> Advantage:
    """``w_t = min(exp(sharpness (Q(s_t, a_t) - V(s_t))), 100)``: implicit language Q-learning, arXiv 2206.11871.

    An action is a token.  ``value_BT`` is V, ``implicit_q_BT`` Q of the sampled token (points), and
    ``target_implicit_q_BT`` that of the critic's slow weights.  Q learns ``Q(s_t, a_t) <- r_t + d_t V(s_t')``, ``d_t``
    being ``turn_discount`` at the end of a turn, else 1, and nothing following the last token; V learns from Q in
    `value_loss.implicit`.  The weight is that of the likelihood (``algo/clip=log_prob``), of the slow Q and of V of
    now, in no unit.  0, the default of ``sharpness``, imitates all rows alike, as the paper does: there the values
    act when the policy plays.  No gradient flows.

    Raises:
        ValueError: a constant out of range, or shapes that disagree.
    """
    check_discount(turn_discount)
    check_weight(sharpness)
    check_shapes(
        value_BT=value_BT, implicit_q_BT=implicit_q_BT, reward_BT=reward_BT, is_action_BT=is_action_BT
    )
    is_counted_BT = is_action_BT & ~return_B.isnan()[:, None]
    slow_BT = implicit_q_BT if target_implicit_q_BT is None else target_implicit_q_BT
    gap_BT = torch.where(is_counted_BT, (slow_BT - value_BT).detach().to(reward_BT), 0)
    weight_BT = torch.exp(sharpness * gap_BT).clamp(max=_MOST)
    target_BT = token_targets(
        value_BT, reward_BT, is_counted_BT, is_turn_end_BT, trajectory_B, first_turn_B, turn_discount
    )
    return Advantage(
        torch.where(is_counted_BT, weight_BT, torch.zeros_like(weight_BT)), target_BT, is_counted_BT
    )
