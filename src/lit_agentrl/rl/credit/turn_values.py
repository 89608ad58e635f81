"""Credit from values that are learnt by temporal differences, from rows of any policy: ArCHer, IQL, CQL.

Notation, shapes and the treatment of NaN returns are those of ``critic_advantages.py``.  ``target_value_BT`` are the
values of the critic's slow weights (``critic.target_rate``); without them targets are of ``value_BT``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_agentrl.checks import require, require_number
from lit_agentrl.rl.credit.advantages import Advantage
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
    target_value_BT: Tensor | None = None,
    turn_discount: float = 0.95,
    whiten: bool = True,
) -> Advantage:
    """``A_k = Q_k - V_k`` for all tokens of turn k: a critic of turns above a policy of tokens.

    One critic says both: ``V_k`` is its value before the first token of the turn, ``Q_k`` that before the last one,
    when the reply is written but for its end.  What it learns is

        V_k <- Q_k,        Q_k <- r_k + turn_discount V_(k+1),    V behind the last turn is 0

    at these two tokens alone, with ``target_value_BT`` on the right, or the values of before the update: a target
    network that is renewed once an iteration.  ``r_k`` sums ``reward_BT`` over the turn.  A turn of one token has
    ``V_k`` only, and the right side of ``Q_k`` in place of ``Q_k``.  No return enters, so that rows of any policy teach
    the critic; rows of an earlier one (``source_B`` of 1) get an advantage of 0.  ``whiten``: the advantages of the
    others, each turn once.

    Raises:
        ValueError: also if a row ends in sampled tokens that no ``is_turn_end_BT`` closes.
    """
    check_discount(turn_discount)
    require(isinstance(whiten, bool), "whiten", whiten, "true or false")
    check_shapes(value_BT=value_BT, reward_BT=reward_BT, is_action_BT=is_action_BT, source_B=source_B)
    is_counted_BT = is_action_BT & ~return_B.isnan()[:, None]
    turns = _Turns.of(is_counted_BT, is_turn_end_BT, trajectory_B, first_turn_B)
    value_BT = value_BT.detach().to(reward_BT.dtype)
    slow_BT = value_BT if target_value_BT is None else target_value_BT.detach().to(reward_BT.dtype)
    advantage_BT = turns.last(value_BT, turns.ahead(value_BT, reward_BT, turn_discount)) - turns.first(
        value_BT
    )
    is_new_BT = is_counted_BT & (source_B != _REPLAY)[:, None]
    if whiten:
        new_BT = masked_whiten(advantage_BT, turns.is_end_BT & is_new_BT)
        advantage_BT = turns.spread(new_BT, turns.is_end_BT)
    ahead_BT = turns.ahead(slow_BT, reward_BT, turn_discount)
    return turns.advantage(
        torch.where(is_new_BT, advantage_BT, torch.zeros_like(advantage_BT)),
        q_BT=turns.last(slow_BT, ahead_BT),
        ahead_BT=ahead_BT,
    )


def iql(
    *,
    value_BT: Tensor,
    reward_BT: Tensor,
    is_action_BT: Tensor,
    is_turn_end_BT: Tensor,
    return_B: Tensor,
    trajectory_B: Tensor,
    first_turn_B: Tensor,
    target_value_BT: Tensor | None = None,
    turn_discount: float = 0.99,
    sharpness: float = 3.0,
    cap: float = 100.0,
) -> Advantage:
    """``w_k = min(exp(sharpness (Q_k - V_k)), cap)`` for all tokens of turn k: implicit Q-learning, arXiv 2110.06169.

    An action is a reply.  ``V_k`` and ``Q_k`` are those of `archer`, and so is what they learn; `expectile` takes V to
    an upper expectile of Q (equations 5 and 6).  Q is of the slow weights, and V of those of now.  The weight is that
    of the likelihood under ``algo/clip=log_prob`` (equation 7), in no unit: ``sharpness=0`` imitates all rows alike.

    Raises:
        ValueError: also if a row ends in sampled tokens that no ``is_turn_end_BT`` closes.
    """
    check_shapes(value_BT=value_BT, reward_BT=reward_BT, is_action_BT=is_action_BT, return_B=return_B)
    is_counted_BT = is_action_BT & ~return_B.isnan()[:, None]
    turns = _Turns.of(is_counted_BT, is_turn_end_BT, trajectory_B, first_turn_B)
    return _weighted(turns, value_BT, target_value_BT, reward_BT, turn_discount, sharpness, cap)


def iql_executor(
    *,
    value_BT: Tensor,
    reward_BT: Tensor,
    is_action_BT: Tensor,
    is_turn_end_BT: Tensor,
    is_plan_BT: Tensor,
    return_B: Tensor,
    trajectory_B: Tensor,
    first_turn_B: Tensor,
    target_value_BT: Tensor | None = None,
    turn_discount: float = 0.99,
    sharpness: float = 3.0,
    cap: float = 100.0,
) -> Advantage:
    """`iql` of the turns that act, each sub-task by itself: V behind the last turn before a plan is 0, as at the end.

    Plans have weight 0 and teach the critic nothing.  HRL-TAR's executor, offline; no primary source is known.

    Raises:
        ValueError: as `iql`.
    """
    check_shapes(value_BT=value_BT, is_action_BT=is_action_BT, is_plan_BT=is_plan_BT, return_B=return_B)
    is_counted_BT = is_action_BT & ~return_B.isnan()[:, None]
    is_before_plan_BT = next_sampled(
        x_BT=is_plan_BT.to(reward_BT), is_action_BT=is_counted_BT & is_turn_end_BT,
        trajectory_B=trajectory_B, first_turn_B=first_turn_B,
    )  # fmt: skip
    turns = _Turns.of(is_counted_BT & ~is_plan_BT, is_turn_end_BT, trajectory_B, first_turn_B)
    goes_on_BT = 1 - turns.spread(is_before_plan_BT, turns.is_end_BT)
    check_discount(turn_discount)
    return _weighted(turns, value_BT, target_value_BT, reward_BT, turn_discount * goes_on_BT, sharpness, cap)


def cql(
    *,
    value_BT: Tensor,
    q_BT: Tensor,
    reward_BT: Tensor,
    is_action_BT: Tensor,
    is_turn_end_BT: Tensor,
    return_B: Tensor,
    trajectory_B: Tensor,
    first_turn_B: Tensor,
    target_value_BT: Tensor | None = None,
    turn_discount: float = 0.99,
    sharpness: float = 3.0,
) -> Advantage:
    """``w_t = exp(sharpness (Q(s_t, a_t) - max_a Q(s_t, a)))``, with Q learnt conservatively: CQL, arXiv 2006.04779.

    An action is a token, so that all of them can be asked for: ``q_BT`` is Q of the sampled one, ``value_BT`` the
    largest.  Q learns ``Q(s_t, a_t) <- r_t + d_t max_a Q(s_t', a)``, ``d_t`` being ``turn_discount`` at the end of a
    turn, else 1, and nothing following the last token; `conservative` adds the regulariser.  The weight is that of the
    likelihood (``algo/clip=log_prob``), at most 1: the greedy token of Q counts most.  To take the policy out of Q so
    is ours; the paper's is greedy.

    Raises:
        ValueError: a constant out of range, or shapes that disagree.
    """
    check_discount(turn_discount)
    check_weight(sharpness)
    check_shapes(value_BT=value_BT, q_BT=q_BT, reward_BT=reward_BT, is_action_BT=is_action_BT)
    is_counted_BT = is_action_BT & ~return_B.isnan()[:, None]
    slow_BT = value_BT if target_value_BT is None else target_value_BT
    target_BT = token_targets(
        slow_BT, reward_BT, is_counted_BT, is_turn_end_BT, trajectory_B, first_turn_B, turn_discount
    )
    gap_BT = (q_BT - value_BT).detach().to(reward_BT)
    weight_BT = torch.where(is_counted_BT, torch.exp(sharpness * gap_BT), torch.zeros_like(reward_BT))
    return Advantage(weight_BT, target_BT, is_counted_BT)


def token_targets(
    value_BT: Tensor,
    reward_BT: Tensor,
    is_counted_BT: Tensor,
    is_turn_end_BT: Tensor,
    trajectory_B: Tensor,
    first_turn_B: Tensor,
    turn_discount: float,
) -> Tensor:
    """``r_t + d_t V(s_t')`` where counted, else 0: ``d_t`` is ``turn_discount`` at the end of a turn, else 1."""
    zero_BT = torch.zeros_like(reward_BT)
    following_BT = next_sampled(
        x_BT=value_BT.detach().to(reward_BT), is_action_BT=is_counted_BT, trajectory_B=trajectory_B,
        first_turn_B=first_turn_B,
    )  # fmt: skip
    discount_BT = torch.where(is_turn_end_BT, zero_BT + turn_discount, zero_BT + 1)
    return torch.where(is_counted_BT, reward_BT + discount_BT * following_BT, zero_BT)


@dataclass(frozen=True)
class _Turns:
    """The turns of some tokens: what stands at the first and the last one of each, and what follows it."""

    turn_BT: Tensor
    is_counted_BT: Tensor
    is_start_BT: Tensor
    is_end_BT: Tensor
    trajectory_B: Tensor
    first_turn_B: Tensor

    @classmethod
    def of(
        cls, is_counted_BT: Tensor, is_turn_end_BT: Tensor, trajectory_B: Tensor, first_turn_B: Tensor
    ) -> _Turns:
        turn_BT = turn_index(is_action_BT=is_counted_BT, is_turn_end_BT=is_turn_end_BT)
        is_inside_BT = torch.nn.functional.pad(is_counted_BT & ~is_turn_end_BT, (1, 0))[:, :-1]
        return cls(
            turn_BT, is_counted_BT, is_counted_BT & ~is_inside_BT, is_counted_BT & is_turn_end_BT, trajectory_B,
            first_turn_B,
        )  # fmt: skip

    def spread(self, x_BT: Tensor, at_BT: Tensor) -> Tensor:
        """What stands at one token of a turn, at all of them."""
        alone_BT = torch.where(at_BT, x_BT, torch.zeros_like(x_BT))
        return sum_over_turn(x_BT=alone_BT, is_action_BT=self.is_counted_BT, turn_BT=self.turn_BT)

    def first(self, value_BT: Tensor) -> Tensor:
        """``V_k``."""
        return self.spread(value_BT, self.is_start_BT)

    def ahead(self, value_BT: Tensor, reward_BT: Tensor, discount: float | Tensor) -> Tensor:
        """``r_k + discount V_(k+1)``."""
        following_BT = next_sampled(
            x_BT=value_BT, is_action_BT=self.is_start_BT, trajectory_B=self.trajectory_B,
            first_turn_B=self.first_turn_B,
        )  # fmt: skip
        paid_BT = sum_over_turn(x_BT=reward_BT, is_action_BT=self.is_counted_BT, turn_BT=self.turn_BT)
        return paid_BT + discount * self.first(following_BT)

    @property
    def is_q_BT(self) -> Tensor:
        """The last token of turns of more than one."""
        return self.is_end_BT & ~self.is_start_BT

    def last(self, value_BT: Tensor, ahead_BT: Tensor) -> Tensor:
        """``Q_k``; of a turn of one token what it is to learn."""
        has_q_BT = self.spread(torch.ones_like(value_BT), self.is_q_BT) > 0
        return torch.where(has_q_BT, self.spread(value_BT, self.is_q_BT), ahead_BT)

    def advantage(self, advantage_BT: Tensor, *, q_BT: Tensor, ahead_BT: Tensor) -> Advantage:
        """With the targets of V and Q."""
        target_BT = torch.where(self.is_start_BT, q_BT, torch.zeros_like(q_BT))
        return Advantage(
            advantage_BT, torch.where(self.is_q_BT, ahead_BT, target_BT), self.is_start_BT | self.is_end_BT
        )


def _weighted(
    turns: _Turns,
    value_BT: Tensor,
    target_value_BT: Tensor | None,
    reward_BT: Tensor,
    discount: float | Tensor,
    sharpness: float,
    cap: float,
) -> Advantage:
    if not isinstance(discount, Tensor):
        check_discount(discount)
    check_weight(sharpness)
    require_number("cap", cap, "above 0", lambda value: value > 0)
    value_BT = value_BT.detach().to(reward_BT.dtype)
    slow_BT = value_BT if target_value_BT is None else target_value_BT.detach().to(reward_BT.dtype)
    ahead_BT = turns.ahead(value_BT, reward_BT, discount)
    q_BT = turns.last(slow_BT, ahead_BT)
    weight_BT = torch.exp(sharpness * (q_BT - turns.first(value_BT))).clamp(max=cap)
    weight_BT = torch.where(turns.is_counted_BT, weight_BT, torch.zeros_like(weight_BT))
    return turns.advantage(weight_BT, q_BT=q_BT, ahead_BT=ahead_BT)


def check_discount(turn_discount: float) -> None:
    """Raises ValueError unless it is a share."""
    require(0 <= turn_discount <= 1, "turn_discount", turn_discount, "in [0, 1]")


def check_weight(sharpness: float) -> None:
    """Raises ValueError unless it is finite and at least 0."""
    require_number("sharpness", sharpness, "a finite number >= 0", lambda value: 0 <= value < float("inf"))
