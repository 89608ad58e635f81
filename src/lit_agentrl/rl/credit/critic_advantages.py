"""Advantage estimators with a critic: GAE, arXiv 1506.02438, and n-step returns.

``V_t`` is ``value_BT`` at token t: the return, in reward units, that the critic predicts from the state in which token
t is sampled.  Only sampled tokens count: t' is the next sampled token (or turn end) of the trajectory, across its rows,
and ``V_t' = 0`` after the last.  Turn ends come from ``is_turn_end_BT``, not from rewards, so that turns with reward 0
count.  The target of the critic is ``return_BT = A + V`` before whitening, in reward units, at ``is_value_target_BT``;
0 elsewhere.

A trajectory whose ``return_B`` is NaN ("unscorable") is left out: it has no advantage and no target, and whitening
ignores it.  No result carries gradient.

Shapes: ``return_B``, ``trajectory_B``, ``first_turn_B`` (B,); ``value_BT``, ``reward_BT``, ``is_action_BT``,
``is_turn_end_BT`` (B, T).  All functions raise ValueError when shapes disagree or a constant is invalid.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_agentrl.checks import require, require_whole
from lit_agentrl.rl.credit.advantages import Advantage
from lit_agentrl.rl.masked import check_shapes, masked_whiten, segment_sum, trajectory_index
from lit_agentrl.rl.returns import next_sampled, return_to_go, sum_over_turn, turn_index


def gae_token(
    *,
    value_BT: Tensor,
    reward_BT: Tensor,
    is_action_BT: Tensor,
    return_B: Tensor,
    trajectory_B: Tensor,
    first_turn_B: Tensor,
    discount: float = 1.0,
    gae_lambda: float = 0.95,
    whiten: bool = True,
) -> Advantage:
    """Generalised advantage estimation per token: PPO, arXiv 1707.06347, equation 11.

    ``A_t = r_t + discount V_t' - V_t + discount gae_lambda A_t'``.  Observation tokens do not count as discount steps.
    ``whiten`` whitens the advantages over all sampled tokens.
    """
    _check_constants(whiten, discount=discount, gae_lambda=gae_lambda)
    steps = _make_steps(value_BT, reward_BT, is_action_BT, return_B, trajectory_B, first_turn_B)
    error_BT = steps.compute_td_error(steps.reward_BT, steps.is_counted_BT, discount)
    advantage_BT = steps.accumulate(error_BT, steps.is_counted_BT, discount * gae_lambda)
    return steps.make_advantage(advantage_BT, whiten)


def gae_turn(
    *,
    value_BT: Tensor,
    reward_BT: Tensor,
    is_action_BT: Tensor,
    is_turn_end_BT: Tensor,
    return_B: Tensor,
    trajectory_B: Tensor,
    first_turn_B: Tensor,
    turn_discount: float = 0.95,
    gae_lambda: float = 0.95,
    whiten: bool = True,
) -> Advantage:
    """Generalised advantage estimation per turn.

    ``A_k = r_k + turn_discount V_e(k+1) - V_e(k) + turn_discount gae_lambda A_k+1`` at all tokens of turn k, where
    ``e(k)`` is the last token of turn k and ``r_k`` is the sum of ``reward_BT`` over its sampled tokens.  The critic
    has targets at turn ends only, and ``whiten`` counts each turn once.

    Raises:
        ValueError: also if a row ends in sampled tokens after its last turn end.
    """
    _check_constants(whiten, turn_discount=turn_discount, gae_lambda=gae_lambda)
    steps = _make_steps(value_BT, reward_BT, is_action_BT, return_B, trajectory_B, first_turn_B)
    is_counted_BT = steps.is_counted_BT
    turn_BT = turn_index(is_action_BT=is_counted_BT, is_turn_end_BT=is_turn_end_BT)
    is_end_BT = is_counted_BT & is_turn_end_BT
    reward_BT = sum_over_turn(x_BT=steps.reward_BT, is_action_BT=is_counted_BT, turn_BT=turn_BT)
    error_BT = steps.compute_td_error(reward_BT, is_end_BT, turn_discount)
    end_BT = steps.accumulate(error_BT, is_end_BT, turn_discount * gae_lambda)
    target_BT = torch.where(is_end_BT, end_BT + steps.value_BT, torch.zeros_like(end_BT))
    if whiten:
        end_BT = masked_whiten(end_BT, is_end_BT)
    advantage_BT = sum_over_turn(x_BT=end_BT, is_action_BT=is_counted_BT, turn_BT=turn_BT)
    return Advantage(advantage_BT, target_BT, is_end_BT)


def gae_bilevel(
    *,
    value_BT: Tensor,
    reward_BT: Tensor,
    is_action_BT: Tensor,
    is_turn_end_BT: Tensor,
    return_B: Tensor,
    trajectory_B: Tensor,
    first_turn_B: Tensor,
    discount: float = 1.0,
    turn_discount: float = 0.95,
    gae_lambda: float = 1.0,
    whiten: bool = True,
) -> Advantage:
    """Bi-level GAE, first between turns, then within each: VAGEN, arXiv 2510.16907.

    At turn ends it is `gae_turn` with the reward at that token as ``r_k``; from there back to the start of the turn
    ``A_t = r_t + discount V_t' - V_t + discount gae_lambda A_t'``.  A reward within a turn (such as a KL penalty)
    therefore affects that token and the earlier ones of its turn only.  ``whiten`` whitens the advantages over all
    sampled tokens.

    Raises:
        ValueError: also if a row ends in sampled tokens after its last turn end.
    """
    _check_constants(whiten, discount=discount, turn_discount=turn_discount, gae_lambda=gae_lambda)
    steps = _make_steps(value_BT, reward_BT, is_action_BT, return_B, trajectory_B, first_turn_B)
    # raises if a turn has no end
    turn_index(is_action_BT=steps.is_counted_BT, is_turn_end_BT=is_turn_end_BT)
    is_end_BT = steps.is_counted_BT & is_turn_end_BT
    turn_error_BT = steps.compute_td_error(steps.reward_BT, is_end_BT, turn_discount)
    turn_BT = steps.accumulate(turn_error_BT, is_end_BT, turn_discount * gae_lambda)
    token_error_BT = steps.compute_td_error(steps.reward_BT, steps.is_counted_BT, discount)
    decay_BT = (~is_end_BT).to(turn_BT.dtype) * (discount * gae_lambda)  # 0 restarts the sum at a turn end
    error_BT = torch.where(is_end_BT, turn_BT, token_error_BT)
    return steps.make_advantage(steps.accumulate(error_BT, steps.is_counted_BT, decay_BT), whiten)


def n_step(
    *,
    value_BT: Tensor,
    reward_BT: Tensor,
    is_action_BT: Tensor,
    return_B: Tensor,
    trajectory_B: Tensor,
    first_turn_B: Tensor,
    steps: int = 5,
    discount: float = 1.0,
    whiten: bool = False,
) -> Advantage:
    """Advantage of n-step returns: A3C, arXiv 1602.01783, section 4.

    ``A_t = r_t + ... + discount^(n-1) r_(t+n-1) + discount^n V_(t+n) - V_t``.  The sampled tokens of a trajectory are
    cut into segments of ``steps``; t+n is the start of the next segment, so n falls from ``steps`` at the first token
    of a segment to 1 at its last.  After the last token V is 0.  If ``steps`` is at least the length of every
    trajectory, returns use rewards only.  ``whiten`` whitens the advantages over all sampled tokens.

    Raises:
        ValueError: also if ``steps`` is not a whole number >= 1.
    """
    require_whole("steps", steps, 1)
    _check_constants(whiten, discount=discount)
    rows = _make_steps(value_BT, reward_BT, is_action_BT, return_B, trajectory_B, first_turn_B)
    error_BT = rows.compute_td_error(rows.reward_BT, rows.is_counted_BT, discount)
    # number of counted tokens from each token to the trajectory's end, itself included
    remaining_BT = rows.accumulate(torch.ones_like(error_BT), rows.is_counted_BT, 1.0)
    index_B, num = trajectory_index(trajectory_B)
    length_B = segment_sum(rows.is_counted_BT.sum(1).to(remaining_BT), index_B, num)[index_B]
    is_segment_end_BT = (length_B[:, None] - remaining_BT + 1) % steps == 0
    decay_BT = (~is_segment_end_BT).to(error_BT) * discount
    return rows.make_advantage(rows.accumulate(error_BT, rows.is_counted_BT, decay_BT), whiten)


@dataclass(frozen=True)
class _Steps:
    """Rewards and values (0 where a token does not count), and the order of rows."""

    reward_BT: Tensor
    value_BT: Tensor
    is_counted_BT: Tensor
    trajectory_B: Tensor
    first_turn_B: Tensor

    def compute_td_error(self, reward_BT: Tensor, is_step_BT: Tensor, discount: float) -> Tensor:
        """Return ``r_t + discount V_t' - V_t``, t' the next step; valid at ``is_step_BT``."""
        following_BT = next_sampled(
            x_BT=self.value_BT,
            is_action_BT=is_step_BT,
            trajectory_B=self.trajectory_B,
            first_turn_B=self.first_turn_B,
        )
        return reward_BT + discount * following_BT - self.value_BT

    def accumulate(self, error_BT: Tensor, is_step_BT: Tensor, decay: float | Tensor) -> Tensor:
        """Return ``A_t = error_t + decay * A_t'`` at ``is_step_BT``, 0 elsewhere."""
        return return_to_go(
            reward_BT=error_BT,
            is_action_BT=is_step_BT,
            trajectory_B=self.trajectory_B,
            first_turn_B=self.first_turn_B,
            discount=decay,
        )

    def make_advantage(self, advantage_BT: Tensor, whiten: bool) -> Advantage:
        """Return the advantage and the critic target at every counted token."""
        return_BT = advantage_BT + self.value_BT
        if whiten:
            advantage_BT = masked_whiten(advantage_BT, self.is_counted_BT)
        return Advantage(advantage_BT, return_BT, self.is_counted_BT)


def _make_steps(
    value_BT: Tensor,
    reward_BT: Tensor,
    is_action_BT: Tensor,
    return_B: Tensor,
    trajectory_B: Tensor,
    first_turn_B: Tensor,
) -> _Steps:
    check_shapes(value_BT=value_BT, reward_BT=reward_BT, is_action_BT=is_action_BT, return_B=return_B)
    is_counted_BT = is_action_BT & ~return_B.isnan()[:, None]
    zero_BT = torch.zeros_like(reward_BT)
    return _Steps(
        reward_BT=torch.where(is_counted_BT, reward_BT.detach(), zero_BT),
        value_BT=torch.where(is_counted_BT, value_BT.detach().to(reward_BT.dtype), zero_BT),
        is_counted_BT=is_counted_BT,
        trajectory_B=trajectory_B,
        first_turn_B=first_turn_B,
    )


def _check_constants(whiten: bool, **shares: float) -> None:
    for name, share in shares.items():
        require(0 <= share <= 1, name, share, "in [0, 1]")
    require(isinstance(whiten, bool), "whiten", whiten, "true or false")
