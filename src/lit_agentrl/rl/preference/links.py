"""Links: the loss of a pair as a function of its logit ``z``.

``z = beta * (score of the chosen - score of the rejected) + margin``.  Each link takes columns of pairs, (P,), by name,
and returns (P,).  ``z_P`` and the implicit rewards ``chosen_P`` and ``rejected_P``, ``beta * score``, carry gradient;
``gap_P``, the difference of returns in reward units, does not.  With ``beta = 1``, ``z_P`` and the implicit rewards are
in nats.  Formulas call the implicit rewards ``w`` (chosen, the winner) and ``l`` (rejected, the loser).  A link raises
ValueError when a constant is out of range.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lit_agentrl.checks import require
from lit_agentrl.rl.masked import segment_sum


def logistic(*, z_P: Tensor) -> Tensor:
    """``-log sigmoid(z)``: DPO, arXiv 2305.18290, equation 7."""
    return -logsigmoid(z_P)


def hinge(*, z_P: Tensor, width: float = 1.0) -> Tensor:
    """``max(0, width - z)``: SLiC, arXiv 2305.10425, and RRHF, arXiv 2304.05302.

    SLiC has a ``width`` of 1, RRHF has 0.  ``width`` is finite and >= 0.
    """
    require(0 <= width < math.inf, "width", width, "finite and >= 0")
    return (width - z_P).clamp(min=0)


def hinge_of_mean(*, z_P: Tensor, set_P: Tensor, width: float = 0.0) -> Tensor:
    """``max(0, width - mean of z in a set)``: Stable Alignment, arXiv 2305.16960.

    The loss of a set is divided equally among its pairs, so use ``algo.over=groups``.  ``set_P`` is the group, or
    state, of each pair; ``width`` is >= 0.
    """
    require(0 <= width < math.inf, "width", width, "finite and >= 0")
    _, index_P, size_S = torch.unique(set_P, return_inverse=True, return_counts=True)
    mean_S = segment_sum(z_P, index_P, len(size_S)) / size_S
    loss_P: Tensor = ((width - mean_S).clamp(min=0) / size_S)[index_P]
    return loss_P


def truncated_quadratic(*, z_P: Tensor) -> Tensor:
    """``max(0, 1 - z)^2``: GPO, arXiv 2402.05749, table 1."""
    return (1 - z_P).clamp(min=0).square()


def squared(*, z_P: Tensor) -> Tensor:
    """``(z - 1)^2``: GPO's form of IPO."""
    return (z_P - 1).square()


def exponential(*, z_P: Tensor) -> Tensor:
    """``exp(-z)``: GPO; ``-z`` is clamped to at most 20, and has no gradient beyond."""
    return torch.exp((-z_P).clamp(max=20))


def savage(*, z_P: Tensor) -> Tensor:
    """``sigmoid(-z)^2``: GPO."""
    return torch.sigmoid(-z_P).square()


