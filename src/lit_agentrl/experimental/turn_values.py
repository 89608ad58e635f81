"""Off-policy credit from a critic trained by temporal differences: ArCHer, IQL, CQL.

The rows may come from any policy.  Notation, shapes and the treatment of NaN returns are those of
``critic_advantages.py``.  ``target_value_BT`` holds values of the critic's target network (``critic.target_rate``);
without it targets use ``value_BT``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_agentrl.checks import require, require_number
from lit_agentrl.rl.credit.advantages import Advantage
from lit_agentrl.rl.masked import check_shapes, masked_whiten
from lit_agentrl.rl.returns import next_sampled, sum_over_turn, turn_index

_REPLAY = 1  # `Source.REPLAY`; rl/ imports no batch types


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
    """Compute advantages with a turn-level critic: ArCHer, arXiv 2402.19446.

    ``A_k = Q_k - V_k`` at all tokens of turn k.  One critic predicts both: ``V_k`` is its value before the first token
    of the turn, ``Q_k`` its value before the last one, when the reply is complete except for its end.  Its targets are

        V_k <- Q_k,        Q_k <- r_k + turn_discount V_(k+1),    V after the last turn is 0

    at these two tokens only, computed from ``target_value_BT``, or else from the values before the update, which act as
    a target network updated once per iteration.  ``r_k`` sums ``reward_BT`` over the turn.  A turn of one token has
    ``V_k`` only; the target of ``Q_k`` replaces ``Q_k``.  Returns are not used.

    ``Q_k`` learns from rows of any policy.  ``V_k`` is the mean of Q over replies of the current policy, so it learns
    from rows of this iteration alone: their recorded replies are such draws.  The paper draws further replies at stored
    states.  Rows of an earlier policy (``source_B`` of 1) give V no target and have an advantage of 0.  ``whiten``
    whitens the advantages of the other rows and counts each turn once.

    Example: at one state, replies of this iteration have Q 1, 1 and 4, and a reply of an earlier policy has Q 10: V
    learns the mean of 1, 1 and 4, which is 2.  Nothing carries gradient.

    Raises:
        ValueError: a constant is out of range, shapes disagree, or a row ends in sampled tokens after its last turn
            end.
    """
    check_discount(turn_discount)
    require(isinstance(whiten, bool), "whiten", whiten, "true or false")
    check_shapes(value_BT=value_BT, reward_BT=reward_BT, is_action_BT=is_action_BT, source_B=source_B)
    is_counted_BT = is_action_BT & ~return_B.isnan()[:, None]
    turns = _Turns.from_columns(is_counted_BT, is_turn_end_BT, trajectory_B, first_turn_B)
    value_BT = value_BT.detach().to(reward_BT.dtype)
    slow_BT = value_BT if target_value_BT is None else target_value_BT.detach().to(reward_BT.dtype)
    advantage_BT = turns.get_last(
        value_BT, turns.compute_target(value_BT, reward_BT, turn_discount)
    ) - turns.get_first(value_BT)
    is_new_BT = is_counted_BT & (source_B != _REPLAY)[:, None]
    if whiten:
        new_BT = masked_whiten(advantage_BT, turns.is_end_BT & is_new_BT)
        advantage_BT = turns.copy_from(new_BT, turns.is_end_BT)
    q_target_BT = turns.compute_target(slow_BT, reward_BT, turn_discount)
    return turns.make_advantage(
        torch.where(is_new_BT, advantage_BT, torch.zeros_like(advantage_BT)),
        q_BT=turns.get_last(slow_BT, q_target_BT),
        q_target_BT=q_target_BT,
        is_of_policy_BT=is_new_BT,
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
    """Compute advantage-weighted imitation weights per turn: implicit Q-learning, arXiv 2110.06169.

    ``w_k = min(exp(sharpness (Q_k - V_k)), cap)`` at all tokens of turn k; an action is a reply.  ``V_k``, ``Q_k`` and
    their targets are those of `archer`; the loss `expectile` fits V to an upper expectile of Q (equations 5 and 6).  Q
    comes from the target network, V from the current weights.  ``algo/clip=log_prob`` multiplies the log-likelihood by
    the weight (equation 7), which has no unit and no gradient; ``sharpness=0`` imitates all rows equally.

    Raises:
        ValueError: a constant is out of range, shapes disagree, or a row ends in sampled tokens after its last turn
            end.
    """
    check_shapes(value_BT=value_BT, reward_BT=reward_BT, is_action_BT=is_action_BT, return_B=return_B)
    is_counted_BT = is_action_BT & ~return_B.isnan()[:, None]
    turns = _Turns.from_columns(is_counted_BT, is_turn_end_BT, trajectory_B, first_turn_B)
    return _weight_turns(turns, value_BT, target_value_BT, reward_BT, turn_discount, sharpness, cap)


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
    """Compute `iql` of the executor's turns, with each sub-task as its own episode.

    V is 0 after the last turn before a plan, as at the end of the episode.  Plans have weight 0 and no critic target.
    This is the offline executor of HRL-TAR.  No primary source of it is known.

    Raises:
        ValueError: see `iql`.
    """
    check_shapes(value_BT=value_BT, is_action_BT=is_action_BT, is_plan_BT=is_plan_BT, return_B=return_B)
    is_counted_BT = is_action_BT & ~return_B.isnan()[:, None]
    is_before_plan_BT = next_sampled(
        x_BT=is_plan_BT.to(reward_BT), is_action_BT=is_counted_BT & is_turn_end_BT,
        trajectory_B=trajectory_B, first_turn_B=first_turn_B,
    )  # fmt: skip
    turns = _Turns.from_columns(is_counted_BT & ~is_plan_BT, is_turn_end_BT, trajectory_B, first_turn_B)
    continues_BT = 1 - turns.copy_from(is_before_plan_BT, turns.is_end_BT)
    check_discount(turn_discount)
    return _weight_turns(
        turns, value_BT, target_value_BT, reward_BT, turn_discount * continues_BT, sharpness, cap
    )


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
    """Compute imitation weights by conservative Q-learning per token: CQL, arXiv 2006.04779.

    ``w_t = exp(sharpness (Q(s_t, a_t) - max_a Q(s_t, a)))``.  An action is a token, so Q of all actions is available:
    ``q_BT`` is Q of the sampled token, ``value_BT`` the maximum over tokens.  The target is
    ``Q(s_t, a_t) <- r_t + d_t max_a Q(s_t', a)``, where ``d_t`` is ``turn_discount`` at the end of a turn, else 1, and
    the second term is 0 after the last token; the loss `conservative` adds the regulariser.  ``algo/clip=log_prob``
    multiplies the log-likelihood by the weight, which is 1 for the greedy token and smaller for all others, without
    gradient.  Extracting a policy by weighted likelihood is ours; the policy of the paper is greedy.

    Raises:
        ValueError: a constant is out of range, or shapes disagree.
    """
    check_discount(turn_discount)
    check_weight(sharpness)
    check_shapes(value_BT=value_BT, q_BT=q_BT, reward_BT=reward_BT, is_action_BT=is_action_BT)
    is_counted_BT = is_action_BT & ~return_B.isnan()[:, None]
    slow_BT = value_BT if target_value_BT is None else target_value_BT
    target_BT = compute_token_targets(
        slow_BT, reward_BT, is_counted_BT, is_turn_end_BT, trajectory_B, first_turn_B, turn_discount
    )
    gap_BT = (q_BT - value_BT).detach().to(reward_BT)
    weight_BT = torch.where(is_counted_BT, torch.exp(sharpness * gap_BT), torch.zeros_like(reward_BT))
    return Advantage(weight_BT, target_BT, is_counted_BT)


def compute_token_targets(
    value_BT: Tensor,
    reward_BT: Tensor,
    is_counted_BT: Tensor,
    is_turn_end_BT: Tensor,
    trajectory_B: Tensor,
    first_turn_B: Tensor,
    turn_discount: float,
) -> Tensor:
    """Return ``r_t + d_t V(s_t')`` at counted tokens, 0 elsewhere.

    ``d_t`` is ``turn_discount`` at the end of a turn, else 1.
    """
    zero_BT = torch.zeros_like(reward_BT)
    following_BT = next_sampled(
        x_BT=value_BT.detach().to(reward_BT), is_action_BT=is_counted_BT, trajectory_B=trajectory_B,
        first_turn_B=first_turn_B,
    )  # fmt: skip
    discount_BT = torch.where(is_turn_end_BT, zero_BT + turn_discount, zero_BT + 1)
    return torch.where(is_counted_BT, reward_BT + discount_BT * following_BT, zero_BT)


@dataclass(frozen=True)
class _Turns:
    """The turns of a batch, with the values at their first and last tokens."""

    turn_BT: Tensor
    is_counted_BT: Tensor
    is_start_BT: Tensor
    is_end_BT: Tensor
    trajectory_B: Tensor
    first_turn_B: Tensor

    @classmethod
    def from_columns(
        cls, is_counted_BT: Tensor, is_turn_end_BT: Tensor, trajectory_B: Tensor, first_turn_B: Tensor
    ) -> _Turns:
        turn_BT = turn_index(is_action_BT=is_counted_BT, is_turn_end_BT=is_turn_end_BT)
        is_inside_BT = torch.nn.functional.pad(is_counted_BT & ~is_turn_end_BT, (1, 0))[:, :-1]
        return cls(
            turn_BT, is_counted_BT, is_counted_BT & ~is_inside_BT, is_counted_BT & is_turn_end_BT, trajectory_B,
            first_turn_B,
        )  # fmt: skip

    def copy_from(self, x_BT: Tensor, at_BT: Tensor) -> Tensor:
        """Copy the value at the marked token of each turn to all of its tokens."""
        alone_BT = torch.where(at_BT, x_BT, torch.zeros_like(x_BT))
        return sum_over_turn(x_BT=alone_BT, is_action_BT=self.is_counted_BT, turn_BT=self.turn_BT)

    def get_first(self, value_BT: Tensor) -> Tensor:
        """Return ``V_k``, the value at the first token, at all tokens of turn k."""
        return self.copy_from(value_BT, self.is_start_BT)

    def compute_target(self, value_BT: Tensor, reward_BT: Tensor, discount: float | Tensor) -> Tensor:
        """Return ``r_k + discount V_(k+1)`` at all tokens of turn k."""
        following_BT = next_sampled(
            x_BT=value_BT, is_action_BT=self.is_start_BT, trajectory_B=self.trajectory_B,
            first_turn_B=self.first_turn_B,
        )  # fmt: skip
        turn_reward_BT = sum_over_turn(x_BT=reward_BT, is_action_BT=self.is_counted_BT, turn_BT=self.turn_BT)
        return turn_reward_BT + discount * self.get_first(following_BT)

    @property
    def is_q_BT(self) -> Tensor:
        """The last token of each turn of at least two tokens."""
        return self.is_end_BT & ~self.is_start_BT

    def get_last(self, value_BT: Tensor, q_target_BT: Tensor) -> Tensor:
        """Return ``Q_k`` at all tokens of turn k, or its target for one-token turns."""
        has_q_BT = self.copy_from(torch.ones_like(value_BT), self.is_q_BT) > 0
        return torch.where(has_q_BT, self.copy_from(value_BT, self.is_q_BT), q_target_BT)

    def make_advantage(
        self,
        advantage_BT: Tensor,
        *,
        q_BT: Tensor,
        q_target_BT: Tensor,
        is_of_policy_BT: Tensor | None = None,
    ) -> Advantage:
        """Return the advantage with the targets of V and Q.

        If ``is_of_policy_BT`` is given, V has a target only at these tokens.
        """
        is_v_BT = self.is_start_BT if is_of_policy_BT is None else self.is_start_BT & is_of_policy_BT
        target_BT = torch.where(is_v_BT, q_BT, torch.zeros_like(q_BT))
        return Advantage(
            advantage_BT, torch.where(self.is_q_BT, q_target_BT, target_BT), is_v_BT | self.is_q_BT
        )


def _weight_turns(
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
    q_target_BT = turns.compute_target(value_BT, reward_BT, discount)
    q_BT = turns.get_last(slow_BT, q_target_BT)
    weight_BT = torch.exp(sharpness * (q_BT - turns.get_first(value_BT))).clamp(max=cap)
    weight_BT = torch.where(turns.is_counted_BT, weight_BT, torch.zeros_like(weight_BT))
    return turns.make_advantage(weight_BT, q_BT=q_BT, q_target_BT=q_target_BT)


def check_discount(turn_discount: float) -> None:
    """Raise ValueError unless ``turn_discount`` is in [0, 1]."""
    require(0 <= turn_discount <= 1, "turn_discount", turn_discount, "in [0, 1]")


def check_weight(sharpness: float) -> None:
    """Raise ValueError unless ``sharpness`` is finite and at least 0."""
    require_number("sharpness", sharpness, "a finite number >= 0", lambda value: 0 <= value < float("inf"))
