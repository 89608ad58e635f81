"""Off-policy credit from a critic that predicts V and Q of all tokens: ILQL.

Notation, shapes and the treatment of NaN returns are those of ``critic_advantages.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lit_agentrl.experimental.turn_values import check_discount, check_weight, token_targets
from lit_agentrl.rl.credit.advantages import Advantage
from lit_agentrl.rl.masked import check_shapes

_MAX_WEIGHT = 100.0  # upper bound of the weight of a token, as in IQL


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
    """Weights of imitation from implicit language Q-learning: ILQL, arXiv 2206.11871.

    ``w_t = min(exp(sharpness (Q(s_t, a_t) - V(s_t))), 100)``; an action is a token.  ``value_BT`` is V,
    ``implicit_q_BT`` is Q of the sampled token (in reward units), and ``target_implicit_q_BT`` is Q of the target
    network.  The target of Q is ``Q(s_t, a_t) <- r_t + d_t V(s_t')``, where ``d_t`` is ``turn_discount`` at the end of
    a turn, else 1, and the second term is 0 after the last token; `value_loss.implicit` fits V to Q.
    ``algo/clip=log_prob`` multiplies the log-likelihood by the weight, which uses Q of the target network and the
    current V and has no unit.  The default ``sharpness=0`` imitates all rows equally, as in the paper, where the values
    are used at sampling time.  No gradient flows.

    Raises:
        ValueError: a constant is out of range, or shapes disagree.
    """
    check_discount(turn_discount)
    check_weight(sharpness)
    check_shapes(
        value_BT=value_BT, implicit_q_BT=implicit_q_BT, reward_BT=reward_BT, is_action_BT=is_action_BT
    )
    is_counted_BT = is_action_BT & ~return_B.isnan()[:, None]
    slow_BT = implicit_q_BT if target_implicit_q_BT is None else target_implicit_q_BT
    gap_BT = torch.where(is_counted_BT, (slow_BT - value_BT).detach().to(reward_BT), 0)
    weight_BT = torch.exp(sharpness * gap_BT).clamp(max=_MAX_WEIGHT)
    target_BT = token_targets(
        value_BT, reward_BT, is_counted_BT, is_turn_end_BT, trajectory_B, first_turn_B, turn_discount
    )
    return Advantage(
        torch.where(is_counted_BT, weight_BT, torch.zeros_like(weight_BT)), target_BT, is_counted_BT
    )
