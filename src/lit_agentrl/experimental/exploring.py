"""Losses, pairs and advantages of a policy against an opponent: XPO and Nash-MD."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_agentrl.checks import require
from lit_agentrl.rl.credit.advantages import Advantage, broadcast_to_actions
from lit_agentrl.rl.credit.comparison_advantages import count_compared
from lit_agentrl.rl.masked import Trajectories, check_shapes, find_trajectories
from lit_agentrl.rl.objective import Tensors
from lit_agentrl.rl.policy.penalties import cleaned, policy_metrics
from lit_agentrl.rl.preference.objective import PreferenceLoss
from lit_agentrl.rl.preference.pairing import Pairs, all_pairs, select_pairs


@dataclass(frozen=True, kw_only=True)
class Exploring(PreferenceLoss):
    """A preference loss with an exploration bonus: XPO, arXiv 2405.21046.

    ``L(pairs) + alpha * mean over the reference's trajectories of sum_t log p``.  The second term lowers the
    probability of trajectories that the reference samples.  Rows with ``is_opponent_B`` are those of the reference; the
    mean, in nats, is over all its trajectories in a minibatch, with or without a pair, on all ranks.  Gradient flows
    through ``logp_BT`` of both terms.

    Attributes:
        alpha: weight of the second term, per nat, >= 0; with 0 the loss is bit-identical to the loss of the pairs.

    Raises:
        ValueError: see `PreferenceLoss`; or ``alpha`` is negative or not finite.
    """

    alpha: float

    def __post_init__(self) -> None:
        """Check the constants."""
        super().__post_init__()
        require(
            0 <= self.alpha < math.inf, "alpha", self.alpha, "finite and >= 0; 0 is the loss of pairs alone"
        )

    def needs(self, tensor: str) -> bool:
        """Return True for ``is_opponent_B`` and the tensors of the preference loss."""
        return tensor == "is_opponent_B" or super().needs(tensor)

    def prepare(self, tensors: Tensors) -> Tensors:
        """Prepare the pairs, and retain all trajectories of the reference."""
        columns = super().prepare(tensors)
        if self.alpha:
            columns["keep_B"] = columns["keep_B"] | _find_explored(tensors)
        return columns

    def count(self, tensors: Tensors) -> Tensors:
        """Return the counts of pairs, and the number of trajectories of the reference."""
        number = len(torch.unique(tensors["trajectory_B"][_find_explored(tensors)]))
        return super().count(tensors) | {
            "num_explored": torch.tensor(number, device=tensors["trajectory_B"].device)
        }

    def loss(self, tensors: Tensors) -> tuple[Tensor, Tensors]:
        """Return the loss of the pairs plus the weighted mean log-prob, and metrics."""
        loss, metrics = super().loss(tensors)
        is_explored_B = _find_explored(tensors)
        summed = torch.where(
            tensors["is_action_BT"] & is_explored_B[:, None], tensors["logp_BT"], 0.0
        ).double().sum()  # fmt: skip
        if self.alpha:
            loss = loss + (self.alpha * summed / tensors["num_explored"].clamp(min=1)).to(loss.dtype)
        number = len(torch.unique(tensors["trajectory_B"][is_explored_B]))
        opponent = {"opponent_logp": torch.stack([summed.detach(), summed.new_tensor(number)])}
        return loss, metrics | policy_metrics(cleaned(self.measured(tensors))) | opponent

    def measured(self, tensors: Tensors) -> Tensors:
        """Return the rows without the sampled tokens of the reference."""
        return tensors | {"is_action_BT": tensors["is_action_BT"] & ~tensors["is_opponent_B"][:, None]}


def _find_explored(tensors: Tensors) -> Tensor:
    """Find rows of the reference with sampled tokens and a return, (B,)."""
    return tensors["is_opponent_B"] & tensors["is_action_BT"].any(1) & ~tensors["return_B"].isnan()


def opposed(
    *,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    is_action_BT: Tensor,
    turn_BT: Tensor,
    first_turn_B: Tensor,
    tokens_BT: Tensor,
    is_opponent_B: Tensor,
    min_gap: float = 0.0,
) -> Pairs:
    """Pair each trajectory of the policy with each of the opponent: XPO.

    The trajectory of either player may be the chosen one.  ``is_opponent_B`` marks rows of the opponent; the other
    arguments, the result and the errors are those of `all_pairs`.
    """
    pairs = all_pairs(
        return_B=return_B, group_B=group_B, trajectory_B=trajectory_B, is_action_BT=is_action_BT,
        turn_BT=turn_BT, first_turn_B=first_turn_B, tokens_BT=tokens_BT, min_gap=min_gap,
    )  # fmt: skip
    units = pairs.units
    row_N = (units.place_A // max(is_action_BT.shape[1], 1))[units.start_N]
    is_opponent_N = is_opponent_B[row_N]
    return select_pairs(pairs, is_opponent_N[pairs.chosen_P] != is_opponent_N[pairs.rejected_P])


def against_opponent(
    *,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    is_action_BT: Tensor,
    is_opponent_B: Tensor,
    baseline: float = 0.5,
) -> Advantage:
    """Compute the share of opponents that a trajectory beats: Nash-MD, arXiv 2312.00886.

    ``A_i = 1/M sum_j P(i > j) - baseline`` over the M opponents j of the group; a tie counts as one half.  Opponents
    (``is_opponent_B``) and groups without one get 0.  ``baseline`` is in [0, 1]; the other arguments are as for
    `against_opponent_regularised`.  Nothing carries gradient.

    Raises:
        ValueError: ``baseline`` is out of range, or shapes disagree.
    """
    trajectories = find_trajectories(return_B=return_B, group_B=group_B, trajectory_B=trajectory_B)
    value_S, _ = _compare_with_opponents(trajectories, is_opponent_B, baseline)
    return Advantage(broadcast_to_actions(trajectories.to_rows(value_S, return_B), is_action_BT))


def against_opponent_regularised(
    *,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    is_action_BT: Tensor,
    is_opponent_B: Tensor,
    old_logp_BT: Tensor,
    ref_logp_BT: Tensor,
    baseline: float = 0.5,
    coef: float = 0.008,
) -> Advantage:
    """Subtract the whole trajectory's log-ratio from its win rate: Nash-MD-PG, arXiv 2312.00886.

    ``A_i = 1/M sum_j P(i > j) - baseline - coef * D_i`` with ``D_i = sum_t (old_logp - ref_logp)`` over all sampled
    tokens of the trajectory, in nats.  With ``-A_i sum_t log p_t`` as the loss, the expected step is the gradient of
    ``P(policy > opponent) - coef * KL(policy || reference)`` for the trajectory's distribution and a fixed opponent.
    `against_opponent` with ``algo/kl=loss_k1_plus_nash`` has the KL of each token given the earlier ones instead, which
    ignores how a token affects later log-ratios.

    Example: with win rate 0.8, log-ratios 0.2 and -0.1, and coef 0.1, every token gets 0.8 - 0.5 - 0.1 * 0.1 = 0.29.

    Args:
        return_B: in reward units; NaN leaves the trajectory out.
        group_B: groups must be complete.
        trajectory_B: rows of one trajectory share a number.
        is_action_BT: sampled tokens.
        is_opponent_B: rows of the opponent.
        baseline: in [0, 1].
        old_logp_BT: log-prob of each sampled token under the policy that played, nats.
        ref_logp_BT: the same under the reference, nats.
        coef: tau of the paper, per nat, finite and > 0.

    Returns:
        The advantage of each sampled token, without gradient.

    Raises:
        ValueError: ``baseline`` or ``coef`` is out of range, or shapes disagree.
    """
    require(0 < coef < math.inf, "coef", coef, "finite and > 0; 0 is algo/advantage=against_opponent")
    check_shapes(old_logp_BT=old_logp_BT, ref_logp_BT=ref_logp_BT, is_action_BT=is_action_BT)
    trajectories = find_trajectories(return_B=return_B, group_B=group_B, trajectory_B=trajectory_B)
    value_S, is_compared_S = _compare_with_opponents(trajectories, is_opponent_B, baseline)
    ratio_S = trajectories.sum_tokens((old_logp_BT - ref_logp_BT).detach(), is_action_BT)
    value_S = torch.where(is_compared_S, value_S - coef * ratio_S, value_S)
    return Advantage(broadcast_to_actions(trajectories.to_rows(value_S, return_B), is_action_BT))


def _compare_with_opponents(
    trajectories: Trajectories, is_opponent_B: Tensor, baseline: float
) -> tuple[Tensor, Tensor]:
    """Compute win rates minus the baseline, and which trajectories were compared; both (S,).

    Opponents and groups without one get 0.
    """
    require(0 <= baseline <= 1, "baseline", baseline, "in [0, 1]")
    is_opponent_S = torch.zeros_like(trajectories.return_S)
    is_scored_B = trajectories.index_B >= 0
    is_opponent_S[trajectories.index_B[is_scored_B]] = is_opponent_B[is_scored_B].to(is_opponent_S)
    below_S, equal_S, size_S = count_compared(trajectories, is_opponent_S)
    rate_S = (below_S + 0.5 * equal_S) / size_S.clamp(min=1)
    is_compared_S = (size_S > 0) & (is_opponent_S == 0)
    return torch.where(is_compared_S, rate_S - baseline, torch.zeros_like(rate_S)), is_compared_S


def own(*, is_opponent_B: Tensor) -> Tensor:
    """Select the policy's rows, (B,); those of the opponent serve only for comparison."""
    return ~is_opponent_B
