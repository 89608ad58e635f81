"""Links: the loss of a pair, from ``z = beta * (score of the chosen - score of the rejected) + margin``.

Each takes columns of pairs, (P,), by name, and returns (P,).  ``z_P``, and ``chosen_P`` and ``rejected_P``, which are
the implicit rewards ``beta * score``, carry gradient; ``gap_P`` (points between the returns) does not.  With ``beta =
1`` they are in nats.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lit_agentrl.checks import require


def logistic(*, z_P: Tensor) -> Tensor:
    """``-log sigmoid(z)``: DPO, arXiv 2305.18290, equation 7."""
    return -logsigmoid(z_P)


def hinge(*, z_P: Tensor, width: float = 1.0) -> Tensor:
    """``max(0, width - z)``: SLiC, arXiv 2305.10425, width 1; RRHF, arXiv 2304.05302, width 0.  ``width`` >= 0."""
    require(0 <= width < math.inf, "width", width, "finite and >= 0")
    return (width - z_P).clamp(min=0)


def truncated_quadratic(*, z_P: Tensor) -> Tensor:
    """``max(0, 1 - z)^2``: GPO, arXiv 2402.05749, table 1."""
    return (1 - z_P).clamp(min=0).square()


def squared(*, z_P: Tensor) -> Tensor:
    """``(z - 1)^2``: GPO's form of IPO."""
    return (z_P - 1).square()


def exponential(*, z_P: Tensor) -> Tensor:
    """``exp(-z)``: GPO; ``-z`` is clamped to at most 20, beyond which there is no gradient."""
    return torch.exp((-z_P).clamp(max=20))


def savage(*, z_P: Tensor) -> Tensor:
    """``sigmoid(-z)^2``: GPO."""
    return torch.sigmoid(-z_P).square()


def ipo(*, z_P: Tensor, tau: float = 0.1) -> Tensor:
    """``(z - 1 / (2 tau))^2``: IPO, arXiv 2310.12036, equation 17, with ``algo.beta=1``.

    With ``algo/score=length_averaged`` it is the form of trl.  ``tau`` is in 1 / nats, finite and > 0.
    """
    require(0 < tau < math.inf, "tau", tau, "finite and > 0")
    return (z_P - 1 / (2 * tau)).square()


def exo(*, z_P: Tensor, epsilon: float = 1e-3) -> Tensor:
    """``KL(sigmoid(z) || 1 - epsilon)`` of two outcomes: EXO of pairs, arXiv 2402.00856, equation 14.

    ``epsilon`` is in (0, 0.5).
    """
    require(0 < epsilon < 0.5, "epsilon", epsilon, "in (0, 0.5)")
    right_P = torch.sigmoid(z_P) * (logsigmoid(z_P) - math.log1p(-epsilon))
    return right_P + torch.sigmoid(-z_P) * (logsigmoid(-z_P) - math.log(epsilon))


def discopop(*, z_P: Tensor, tau: float = 0.05) -> Tensor:
    """``-log sigmoid(z) (1 - m) + exp(-z) m``, ``m = sigmoid(z / tau)``: DiscoPOP, arXiv 2406.08414; ``tau`` > 0."""
    require(0 < tau < math.inf, "tau", tau, "finite and > 0")
    mixed_P = torch.sigmoid(z_P / tau)
    return -logsigmoid(z_P) * (1 - mixed_P) + torch.exp((-z_P).clamp(max=20)) * mixed_P


def nca(*, chosen_P: Tensor, rejected_P: Tensor) -> Tensor:
    """``-log sigmoid(w) - log sigmoid(-w) / 2 - log sigmoid(-l) / 2``: NCA of pairs, arXiv 2402.05369."""
    return -logsigmoid(chosen_P) - 0.5 * logsigmoid(-chosen_P) - 0.5 * logsigmoid(-rejected_P)


def bco(*, chosen_P: Tensor, rejected_P: Tensor) -> Tensor:
    """``-log sigmoid(w) - log sigmoid(-l)``: BCO of pairs, arXiv 2404.04656, with a shift of 0."""
    return -logsigmoid(chosen_P) - logsigmoid(-rejected_P)


