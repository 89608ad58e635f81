"""Margins, which are added to the logit ``z`` of a pair before the link.

``z = beta * (score of the chosen - score of the rejected)``.  Each margin takes columns of pairs, (P,), by name, and
returns (P,) in units of z.  ``gap_P`` is the difference of returns (in reward units, >= 0), lengths are in sampled
tokens, ``chosen_P`` and ``rejected_P`` are implicit rewards, ``beta * score``, which carry gradient.  ``reordered_P``
is computed before the first step of an iteration; see `sorting`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lit_agentrl.checks import require
from lit_agentrl.rl.binding import bare, tensor_names


def none(*, z_P: Tensor) -> Tensor:
    """Use no margin."""
    return torch.zeros_like(z_P)


def constant(*, z_P: Tensor, gamma: float = 1.0) -> Tensor:
    """``-gamma``: SimPO, arXiv 2405.14734, equation 5.

    ``gamma`` is finite and > 0.
    """
    require(0 < gamma < math.inf, "gamma", gamma, "finite and > 0; algo/margin=none has none")
    return torch.full_like(z_P, -gamma)


def score_gap(*, gap_P: Tensor, scale: float = 1.0) -> Tensor:
    """``-scale * gap``: Llama 2, arXiv 2307.09288, and Stable Alignment.

    ``scale`` is per reward unit, finite and > 0.
    """
    require(0 < scale < math.inf, "scale", scale, "finite and > 0; algo/margin=none has none")
    return -scale * gap_P


def log_gap(*, gap_P: Tensor, alpha: float = 1.0) -> Tensor:
    """``-alpha * log(gap)``: ODPO, arXiv 2402.10571, equation 10.

    Gaps are clamped to at least 1e-3.  A gap below 1 gives a negative offset.  ``alpha`` is finite and > 0.
    """
    require(0 < alpha < math.inf, "alpha", alpha, "finite and > 0; algo/margin=none has none")
    return -alpha * torch.log(gap_P.clamp(min=1e-3))


def length(*, chosen_length_P: Tensor, rejected_length_P: Tensor, alpha: float = 0.01) -> Tensor:
    """``alpha * (n_chosen - n_rejected)``: R-DPO, arXiv 2403.19159, equation 9.

    The loss pushes less on pairs whose chosen side is longer, so that length alone is not learnt.  ``alpha`` is per
    token, finite and > 0.
    """
    require(0 < alpha < math.inf, "alpha", alpha, "finite and > 0; algo/margin=none has none")
    return alpha * (chosen_length_P - rejected_length_P)


def falling_chosen(*, chosen_P: Tensor, lam: float = 5.0) -> Tensor:
    """``-lam * max(0, -chosen reward)``: DPOP (Smaug), arXiv 2402.13228, equation 3.

    Gradient flows, so that a chosen log-prob that has fallen below the reference rises.  ``lam`` is finite and > 0.
    """
    require(0 < lam < math.inf, "lam", lam, "finite and > 0; algo/margin=none has none")
    return -lam * (-chosen_P).clamp(min=0)


def sequence_kl(
    *, chosen_kl_P: Tensor, rejected_kl_P: Tensor, alpha: float = 0.5, stop_chosen: bool = True
) -> Tensor:
    """`vocabulary_kl` with KLs estimated at the sampled tokens, which needs no logits of the reference.

    The KL of a token with probability p under the policy and q under the reference is estimated as
    ``p / q - 1 - log(p / q)``, which is unbiased if the reference sampled the token.

    Args:
        chosen_kl_P: ``beta`` times the sum over sampled tokens of the estimate; carries gradient.
        rejected_kl_P: the same for the rejected side.
        alpha: weight, finite and > 0; TDPO 1 has 1.
        stop_chosen: whether to stop the gradient of the KL of the chosen side, as in TDPO 2.
    """
    require(0 < alpha < math.inf, "alpha", alpha, "finite and > 0; algo/margin=none has none")
    require(isinstance(stop_chosen, bool), "stop_chosen", stop_chosen, "true or false")
    return -alpha * (rejected_kl_P - (chosen_kl_P.detach() if stop_chosen else chosen_kl_P))


def vocabulary_kl(
    *, chosen_full_kl_P: Tensor, rejected_full_kl_P: Tensor, alpha: float = 0.5, stop_chosen: bool = True
) -> Tensor:
    """``-alpha * (KL_rejected - KL_chosen)``: TDPO, arXiv 2404.11999, equations 15 and 17.

    A side's KL is ``beta * sum over its sampled tokens t of sum over v of q_t(v) log(q_t(v) / p_t(v))``: over the whole
    vocabulary, with q the reference and p the policy.  For q = (0.5, 0.3, 0.2) and p = (0.6, 0.3, 0.1) that is 0.0475;
    `sequence_kl` estimates 0.0177, 0 or 0.1931, depending on the token that was sampled.

    Args:
        chosen_full_kl_P: the KL of the chosen side; carries gradient.
        rejected_full_kl_P: the KL of the rejected side; carries gradient.
        alpha: weight, finite and > 0; TDPO 1 has 1.
        stop_chosen: whether to stop the gradient of the KL of the chosen side, as in TDPO 2.
    """
    return sequence_kl(
        chosen_kl_P=chosen_full_kl_P, rejected_kl_P=rejected_full_kl_P, alpha=alpha, stop_chosen=stop_chosen
    )


def sorted_reference(*, reordered_P: Tensor) -> Tensor:
    """``beta * (v_i - v_j)``: AOT of paired data, arXiv 2406.05882.

    The logit becomes ``z = beta * (u_i - v_j)``.  ``u`` is the score of the chosen side minus that of the rejected side
    under the policy, ``v`` the same difference under the reference.  Both are sorted separately over all pairs of the
    iteration, and j is the pair whose ``v`` has the rank of ``u_i``.  ``u`` is sorted once, before the first step, so
    an iteration of one step equals the paper; later steps use the same order.  The margin carries no gradient.
    """
    return reordered_P


def check_margin(margin: Callable[..., Tensor], link: Callable[..., Tensor]) -> None:
    """Refuse a margin with a link that does not use ``z``.

    Raises:
        ValueError: there is a margin, and the link takes the implicit rewards instead of z.
    """
    if bare(margin) is not none and "z_P" not in tensor_names(link):
        raise ValueError(
            "margin is added to z, and link takes both rewards instead of z: use algo/margin=none"
        )
