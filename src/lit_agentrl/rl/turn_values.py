"""Credit from values of turns that are learnt by temporal differences: ArCHer, arXiv 2402.19446.

Notation, shapes and the treatment of NaN returns are those of ``critic_advantages.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lit_agentrl.checks import require
from lit_agentrl.rl.advantages import Advantage
from lit_agentrl.rl.masked import check_shapes, masked_whiten
from lit_agentrl.rl.returns import next_sampled, sum_over_turn, turn_index

_REPLAY = 1  # `Source.REPLAY`; this room knows tensors alone


def archer(
    *,
    value_BT: Tensor,
    reward_BT: Tensor,
    is_action_BT: Tensor,
    is_turn_end_BT: Tensor,
    return_B: Tensor,
    trajectory_B: Tensor,
    first_turn_B: Tensor,
    source_B: Tensor,
    turn_discount: float = 0.95,
    whiten: bool = True,
) -> Advantage:
    """``A_k = Q_k - V_k`` for all tokens of turn k: a critic of turns above a policy of tokens.

    One critic says both: ``V_k`` is its value before the first token of the turn, ``Q_k`` that before the last one,
    when the reply is written but for its end.  What it learns is

        V_k <- Q_k,        Q_k <- r_k + turn_discount V_(k+1),    V behind the last turn is 0

    at these two tokens alone, with the values of before the update on the right: a target network that is renewed once
    an iteration.  ``r_k`` sums ``reward_BT`` over the turn.  A turn of one token has ``V_k`` only, and the right side
    of ``Q_k`` in place of ``Q_k``.  No return enters, so that rows of any policy teach the critic; rows of an earlier
    one (``source_B`` of 1) get an advantage of 0.  ``whiten``: the advantages of the others, each turn once.

    Raises:
        ValueError: also if a row ends in sampled tokens that no ``is_turn_end_BT`` closes.
    """
    require(0 <= turn_discount <= 1, "turn_discount", turn_discount, "in [0, 1]")
    require(isinstance(whiten, bool), "whiten", whiten, "true or false")
    check_shapes(value_BT=value_BT, reward_BT=reward_BT, is_action_BT=is_action_BT, source_B=source_B)
    is_counted_BT = is_action_BT & ~return_B.isnan()[:, None]
    turns = {
        "is_action_BT": is_counted_BT,
        "turn_BT": turn_index(is_action_BT=is_counted_BT, is_turn_end_BT=is_turn_end_BT),
    }
    is_end_BT = is_counted_BT & is_turn_end_BT
    is_inside_BT = torch.nn.functional.pad(is_counted_BT & ~is_turn_end_BT, (1, 0))[:, :-1]
    is_start_BT = is_counted_BT & ~is_inside_BT

    def of_turn(x_BT: Tensor, at_BT: Tensor) -> Tensor:
        """What stands at one token of a turn, at all of them."""
        return sum_over_turn(x_BT=torch.where(at_BT, x_BT, torch.zeros_like(x_BT)), **turns)

    value_BT = value_BT.detach().to(reward_BT.dtype)
    chain = {"trajectory_B": trajectory_B, "first_turn_B": first_turn_B}
    following_BT = next_sampled(x_BT=value_BT, is_action_BT=is_start_BT, **chain)
    ahead_BT = sum_over_turn(x_BT=reward_BT, **turns) + turn_discount * of_turn(following_BT, is_start_BT)
    is_q_BT = is_end_BT & ~is_start_BT
    has_q_BT = of_turn(torch.ones_like(value_BT), is_q_BT) > 0
    q_BT = torch.where(has_q_BT, of_turn(value_BT, is_q_BT), ahead_BT)
    advantage_BT = q_BT - of_turn(value_BT, is_start_BT)
    is_new_BT = is_counted_BT & (source_B != _REPLAY)[:, None]
    if whiten:
        advantage_BT = of_turn(masked_whiten(advantage_BT, is_end_BT & is_new_BT), is_end_BT)
    return Advantage(
        torch.where(is_new_BT, advantage_BT, torch.zeros_like(advantage_BT)),
        torch.where(is_q_BT, ahead_BT, torch.where(is_start_BT, q_BT, torch.zeros_like(q_BT))),
        is_start_BT | is_end_BT,
    )