def sppo_hard(*, chosen_P: Tensor, rejected_P: Tensor, eta: float = 10.0) -> Tensor:
    """``(w - eta / 2)^2 + (l + eta / 2)^2``: SPPO where the winner always wins, arXiv 2405.00675, with ``algo.beta=1``.

    ``eta`` is in nats, finite and > 0; trl writes it as 1 / beta.
    """
    require(0 < eta < math.inf, "eta", eta, "finite and > 0")
    return (chosen_P - eta / 2).square() + (rejected_P + eta / 2).square()


def apo(*, chosen_P: Tensor, rejected_P: Tensor, side: Literal["zero", "down"] = "zero") -> Tensor:
    """APO, arXiv 2408.06266: where chosen replies are better than the policy's (``zero``), or worse (``down``).

    ``zero``: ``1 - sigmoid(w) + sigmoid(l)``; ``down``: ``sigmoid(w) + 1 - sigmoid(w - l)``.
    """
    require(side in ("zero", "down"), "side", side, "zero or down")
    if side == "zero":
        return torch.sigmoid(-chosen_P) + torch.sigmoid(rejected_P)
    return torch.sigmoid(chosen_P) + torch.sigmoid(rejected_P - chosen_P)


def rebel(*, z_P: Tensor, gap_P: Tensor, eta: float = 1.0) -> Tensor:
    """``(z - gap / eta)^2``: REBEL, arXiv 2404.16767, equation 8 in the form of its code, with ``algo.beta=1``.

    ``eta`` is in points per nat, finite and > 0; ``eta^2`` times this is the paper's.
    """
    require(0 < eta < math.inf, "eta", eta, "finite and > 0")
    return (z_P - gap_P / eta).square()


def distance(*, z_P: Tensor, gap_P: Tensor, eta: float = 1.0) -> Tensor:
    """``KL(sigmoid(eta gap) || sigmoid(z))``: reward-aware RPO (Nemotron), arXiv 2406.11704, backward KL.

    It is 0 where ``z = eta * gap``.  ``eta`` is per point, finite and > 0.
    """
    require(0 < eta < math.inf, "eta", eta, "finite and > 0")
    goal_P = eta * gap_P
    right_P = torch.sigmoid(goal_P) * (logsigmoid(goal_P) - logsigmoid(z_P))
    return right_P + torch.sigmoid(-goal_P) * (logsigmoid(-goal_P) - logsigmoid(-z_P))


# ---------------------------------------------------------------------- labels that may be wrong
def certain(loss_P: Tensor, flipped_P: Tensor) -> Tensor:
    """The loss as it is."""
    return loss_P


def conservative(loss_P: Tensor, flipped_P: Tensor, *, epsilon: float = 0.1) -> Tensor:
    """``(1 - epsilon) f(z) + epsilon f(-z)``: cDPO (label smoothing).

    Args:
        loss_P: of the pair.
        flipped_P: of the pair the other way round.
        epsilon: share of labels that are wrong, in (0, 0.5).
    """
    require(0 < epsilon < 0.5, "epsilon", epsilon, "in (0, 0.5); algo/smoothing=none has none")
    return (1 - epsilon) * loss_P + epsilon * flipped_P


def robust(loss_P: Tensor, flipped_P: Tensor, *, epsilon: float = 0.1) -> Tensor:
    """``((1 - epsilon) f(z) - epsilon f(-z)) / (1 - 2 epsilon)``: robust DPO, arXiv 2403.00409, equation 8.

    Its mean over labels flipped with probability ``epsilon`` is the loss of the right labels; arguments as of
    `conservative`.
    """
    require(0 < epsilon < 0.5, "epsilon", epsilon, "in (0, 0.5); algo/smoothing=none has none")
    return ((1 - epsilon) * loss_P - epsilon * flipped_P) / (1 - 2 * epsilon)