def ipo(*, z_P: Tensor, tau: float = 0.1) -> Tensor:
    """``(z - 1 / (2 tau))^2``: IPO, arXiv 2310.12036, equation 17, with ``algo.beta=1``.

    With ``algo/score=length_averaged`` it is the form used by trl.  ``tau`` is in 1 / nats, finite and > 0.
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
    """Logistic loss mixed with an exponential loss: DiscoPOP, arXiv 2406.08414.

    ``-log sigmoid(z) (1 - m) + exp(-z) m`` with ``m = sigmoid(z / tau)``; ``tau`` is > 0.
    """
    require(0 < tau < math.inf, "tau", tau, "finite and > 0")
    mixed_P = torch.sigmoid(z_P / tau)
    return -logsigmoid(z_P) * (1 - mixed_P) + torch.exp((-z_P).clamp(max=20)) * mixed_P


def nca(*, chosen_P: Tensor, rejected_P: Tensor) -> Tensor:
    """Noise contrastive alignment of pairs: NCA, arXiv 2402.05369.

    ``-log sigmoid(w) - log sigmoid(-w) / 2 - log sigmoid(-l) / 2``.
    """
    return -logsigmoid(chosen_P) - 0.5 * logsigmoid(-chosen_P) - 0.5 * logsigmoid(-rejected_P)


def bco(*, chosen_P: Tensor, rejected_P: Tensor) -> Tensor:
    """``-log sigmoid(w) - log sigmoid(-l)``: BCO of pairs, arXiv 2404.04656, without shift."""
    return -logsigmoid(chosen_P) - logsigmoid(-rejected_P)


def sppo_hard(*, chosen_P: Tensor, rejected_P: Tensor, eta: float = 10.0) -> Tensor:
    """SPPO with hard labels: arXiv 2405.00675, with ``algo.beta=1``.

    ``(w - eta / 2)^2 + (l + eta / 2)^2``.  ``eta`` is in nats, finite and > 0; in trl it is 1 / beta.
    """
    require(0 < eta < math.inf, "eta", eta, "finite and > 0")
    return (chosen_P - eta / 2).square() + (rejected_P + eta / 2).square()


def apo(*, chosen_P: Tensor, rejected_P: Tensor, side: Literal["zero", "down"] = "zero") -> Tensor:
    """Anchored preference optimisation: APO, arXiv 2408.06266.

    ``side=zero`` suits chosen replies that are better than the policy's: ``1 - sigmoid(w) + sigmoid(l)``.
    ``side=down`` suits worse chosen replies: ``sigmoid(w) + 1 - sigmoid(w - l)``.
    """
    require(side in ("zero", "down"), "side", side, "zero or down")
    if side == "zero":
        return torch.sigmoid(-chosen_P) + torch.sigmoid(rejected_P)
    return torch.sigmoid(chosen_P) + torch.sigmoid(rejected_P - chosen_P)


def rebel(*, z_P: Tensor, gap_P: Tensor, eta: float = 1.0) -> Tensor:
    """``(z - gap / eta)^2``: REBEL, arXiv 2404.16767, equation 8, with ``algo.beta=1``.

    This is the form of the authors' code; the paper multiplies it by ``eta^2``.  ``eta`` is in reward units per nat,
    finite and > 0.
    """
    require(0 < eta < math.inf, "eta", eta, "finite and > 0")
    return (z_P - gap_P / eta).square()


def distance(*, z_P: Tensor, gap_P: Tensor, eta: float = 1.0) -> Tensor:
    """``KL(sigmoid(eta gap) || sigmoid(z))``: reward-aware RPO (Nemotron), arXiv 2406.11704.

    This is the variant with backward KL; the loss is 0 for ``z = eta * gap``.  ``eta`` is per reward unit, finite and
    > 0.
    """
    require(0 < eta < math.inf, "eta", eta, "finite and > 0")
    goal_P = eta * gap_P
    right_P = torch.sigmoid(goal_P) * (logsigmoid(goal_P) - logsigmoid(z_P))
    return right_P + torch.sigmoid(-goal_P) * (logsigmoid(-goal_P) - logsigmoid(-z_P))


# ---------------------------------------------------------------------- label smoothing
def certain(loss_P: Tensor, flipped_P: Tensor) -> Tensor:
    """The unchanged loss: labels are treated as correct."""
    return loss_P


def conservative(loss_P: Tensor, flipped_P: Tensor, *, epsilon: float = 0.1) -> Tensor:
    """``(1 - epsilon) f(z) + epsilon f(-z)`` with the link ``f``: cDPO (label smoothing).

    Args:
        loss_P: loss of each pair.
        flipped_P: loss of each pair with the sides exchanged.
        epsilon: share of wrong labels, in (0, 0.5).
    """
    require(0 < epsilon < 0.5, "epsilon", epsilon, "in (0, 0.5); algo/smoothing=none has none")
    return (1 - epsilon) * loss_P + epsilon * flipped_P


def robust(loss_P: Tensor, flipped_P: Tensor, *, epsilon: float = 0.1) -> Tensor:
    """Unbiased loss under flipped labels: robust DPO, arXiv 2403.00409, equation 8.

    ``((1 - epsilon) f(z) - epsilon f(-z)) / (1 - 2 epsilon)``.  If labels are flipped with probability ``epsilon``, the
    expectation is the loss of the correct labels.  The arguments are those of `conservative`.
    """
    require(0 < epsilon < 0.5, "epsilon", epsilon, "in (0, 0.5); algo/smoothing=none has none")
    return ((1 - epsilon) * loss_P - epsilon * flipped_P) / (1 - 2 * epsilon)
