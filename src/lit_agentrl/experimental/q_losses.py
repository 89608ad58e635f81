"""Heads and losses of a critic that predicts Q and V off-policy: IQL, CQL, ILQL.

Notation and shapes are those of ``rl/credit/value_loss.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lit_agentrl.checks import require
from lit_agentrl.experimental.turn_values import check_discount, check_weight, compute_token_targets
from lit_agentrl.models.heads import ValueHead
from lit_agentrl.models.logprobs import ensure_float32
from lit_agentrl.rl.credit.advantages import Advantage
from lit_agentrl.rl.credit.value_loss import ValueLoss, mask_targets, select_targets, squared
from lit_agentrl.rl.masked import check_shapes


class TokenValues(ValueHead):
    """A head that gives ``Q(s, a)`` of every token a, in reward units.

    ``value_BT`` is ``max_a Q(s, a)``, ``q_BT`` the Q of the sampled token, and ``spread_BT``
    ``logsumexp_a Q(s, a) - Q(s, sampled)``, which is at least 0.
    """

    columns: tuple[str, ...] = ("value_BT", "q_BT", "spread_BT")

    def get_width(self, vocabulary: int) -> int:
        return vocabulary

    def read(self, out_AC: Tensor, token_A: Tensor) -> Tensor:
        all_AV = ensure_float32(out_AC)
        q_A = all_AV.gather(1, token_A[:, None]).squeeze(1)
        return torch.stack([all_AV.amax(1), q_A, all_AV.logsumexp(1) - q_A], dim=1)


class TokensAndState(ValueHead):
    """A head that gives ``Q(s, a)`` of every token a, and ``V(s)``, in reward units.

    ``value_BT`` is V, ``implicit_q_BT`` the Q of the sampled token, and ``spread_BT`` as in `TokenValues`.
    """

    columns: tuple[str, ...] = ("value_BT", "implicit_q_BT", "spread_BT")

    def get_width(self, vocabulary: int) -> int:
        return vocabulary + 1

    def read(self, out_AC: Tensor, token_A: Tensor) -> Tensor:
        out_AC = ensure_float32(out_AC)
        all_AV, value_A = out_AC[:, :-1], out_AC[:, -1]
        q_A = all_AV.gather(1, token_A[:, None]).squeeze(1)
        return torch.stack([value_A, q_A, all_AV.logsumexp(1) - q_A], dim=1)

    def select_tokens(self, out: Tensor) -> Tensor:
        """Return Q of all tokens, (…, V), from the output of the linear head."""
        return out[..., :-1]


def expectile(
    *,
    value_BT: Tensor,
    return_BT: Tensor,
    is_action_BT: Tensor,
    is_turn_end_BT: Tensor,
    is_value_target_BT: Tensor | None = None,
    share: float = 0.7,
) -> ValueLoss:
    """Compute the expectile loss of V and squared loss of Q: IQL.

    arXiv 2110.06169, equations 5 and 6.

    ``|share - 1[u < 0]| u^2`` with ``u = ret - V``, but ``1/2 u^2`` at turn ends.  For `archer` and `iql`: V, at the
    first token of a turn, is fitted to an upper expectile of Q, which is learnt at the last token.  ``share=0.5`` is
    `squared`.  Gradient flows through ``value_BT`` alone.

    Raises:
        ValueError: ``share`` is not between 0 and 1, or shapes disagree.
    """
    require(0 < share < 1, "share", share, "above 0 and below 1")
    is_target_BT = select_targets(is_action_BT, is_value_target_BT)
    error_BT = mask_targets(return_BT.detach(), is_target_BT) - mask_targets(value_BT, is_target_BT)
    weight_BT = torch.where(error_BT.detach() < 0, 1 - share, share).to(error_BT)
    weight_BT = torch.where(is_turn_end_BT, 0.5, weight_BT)
    return ValueLoss(weight_BT * error_BT.square(), torch.zeros_like(is_target_BT))


def conservative(
    *,
    q_BT: Tensor,
    spread_BT: Tensor,
    return_BT: Tensor,
    is_action_BT: Tensor,
    is_value_target_BT: Tensor | None = None,
    coef: float = 1.0,
) -> ValueLoss:
    """Compute the squared loss with a conservative regulariser: CQL, arXiv 2006.04779, equation 4.

    ``1/2 (Q(s, a) - ret)^2 + coef (logsumexp_a' Q(s, a') - Q(s, a))``.  The second term lowers Q of tokens that are not
    in the data; ``coef=0`` is Q-learning without it.  ``spread_BT`` is ``logsumexp_a' Q(s, a') - Q(s, a)`` (in reward
    units).  Gradient flows through ``spread_BT`` and ``q_BT``.

    Raises:
        ValueError: ``coef`` is negative or not finite, or shapes disagree.
    """
    require(0 <= coef < float("inf"), "coef", coef, "finite and >= 0; 0 is plain Q-learning")
    plain = squared(
        value_BT=q_BT, return_BT=return_BT, is_action_BT=is_action_BT, is_value_target_BT=is_value_target_BT
    )
    is_target_BT = select_targets(is_action_BT, is_value_target_BT)
    return ValueLoss(plain.loss_BT + coef * mask_targets(spread_BT, is_target_BT), plain.is_clipped_BT)


def implicit(
    *,
    value_BT: Tensor,
    implicit_q_BT: Tensor,
    spread_BT: Tensor,
    old_implicit_q_BT: Tensor,
    return_BT: Tensor,
    is_action_BT: Tensor,
    target_implicit_q_BT: Tensor | None = None,
    is_value_target_BT: Tensor | None = None,
    share: float = 0.7,
    coef: float = 1.0,
) -> ValueLoss:
    """Compute the loss of Q and V with a conservative regulariser: ILQL, arXiv 2206.11871.

    ``(Q(s, a) - ret)^2 + |share - 1[u < 0]| u^2 + coef (logsumexp_a' Q(s, a') - Q(s, a))`` with ``u = Q_target - V``.
    Q of the sampled token is fitted to ``return_BT``, V to an upper expectile of Q of the target network
    (``target_implicit_q_BT``, or ``old_implicit_q_BT`` from before the update without one).  The last term,
    ``spread_BT`` (in reward units), is that of `conservative`.  Gradient flows through ``value_BT``, ``implicit_q_BT``
    and ``spread_BT``.

    Raises:
        ValueError: ``share`` is not between 0 and 1, ``coef`` is negative or not finite, or shapes disagree.
    """
    require(0 < share < 1, "share", share, "above 0 and below 1")
    require(0 <= coef < float("inf"), "coef", coef, "finite and >= 0; 0 turns the regulariser off")
    is_target_BT = select_targets(is_action_BT, is_value_target_BT)
    slow_BT = old_implicit_q_BT if target_implicit_q_BT is None else target_implicit_q_BT
    q_error_BT = mask_targets(implicit_q_BT, is_target_BT) - mask_targets(return_BT.detach(), is_target_BT)
    error_BT = mask_targets(slow_BT.detach(), is_target_BT) - mask_targets(value_BT, is_target_BT)
    weight_BT = torch.where(error_BT.detach() < 0, 1 - share, share).to(error_BT)
    loss_BT = (
        q_error_BT.square() + weight_BT * error_BT.square() + coef * mask_targets(spread_BT, is_target_BT)
    )
    return ValueLoss(loss_BT, torch.zeros_like(is_target_BT))


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
    """Compute imitation weights by implicit language Q-learning: ILQL, arXiv 2206.11871.

    ``w_t = min(exp(sharpness (Q(s_t, a_t) - V(s_t))), 100)``; an action is a token.  ``value_BT`` is V,
    ``implicit_q_BT`` is Q of the sampled token (in reward units), and ``target_implicit_q_BT`` is Q of the target
    network.  The target of Q is ``Q(s_t, a_t) <- r_t + d_t V(s_t')``, where ``d_t`` is ``turn_discount`` at the end of
    a turn, else 1, and the second term is 0 after the last token; the loss `implicit` fits V to Q.
    ``algo/clip=log_prob`` multiplies the log-likelihood by the weight, which uses Q of the target network and the
    current V and has no unit.  The default ``sharpness=0`` imitates all rows equally, as in the paper, where the values
    are used at sampling time.  Nothing carries gradient.

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
    target_BT = compute_token_targets(
        value_BT, reward_BT, is_counted_BT, is_turn_end_BT, trajectory_B, first_turn_B, turn_discount
    )
    return Advantage(
        torch.where(is_counted_BT, weight_BT, torch.zeros_like(weight_BT)), target_BT, is_counted_BT
    )
