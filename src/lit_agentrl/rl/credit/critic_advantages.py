"""Advantage estimators that need a critic: generalised advantage estimation, arXiv 1506.02438, and n-step returns.

``V_t`` is ``value_BT`` at token t: what the critic expects, in environment points, from the state in which
token t is sampled.  Only sampled tokens count: t' is the next sampled token (or turn end) of the trajectory,
over the rows it may have, and ``V_t' = 0`` after the last.  Turn ends are read from ``is_turn_end_BT``, never
inferred from rewards, so that turns with reward 0 count.  ``return_BT = A + V`` before whitening is what the
critic should have said, in points, at ``is_value_target_BT``; 0 elsewhere.

A trajectory whose ``return_B`` is NaN ("unscorable") is left out: no advantage, no target, no part in the
whitening.  Nothing carries gradient.

Shapes: ``return_B``, ``trajectory_B``, ``first_turn_B`` (B,); ``value_BT``, ``reward_BT``, ``is_action_BT``,
``is_turn_end_BT`` (B, T).  All raise ValueError when shapes disagree or a constant makes no sense.
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
    """``A_t = r_t + discount V_t' - V_t + discount gae_lambda A_t'``: PPO, arXiv 1707.06347, equation 11.

    Observation tokens cost no discount step.  ``whiten``: the advantages over all sampled tokens.
    """
    _check_constants(whiten, discount=discount, gae_lambda=gae_lambda)
    steps = _steps(value_BT, reward_BT, is_action_BT, return_B, trajectory_B, first_turn_B)
    error_BT = steps.td_error(steps.reward_BT, steps.is_counted_BT, discount)
    advantage_BT = steps.accumulate(error_BT, steps.is_counted_BT, discount * gae_lambda)
    return steps.advantage(advantage_BT, whiten)


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
    """``A_k = r_k + turn_discount V_e(k+1) - V_e(k) + turn_discount gae_lambda A_k+1``, for all of turn k.

    All tokens of the turn get ``A_k``; ``e(k)`` is its last one and ``r_k`` the sum of ``reward_BT`` over its
    sampled tokens.  The critic is taught at turn ends only, and ``whiten`` counts each turn once.

    Raises:
        ValueError: also if a row ends in sampled tokens that no ``is_turn_end_BT`` closes.
    """
    _check_constants(whiten, turn_discount=turn_discount, gae_lambda=gae_lambda)
    steps = _steps(value_BT, reward_BT, is_action_BT, return_B, trajectory_B, first_turn_B)
    is_counted_BT = steps.is_counted_BT
    turn_BT = turn_index(is_action_BT=is_counted_BT, is_turn_end_BT=is_turn_end_BT)
    is_end_BT = is_counted_BT & is_turn_end_BT
    reward_BT = sum_over_turn(x_BT=steps.reward_BT, is_action_BT=is_counted_BT, turn_BT=turn_BT)
    error_BT = steps.td_error(reward_BT, is_end_BT, turn_discount)
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
    """Credit first between turns, then inside each: bi-level GAE of VAGEN, arXiv 2510.16907 (TRICO).

    At turn ends as `gae_turn`, with the reward at that token as ``r_k``; from there to the start of the turn
    ``A_t = r_t + discount V_t' - V_t + discount gae_lambda A_t'``.  A reward inside a turn (a KL penalty,
    say) thus reaches that token and the earlier ones of its turn, no others.  ``whiten``: the advantages over
    all sampled tokens.

    Raises:
        ValueError: also if a row ends in sampled tokens that no ``is_turn_end_BT`` closes.
    """
    _check_constants(whiten, discount=discount, turn_discount=turn_discount, gae_lambda=gae_lambda)
    steps = _steps(value_BT, reward_BT, is_action_BT, return_B, trajectory_B, first_turn_B)
    turn_index(is_action_BT=steps.is_counted_BT, is_turn_end_BT=is_turn_end_BT)  # every turn is closed
    is_end_BT = steps.is_counted_BT & is_turn_end_BT
    turn_error_BT = steps.td_error(steps.reward_BT, is_end_BT, turn_discount)
    turn_BT = steps.accumulate(turn_error_BT, is_end_BT, turn_discount * gae_lambda)
    token_error_BT = steps.td_error(steps.reward_BT, steps.is_counted_BT, discount)
    decay_BT = (~is_end_BT).to(turn_BT.dtype) * (discount * gae_lambda)  # 0: an end starts the sum anew
    error_BT = torch.where(is_end_BT, turn_BT, token_error_BT)
    return steps.advantage(steps.accumulate(error_BT, steps.is_counted_BT, decay_BT), whiten)


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
    """``A_t = r_t + ... + discount^(n-1) r_(t+n-1) + discount^n V_(t+n) - V_t``: A3C, arXiv 1602.01783, section 4.

    The sampled tokens of a trajectory are cut into segments of ``steps``; t+n is where the next segment begins, so
    that n falls from ``steps`` at the first token of a segment to 1 at its last.  Behind the last token V is 0.
    ``steps`` at least as long as every trajectory trusts the rewards alone.  ``whiten``: the advantages over all
    sampled tokens.

    Raises:
        ValueError: also if ``steps`` is no whole number >= 1.
    """
    require_whole("steps", steps, 1)
    _check_constants(whiten, discount=discount)
    rows = _steps(value_BT, reward_BT, is_action_BT, return_B, trajectory_B, first_turn_B)
    error_BT = rows.td_error(rows.reward_BT, rows.is_counted_BT, discount)
    left_BT = rows.accumulate(
        torch.ones_like(error_BT), rows.is_counted_BT, 1.0
    )  # tokens from here to the end
    index_B, num = trajectory_index(trajectory_B)
    length_B = segment_sum(rows.is_counted_BT.sum(1).to(left_BT), index_B, num)[index_B]
    is_last_BT = (length_B[:, None] - left_BT + 1) % steps == 0  # of a segment
    decay_BT = (~is_last_BT).to(error_BT) * discount
    return rows.advantage(rows.accumulate(error_BT, rows.is_counted_BT, decay_BT), whiten)


@dataclass(frozen=True)
class _Steps:
    """Rewards and values, 0 where a token does not count, and how rows are chained."""

    reward_BT: Tensor
    value_BT: Tensor
    is_counted_BT: Tensor
    trajectory_B: Tensor
    first_turn_B: Tensor

    def td_error(self, reward_BT: Tensor, is_step_BT: Tensor, discount: float) -> Tensor:
        """``r_t + discount V_t' - V_t``, t' the next step; only meaningful at ``is_step_BT``."""
        following_BT = next_sampled(
            x_BT=self.value_BT,
            is_action_BT=is_step_BT,
            trajectory_B=self.trajectory_B,
            first_turn_B=self.first_turn_B,
        )
        return reward_BT + discount * following_BT - self.value_BT

    def accumulate(self, error_BT: Tensor, is_step_BT: Tensor, decay: float | Tensor) -> Tensor:
        """``A_t = error_t + decay * A_t'`` at ``is_step_BT``, 0 elsewhere."""
        return return_to_go(
            reward_BT=error_BT,
            is_action_BT=is_step_BT,
            trajectory_B=self.trajectory_B,
            first_turn_B=self.first_turn_B,
            discount=decay,
        )

    def advantage(self, advantage_BT: Tensor, whiten: bool) -> Advantage:
        """Advantage and critic target at every counted token."""
        return_BT = advantage_BT + self.value_BT
        if whiten:
            advantage_BT = masked_whiten(advantage_BT, self.is_counted_BT)
        return Advantage(advantage_BT, return_BT, self.is_counted_BT)


def _steps(
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
